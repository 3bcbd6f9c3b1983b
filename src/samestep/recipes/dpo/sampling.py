"""What `samestep sample` does: sequences for structures, or texts after prompts, the same on any number of ranks."""

from collections.abc import Mapping, Sequence

import torch

from samestep import GenerationConfig, LocalGenerator, Trained, UserError, World
from samestep.core.output import print_text
from samestep.core.records import Json
from samestep.data.prompt_files import read_prompts
from samestep.models.decoding import position_limit
from samestep.recipes.dpo.protein_sampling import design_sequences
from samestep.recipes.dpo.reference import POLICY
from samestep.recipes.dpo.sample_options import SampleOptions
from samestep.recipes.dpo.text_models import open_text_model
from samestep.recipes.dpo.text_records import Text
from samestep.train.learner.draws import Draws
from samestep.train.trained.batch_inference import complete, network_of

_DEFAULT = GenerationConfig()


def complete_prompts(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """Complete each prompt `num_samples` times: one record per text, in order, on every rank."""
    texts = _texts(options)
    how = GenerationConfig(
        max_new_tokens=_DEFAULT.max_new_tokens if options.max_new_tokens is None else options.max_new_tokens,
        temperature=_DEFAULT.temperature if options.temperature is None else options.temperature,
    )
    model = open_text_model(trained.config.model, world)
    prompts = [model.prompt(_as_chat(text) if options.chat else text) for text in texts]
    network, compute = network_of(trained, POLICY, world.device)
    _check_room(max(map(len, prompts)), how.max_new_tokens, position_limit(network))
    draws = Draws("dpo/sampled texts", trained.config.seed)
    generator = LocalGenerator(how, draws, world, model.eos, model.pad, model.forbidden, options.batch_size)
    requests = [(number, sample) for number in range(len(texts)) for sample in range(options.num_samples)]
    ids = torch.tensor([(sample, number) for number, sample in requests])
    found = complete(generator, network, compute, [prompts[number] for number, _ in requests], ids)
    return [
        {"prompt": texts[number], "sample": sample, "text": model.decode(tokens), "finished": ended}
        for (number, sample), (tokens, ended) in zip(requests, found, strict=True)
    ]


def _texts(options: SampleOptions) -> list[str]:
    return read_prompts(options.prompts) if options.prompts is not None else [options.prompt or ""]


def _as_chat(text: str) -> Text:
    return ({"role": "user", "content": text},)


def _check_room(longest: int, new_tokens: int, limit: int | None) -> None:
    """On all ranks alike, though only some of them will have the prompt."""
    if longest == 0:
        raise UserError("Give a prompt with some text: for this model, it has no tokens.")
    if limit is not None and longest + new_tokens > limit:
        raise UserError(
            f"Set --max_new_tokens to {max(limit - longest, 0)} or less, or shorten the prompt: it has {longest} "
            f"tokens, and the model takes {limit} in all."
        )


def generate(trained: Trained, options: SampleOptions, world: World) -> list[dict[str, Json]]:
    """One record for each sequence or text, in order, on every rank."""
    if trained.config.family == "text":
        options.check_for("text")
        return complete_prompts(trained, options, world)
    options.check_for("protein")
    return design_sequences(trained, options, world)


def show(trained: Trained, records: Sequence[Mapping[str, Json]]) -> None:
    """Print the texts, each after a line if there are several; or the sequences as FASTA, and where they are."""
    for number, record in enumerate(records, 1):
        if "files" not in record and len(records) > 1:
            print_text(f"--- {number} of {len(records)} ---")
        print_text(record["text"])
    for files in dict.fromkeys(" and ".join(record["files"]) for record in records if "files" in record):
        print_text(f"wrote {files}")
