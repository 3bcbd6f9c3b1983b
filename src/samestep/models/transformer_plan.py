"""The transformer of a sentence encoder, built by transformers from its configuration alone, without any weight."""

import copy
import inspect
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.core.errors import UserError, first_line
from samestep.core.json_files import read_json_if_readable
from samestep.core.library_errors import library_sentence
from samestep.models.deferred_init import mark_unset
from samestep.models.folder_code import refuse_hub_kernels, refuse_own_code
from samestep.models.folder_fields import CONFIG, check_folder
from samestep.models.folder_weights import read_layout
from samestep.models.network_size import check_size

ATTENTIONS = ("bidirectional", "causal")
"""What the tokens of a decoder attend to: all tokens of their text, or those before them."""
_DECODERS = ("llama", "mistral", "qwen2", "qwen3")
"""The kinds whose stock class has both."""
_CROSS_ENCODER = "ForSequenceClassification"


@dataclass(frozen=True)
class TransformerPlan:
    """What a transformer is built from."""

    published: Any
    """Its configuration, an object of transformers, as it was published."""
    config: Any
    """The one to build with."""
    dtype: torch.dtype

    @classmethod
    def read(
        cls, folder: Path, dtype: str, dropout: float | None, attention: str | None = None, section: str = ""
    ) -> "TransformerPlan":
        """From the config.json of a folder. One that names code of its own is refused, unless `attention` says what its
        stock class is to compute; the name of that setting begins with `section`."""
        transformers = import_transformers()
        check_folder(folder)
        refuse_hub_kernels(folder / CONFIG)
        _check_attention(folder, attention, f"{section}attention")
        sentence = f"Give another model; {folder / CONFIG} cannot be used"
        with library_sentence(sentence):
            published = transformers.AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        _refuse_other_kinds(published, folder)
        if attention is not None:
            _set_attention(published, attention)
        plan = cls.of(published, dtype, dropout)
        with library_sentence(sentence):
            check_size(plan.build, read_layout(folder), folder)
        return plan

    @classmethod
    def of(cls, published: Any, dtype: str = "auto", dropout: float | None = 0.0) -> "TransformerPlan":
        config = copy.deepcopy(published)
        config.use_cache = False
        _set_dropout(config, dropout)
        stored = published.dtype if isinstance(published.dtype, torch.dtype) else torch.float32
        return cls(published, config, stored if dtype == "auto" else getattr(torch, dtype))

    @property
    def width(self) -> int:
        """The length of a token's vector."""
        return int(self.config.hidden_size)

    @property
    def options(self) -> dict[str, Any]:
        """What its class is built with beside its configuration: without a pooling layer, which would get no
        gradient."""
        return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(self._kind).parameters else {}

    def build(self) -> nn.Module:
        """The transformer, its parameters not set."""
        from transformers.initialization import no_init_weights

        with no_init_weights():
            built: nn.Module = self._kind._from_config(copy.deepcopy(self.config), dtype=self.dtype, **self.options)
        mark_unset(built)
        return built

    @property
    def _kind(self) -> Any:
        from transformers.models.auto.modeling_auto import MODEL_MAPPING

        return MODEL_MAPPING[type(self.config)]


def import_transformers() -> Any:
    """The library, which is an extra."""
    try:
        import transformers
    except ImportError as error:  # it is missing, or something that it needs
        raise UserError(
            f'Install transformers with: pip install "samestep[hf]"; a sentence encoder needs it ({first_line(error)}).'
        ) from error
    return transformers


def position_limit(transformer: nn.Module) -> int | None:
    """How many tokens a transformer has positions for; None where nothing limits them."""
    table = getattr(getattr(transformer, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        # Those of RoBERTa's kind begin after the padding's.
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    limit = getattr(transformer.config, "max_position_embeddings", None)
    return limit if isinstance(limit, int) and limit > 0 else None


def _refuse_other_kinds(config: Any, folder: Path) -> None:
    from transformers.models.auto.modeling_auto import MODEL_MAPPING

    if getattr(config, "quantization_config", None):
        raise UserError(f"Give the model as it was before quantization; the weights in {folder} are quantized.")
    named = (getattr(config, "architectures", None) or [config.model_type])[0]
    if named.endswith(_CROSS_ENCODER):
        raise UserError(f"Give a model that makes one vector of each text; {folder} holds a cross-encoder ({named}).")
    is_encoder = type(config) in MODEL_MAPPING and not getattr(config, "is_encoder_decoder", False)
    if not is_encoder or not isinstance(getattr(config, "hidden_size", None), int):
        raise UserError(f"Give an encoder of texts, such as a BertModel; {folder} holds a {named}.")


def _check_attention(folder: Path, attention: str | None, setting: str) -> None:
    """Refuse code of the folder's own whose meaning nobody stated, and a statement that fits no such model."""
    found = read_json_if_readable(folder / CONFIG)
    kind = found.get("model_type") if isinstance(found, dict) else None
    if attention is None:
        meant = f"Set {setting}=bidirectional or {setting}=causal to say what is meant"
        decoder = f"{meant}; its own code probably attends in both directions:"
        other = "Give another model, or a copy without auto_map if transformers' own class is meant;"
        refuse_own_code(folder / CONFIG, decoder if kind in _DECODERS else other)
    elif attention not in ATTENTIONS:
        raise UserError(f"Set {setting} to {' or '.join(ATTENTIONS)}; it is {attention!r}.")
    elif kind not in _DECODERS:
        raise UserError(f"Leave out {setting}: it is for {', '.join(_DECODERS)}, and {folder} holds a {kind}.")


def _set_attention(config: Any, attention: str) -> None:
    """Both without windows in the first case: every token sees all others. transformers reads `is_causal` since 5.2,
    and so does who reads the config.json that is written later."""
    config.is_causal = attention == "causal"
    if config.is_causal:
        return
    if getattr(config, "use_sliding_window", False):
        config.use_sliding_window = False
    if getattr(config, "sliding_window", None) is not None:
        config.sliding_window = None
    if getattr(config, "layer_types", None):
        config.layer_types = ["full_attention"] * len(config.layer_types)


def _set_dropout(config: Any, probability: float | None) -> None:
    """Set all dropout that a configuration names. Attention's own is off: no mask of it can be keyed by the sample."""
    if probability is None:
        return
    if not 0 <= probability < 1:
        raise UserError(f"Set dropout to a probability below 1, or to null for the model's own; it is {probability}.")
    for name, value in list(vars(config).items()):
        if "drop" in name and isinstance(value, float | int) and not isinstance(value, bool):
            is_kept = "att" not in name and "layer" not in name
            setattr(config, name, probability if is_kept else 0.0)
