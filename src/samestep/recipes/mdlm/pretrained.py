"""Published LLaDA models: reading a folder as a configuration, and exporting a trained network as a folder.

Such a folder holds `config.json`, the weights as safetensors (one file, or several with an index) under the names of
`Transformer` with `model.` in front, the files of a tokenizer, and the code that other programs open it with
(published_code.py).
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from samestep import Trained, UserError
from samestep.core.config import build
from samestep.core.json_files import read_json, read_json_if_readable, read_sized_object, write_json
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.models.carried_code import CarriedCode
from samestep.models.folder_fields import MOST_BYTES
from samestep.models.folder_weights import read_layout
from samestep.models.model_files import has_weights
from samestep.models.network_size import check_size
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.config import LLADA_SAMPLING, MdlmConfig
from samestep.recipes.mdlm.published_code import CODE, about_code, code_in, library, recorded_code, usage, write_code
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.recipes.mdlm.tokenizer import KIND, load_tokenizer
from samestep.train.trained.export import EXPORT_TYPES, ExportOptions, write_model
from samestep.train.trained.model_card import trained_card, write_card
from samestep.train.trained.told import told_text
from samestep.train.weights.sources import is_checkpoint

CONFIG = "config.json"
ABOUT = "A masked diffusion language model in the format of LLaDA's published weights, trained with samestep."
REQUIRED = (
    "d_model",
    "n_layers",
    "n_heads",
    "mlp_hidden_size",
    "vocab_size",
    "max_sequence_length",
    "rope_theta",
    "rms_norm_eps",
)
"""Fields that config.json must have, since the weights depend on them."""
OPTIONAL = ("n_kv_heads", "embedding_size", "init_std")
FIXED: Mapping[str, Any] = {
    "block_type": "llama",
    "block_group_size": 1,
    "activation_type": "silu",
    "layer_norm_type": "rms",
    "layer_norm_with_affine": True,
    "bias_for_layer_norm": False,
    "include_bias": False,
    "include_qkv_bias": False,
    "weight_tying": False,
    "rope": True,
    "rope_full_precision": True,
    "rope_scaling": None,
    "alibi": False,
    "clip_qkv": None,
    "attention_layer_norm": False,
    "input_emb_norm": False,
    "multi_query_attention": None,
    "scale_logits": False,
    "attention_dropout": 0.0,
    "residual_dropout": 0.0,
    "embedding_dropout": 0.0,
}
"""Settings of the published code that this network supports with one value only."""
IDS = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")
TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "chat_template*",
)
"""The files of a published tokenizer."""
SAMPLING = "sampling.json"
"""The sampling settings of the model's run, which only an export by samestep has: with others, a small network may
generate only spaces."""
WEIGHT_INDEPENDENT = {"init_std", "max_sequence_length"}
"""Settings of a network that its weights do not depend on."""


@dataclass(frozen=True)
class PublishedConfig:
    """The configuration of a published model."""

    network: TransformerConfig
    ids: Mapping[str, int]
    """The special tokens it names: mask_token_id, and usually eos_token_id and pad_token_id."""


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published LLaDA model."""
    found = read_json_if_readable(folder / CONFIG)
    return isinstance(found, dict) and found.get("model_type", KIND) == KIND and "d_model" in found


def read_config(folder: Path) -> PublishedConfig:
    """The network and the special tokens of a published model; unsupported settings are refused by name."""
    path = folder / CONFIG
    found = read_sized_object(path, MOST_BYTES)
    if not found:
        raise UserError(f"{path} is missing or is not JSON; give a folder with a published LLaDA model.")
    if found.get("model_type", KIND) != KIND:
        raise UserError(f"{path} is of a {found['model_type']!r} model; give a folder with a published LLaDA model.")
    for name, ours in FIXED.items():
        theirs = found.get(name)
        # Absent or null means the default, and false means the same as null.
        if theirs is not None and theirs != ours and (theirs or ours):
            raise UserError(
                f"{path} sets {name} to {json.dumps(theirs)}, which this network does not support "
                f"(it has {json.dumps(ours)}); choose another model."
            )
    absent = [name for name in REQUIRED if found.get(name) is None]
    if absent:
        raise UserError(f"{path} lacks {', '.join(absent)}; download or copy it again.")
    shape = {name: found[name] for name in (*REQUIRED, *OPTIONAL) if found.get(name) is not None}
    try:
        network = build(TransformerConfig, shape)
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    return PublishedConfig(network, _ids(path, found, network))


def as_config(network: TransformerConfig, ids: Mapping[str, int], dtype: str) -> dict[str, Any]:
    """The content of `config.json` for a network whose weights are stored as `dtype`."""
    if network.causal:
        raise UserError("the published format has no causal networks; only one with causal=false can be exported")
    shape = {name: getattr(network, name) for name in (*REQUIRED, *OPTIONAL)}
    shape |= {"n_kv_heads": network.kv_heads, "embedding_size": network.embeddings}
    content = {"architectures": ["LLaDAModelLM"], "model_type": KIND, **shape, **FIXED, **ids}
    _ids(Path(CONFIG), content, network)
    return {**content, "flash_attention": False, "use_cache": False, "torch_dtype": dtype}


def _ids(path: Path, found: Mapping[str, Any], network: TransformerConfig) -> dict[str, int]:
    if found.get("mask_token_id") is None:
        raise UserError(f"{path} lacks mask_token_id; add the number of the mask token.")
    ids = {name: found[name] for name in IDS if found.get(name) is not None}
    for name, number in ids.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < network.embeddings:
            raise UserError(
                f"{path} sets {name} to {json.dumps(number)}, outside of the embedding with its "
                f"{network.embeddings} rows; correct it."
            )
    return ids


def read_pretrained(folder: Path) -> MdlmConfig | None:
    """The configuration of a published model, or None if a folder holds something else. It is fine-tuned with the
    preset llada-8b, and sampled as its run was, or as LLaDA is."""
    if not is_published(folder):
        return None
    network = read_config(folder).network
    if has_weights(folder):
        check_size(partial(Transformer, network), read_layout(folder), folder)
    path = folder / SAMPLING
    try:
        sampling = build(SamplingConfig, read_json(path) or LLADA_SAMPLING)
    except (UserError, ValueError) as error:
        raise UserError(f"{path} cannot be used (fix it or remove it): {error}") from None
    return MdlmConfig(preset="llada-8b", model=network, sampling=_limit_length(network, sampling))


def _limit_length(network: TransformerConfig, sampling: SamplingConfig) -> SamplingConfig:
    """The settings with a length that the network accepts."""
    return replace(sampling, max_new_tokens=min(sampling.max_new_tokens, network.max_sequence_length))


def resolve_network(
    source: str, pretrained: TransformerConfig, configured: TransformerConfig, preset: TransformerConfig
) -> TransformerConfig:
    """The network of a run that starts with the weights of `source`: that of the `pretrained` model.

    A setting that differs from the `preset` was made by the user: it is kept if weights do not depend on it, and
    refused if it contradicts the pretrained model.
    """
    wanted, usual, given = _resolved(configured), _resolved(preset), _resolved(pretrained)
    explicit = {name for name in wanted if wanted[name] != usual[name]}
    for name in sorted(explicit - WEIGHT_INDEPENDENT):
        if wanted[name] != given[name]:
            raise UserError(
                f"model.{name}={wanted[name]} contradicts {source}, where it is {given[name]}; leave the setting out"
            )
    return replace(pretrained, **{name: wanted[name] for name in explicit & WEIGHT_INDEPENDENT})


def _resolved(network: TransformerConfig) -> dict[str, Any]:
    return {**asdict(network), "n_kv_heads": network.kv_heads, "embedding_size": network.embeddings}


def model_tokenizer(trained: Trained) -> Tokenizer:
    """The tokenizer of a trained model; one that does not match the network is refused."""
    tokenizer = load_tokenizer(trained.tokenizer)
    network: TransformerConfig = trained.config.model
    if tokenizer.vocabulary.size > network.embeddings:
        raise UserError(
            f"the tokenizer in {trained.tokenizer} has {tokenizer.vocabulary.size} tokens and the network "
            f"{network.embeddings}; put the tokenizer it was trained with there"
        )
    mask = read_config(trained.source).ids["mask_token_id"] if is_published(trained.source) else None
    if mask is not None and tokenizer.vocabulary.mask != mask:
        raise UserError(
            f"{trained.source}/{CONFIG} has the mask token {mask}, but the tokenizer in {trained.tokenizer} has "
            f"{tokenizer.vocabulary.mask}; put the tokenizer files of the model there"
        )
    return tokenizer


def model_code(trained: Trained) -> CarriedCode:
    """The code of the published folder that a model is, or that its training began with."""
    return code_in(trained.source) if is_published(trained.source) else recorded_code(trained.files / CODE)


def export(trained: Trained, folder: Path, options: ExportOptions) -> list[str]:
    """Write a trained network in the published format: config.json, safetensors, tokenizer, sampling settings, and the
    code of the published model that training began with."""
    tokenizer = model_tokenizer(trained)
    network: TransformerConfig = trained.config.model
    dtype = str(EXPORT_TYPES[options.dtype]).removeprefix("torch.")
    config = as_config(network, special_ids(tokenizer.vocabulary), dtype)
    code = model_code(trained)
    files = {} if code.why_not else code.contents()

    def write_other_files(target: Path) -> None:
        copy_tokenizer_files(trained.tokenizer, target)
        tokenizer.save(target)
        write_json(target / CONFIG, config)
        write_code(target, code, files)
        write_json(target / SAMPLING, asdict(_limit_length(network, trained.config.sampling)))
        lines, header = usage("path/to/this/folder", code, target), {"pipeline_tag": "text-generation", **library(code)}
        sections = {"Code": about_code(code)}
        card = trained_card(
            trained, ABOUT, lines, options.licence, base=_base(trained), header=header, sections=sections
        )
        write_card(target, card)

    write_model(trained, lambda: Transformer(network), folder, options, write_other_files)
    return usage(folder, code, folder)


def _base(trained: Trained) -> str | None:
    """What training began with, for the card; of a folder without its run nobody knows."""
    if not is_checkpoint(trained.source):
        return None
    source = trained.config.init_from or trained.config.continue_from
    return f"`{told_text(source) or 'a model whose name is not told'}`" if source else "none, a fresh network"


def copy_tokenizer_files(source: Path, target: Path) -> None:
    """Copy the files of a tokenizer that `Tokenizer.save` does not write, such as its chat template; no code."""
    target.mkdir(parents=True, exist_ok=True)
    found = {file for pattern in TOKENIZER_FILES for file in source.glob(pattern) if file.is_file()}
    for file in sorted(file for file in found if file.suffix != ".py"):
        shutil.copyfile(file, target / file.name)


def special_ids(vocabulary: Vocabulary) -> Mapping[str, int]:
    """The special tokens as a published configuration names them."""
    ids = {"mask_token_id": vocabulary.required_mask, "eos_token_id": vocabulary.eos, "pad_token_id": vocabulary.eos}
    return ids if vocabulary.bos is None else {**ids, "bos_token_id": vocabulary.bos}
