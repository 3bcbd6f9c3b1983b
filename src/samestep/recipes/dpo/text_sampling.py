"""Completing prompts with a model that was trained on pairs of texts."""

import torch

from samestep import GenerationConfig, LocalGenerator, Trained, UserError, World
from samestep.core.records import Json
from samestep.data.prompt_files import read_prompts
from samestep.models.decoding import position_limit
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
