"""Published LLaDA models, in and out: a folder as a configuration, and a trained network as a folder."""

import shutil
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from samestep.core.config import build
from samestep.core.errors import UserError
from samestep.core.records import read_json, write_json
from samestep.data.tokenizer import load_tokenizer
from samestep.data.vocabulary import Tokenizer, Vocabulary
from samestep.models.published import CONFIG, Published, as_config, is_published, read_config
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.train.exporting import ExportOptions, write_model
from samestep.train.trained import Trained

COMPANIONS = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*")
"""The files of a published tokenizer."""
SAMPLING = "sampling.json"
"""How the model's run wrote text: a small network may write nothing but blanks in another way."""
FREE = {"init_std", "max_sequence_length"}
"""Settings of a network that its weights do not depend on."""
_TORCH = {"bf16": "bfloat16", "fp32": "float32"}


def adopt(folder: Path) -> MdlmConfig | None:
    """The configuration of a published model, or None where a folder holds something else."""
    if not is_published(folder):
        return None
    network = read_config(folder).network
    return MdlmConfig(model=network, sampling=_within(network, _read_sampling(folder / SAMPLING)))


def _read_sampling(path: Path) -> SamplingConfig:
    """What an export of ours says; others' folders have no such file."""
    try:
        return build(SamplingConfig, read_json(path) or {})
    except (UserError, ValueError) as error:
        raise UserError(f"{path} cannot be used (mend it or remove it): {error}") from None


def _within(network: TransformerConfig, sampling: SamplingConfig) -> SamplingConfig:
    """Of no longer texts than the network takes."""
    return replace(sampling, length=min(sampling.length, network.max_sequence_length))


def begin_with(
    source: str, theirs: TransformerConfig, asked: TransformerConfig, usual: TransformerConfig
) -> TransformerConfig:
    """`theirs`, the network that the weights of `source` are of, for a run that asked for another.

    What differs from the preset's `usual` network was asked for by the user: it is kept where weights do not depend on
    it, and refused elsewhere.
    """
    wanted, preset, given = _resolved(asked), _resolved(usual), _resolved(theirs)
    explicit = {name for name in wanted if wanted[name] != preset[name]}
    for name in sorted(explicit - FREE):
        if wanted[name] != given[name]:
            raise UserError(
                f"model.{name}={wanted[name]} contradicts {source}, where it is {given[name]}; leave the setting out"
            )
    return replace(theirs, **{name: wanted[name] for name in explicit & FREE})


def _resolved(network: TransformerConfig) -> dict[str, Any]:
    return {**asdict(network), "n_kv_heads": network.kv_heads, "embedding_size": network.embeddings}


def tokenizer_of(trained: Trained) -> Tokenizer:
    """The tokenizer of a trained model; one that is not the network's is refused."""
    tokenizer = load_tokenizer(trained.tokenizer)
    network: TransformerConfig = trained.config.model
    if tokenizer.vocabulary.size > network.embeddings:
        raise UserError(
            f"the tokenizer in {trained.tokenizer} has {tokenizer.vocabulary.size} tokens and the network "
            f"{network.embeddings}; put the tokenizer it was trained with there"
        )
    if is_published(trained.source):
        _refuse_other_mask(trained, tokenizer.vocabulary, read_config(trained.source))
    return tokenizer


def _refuse_other_mask(trained: Trained, vocabulary: Vocabulary, published: Published) -> None:
    mask = published.ids["mask_token_id"]
    if vocabulary.mask != mask:
        raise UserError(
            f"{trained.source}/{CONFIG} has the mask token {mask}, but the tokenizer in {trained.tokenizer} has "
            f"{vocabulary.mask}; put the tokenizer files of the model there"
        )


def export(trained: Trained, folder: Path, options: ExportOptions) -> None:
    """Write a trained network as a published one: config.json, safetensors, tokenizer, and how to sample."""
    tokenizer = tokenizer_of(trained)
    network: TransformerConfig = trained.config.model
    config = as_config(network, special_ids(tokenizer.vocabulary), _TORCH[options.dtype])

    def beside(fresh: Path) -> None:
        carry_companions(trained.tokenizer, fresh)
        tokenizer.save(fresh)
        write_json(fresh / CONFIG, config)
        write_json(fresh / SAMPLING, asdict(_within(network, trained.config.sampling)))

    write_model(trained, lambda: Transformer(network), folder, options, beside)


def carry_companions(source: Path, target: Path) -> None:
    """Copy what others need of a tokenizer beyond what `Tokenizer.save` writes, such as the template of its chats."""
    target.mkdir(parents=True, exist_ok=True)
    for file in sorted(file for pattern in COMPANIONS for file in source.glob(pattern) if file.is_file()):
        shutil.copyfile(file, target / file.name)


def special_ids(vocabulary: Vocabulary) -> Mapping[str, int]:
    """The special tokens as a published configuration names them."""
    ids = {"mask_token_id": vocabulary.mask, "eos_token_id": vocabulary.eos, "pad_token_id": vocabulary.eos}
    return ids if vocabulary.bos is None else {**ids, "bos_token_id": vocabulary.bos}
