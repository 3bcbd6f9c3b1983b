"""Published LLaDA models, in and out: a folder as a configuration, and a trained network as a folder.

Such a folder holds `config.json`, the weights as safetensors (one file, or several with an index) under the names of
`Transformer` with `model.` in front, and the files of a tokenizer.
"""

import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from samestep.core.config import build
from samestep.core.errors import UserError
from samestep.core.records import read_json, read_json_if_readable, write_json
from samestep.data.tokenizer import load_tokenizer
from samestep.data.tokenizer.vocabulary import Tokenizer, Vocabulary
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.train.pretrained.export import ExportOptions, write_model
from samestep.train.pretrained.trained import Trained

CONFIG = "config.json"
KIND = "llada"
SHAPE = (
    "d_model",
    "n_layers",
    "n_heads",
    "mlp_hidden_size",
    "vocab_size",
    "max_sequence_length",
    "rope_theta",
    "rms_norm_eps",
)
"""Fields that must be there: a network with another value would be another one."""
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
"""What the published code can do in other ways too, and this network in just one."""
IDS = ("mask_token_id", "eos_token_id", "pad_token_id", "bos_token_id")


@dataclass(frozen=True)
class Published:
    """What the configuration of a published model says."""

    network: TransformerConfig
    ids: Mapping[str, int]
    """The special tokens it names: mask_token_id, and mostly eos_token_id and pad_token_id."""


def is_published(folder: Path) -> bool:
    """Whether a folder holds a published LLaDA model."""
    found = read_json_if_readable(folder / CONFIG)
    return isinstance(found, dict) and found.get("model_type", KIND) == KIND and "d_model" in found


def read_config(folder: Path) -> Published:
    """The network and the special tokens of a published model; what this network does not do is refused by name."""
    path = folder / CONFIG
    found = read_json_if_readable(path)
    if not isinstance(found, dict):
        raise UserError(f"{path} is missing or is not JSON; give a folder with a published LLaDA model.")
    if found.get("model_type", KIND) != KIND:
        raise UserError(f"{path} is of a {found['model_type']!r}; give a folder with a published LLaDA model.")
    _refuse_other_networks(path, found)
    absent = [name for name in SHAPE if found.get(name) is None]
    if absent:
        raise UserError(f"{path} does not say {', '.join(absent)}; fetch or copy it again.")
    shape = {name: found[name] for name in (*SHAPE, *OPTIONAL) if found.get(name) is not None}
    try:
        network = build(TransformerConfig, shape)
    except UserError as error:
        raise UserError(f"{path} cannot be used: {error}") from None
    return Published(network, _ids(path, found, network))


def as_config(network: TransformerConfig, ids: Mapping[str, int], dtype: str) -> dict[str, Any]:
    """The content of `config.json` for a network whose weights are stored as `dtype`."""
    if network.causal:
        raise UserError("the published format knows no causal network; only one with causal=false can be written so")
    shape = {name: getattr(network, name) for name in (*SHAPE, *OPTIONAL)}
    shape |= {"n_kv_heads": network.kv_heads, "embedding_size": network.embeddings}
    content = {"architectures": ["LLaDAModelLM"], "model_type": KIND, **shape, **FIXED, **ids}
    _ids(Path(CONFIG), content, network)
    return {**content, "flash_attention": False, "use_cache": False, "torch_dtype": dtype}


def _refuse_other_networks(path: Path, found: Mapping[str, Any]) -> None:
    for name, ours in FIXED.items():
        theirs = found.get(name)
        # Absent or null is left to the default, and a false is as good as none.
        if theirs is not None and theirs != ours and (theirs or ours):
            raise UserError(
                f"{path} sets {name} to {json.dumps(theirs)}, which this network does not do "
                f"(it has {json.dumps(ours)}); choose another model."
            )


def _ids(path: Path, found: Mapping[str, Any], network: TransformerConfig) -> dict[str, int]:
    if found.get("mask_token_id") is None:
        raise UserError(f"{path} does not say mask_token_id; add the number of the token that stands for a hidden one.")
    ids = {name: found[name] for name in IDS if found.get(name) is not None}
    for name, number in ids.items():
        if not isinstance(number, int) or isinstance(number, bool) or not 0 <= number < network.embeddings:
            raise UserError(
                f"{path} sets {name} to {json.dumps(number)}, outside of the embedding with its "
                f"{network.embeddings} rows; correct it."
            )
    return ids


COMPANIONS = ("tokenizer*", "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "chat_template*")
"""The files of a published tokenizer."""
SAMPLING = "sampling.json"
"""How the model's run wrote text: a small network may write nothing but blanks in another way."""
FREE = {"init_std", "max_sequence_length"}
"""Settings of a network that its weights do not depend on."""
_TORCH = {"bf16": "bfloat16", "fp32": "float32"}


def read_pretrained(folder: Path) -> MdlmConfig | None:
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
