"""`samestep export RUN FOLDER`: the parts of a trained lens as others load them, and how they fit together.

language_model/            the frozen model, a folder of transformers
decoder/, encoder/         their language models, where they have some of their own: folders of transformers, or peft
projections.safetensors    what no class of transformers has: the linear maps, the prompt, a head
model.safetensors          all that was trained, by the names that `samestep.load` knows
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import nn

from samestep import Trained, UserError, World
from samestep.core.config import dump
from samestep.kit.language_model import ByteModel, FolderModel, LanguageModel
from samestep.kit.transformers_export import (
    export_language_model,
    hub_base,
    is_language_model,
    plain_network,
    require_transformers,
    write_adapters,
    write_network,
    write_tokenizer,
)
from samestep.recipes.lens.activations import model_of
from samestep.recipes.lens.network import Lens
from samestep.recipes.lens.parts import Kind
from samestep.recipes.lens.task import LEARNER
from samestep.train.learner.lora import base_state, frozen_names, merged_weights
from samestep.train.trained.export import (
    EXPORT_TYPES,
    ExportOptions,
    check_target,
    quoted,
    save_weights,
    staging_folder,
    told_record,
)
from samestep.train.trained.model_card import code_block, trained_card, write_card
from samestep.train.trained.published import PublishedRecord

_MODEL = "language_model"
_PROJECTIONS = "projections/model.safetensors"
_EXAMPLE = Path(__file__).with_name("exported_example.txt")


def export(trained: Trained, folder: Path, options: ExportOptions) -> list[str]:
    """Write the folder, or that of the built-in model alone. Returns lines of Python that load it."""
    if is_language_model(trained):
        return export_language_model(trained, folder, options)
    check_target(folder, options.overwrite)
    require_transformers()
    model = model_of(trained, World.single())
    network = trained.network(LEARNER)
    assert isinstance(network, Lens)
    if options.adapters == "keep":
        _require_kept_adapters(model, network)
    is_folder = isinstance(model, FolderModel)
    record = _record(trained, model)
    with staging_folder(folder, options.overwrite, record) as staging:
        half = torch.bfloat16 if options.dtype == "bf16" else None
        # A model that was named is in a folder of its own here, and read from that.
        left_out = frozen_names(network) if is_folder else set()
        trained_state = {name: value for name, value in network.state_dict().items() if name not in left_out}
        save_weights(staging / "model.safetensors", trained_state, half, record)
        network.float()
        _write_frozen(staging / _MODEL, model, network, options)
        parts = {part: _write_part(staging, part, model, network, options) for part in ("decoder", "encoder")}
        (staging / _PROJECTIONS).parent.mkdir()
        save_weights(staging / _PROJECTIONS, _own_weights(network), EXPORT_TYPES[options.dtype])
        card = trained_card(
            trained,
            f"A lens on block {network.shape.layer} of a frozen language model: a decoder puts an activation into "
            f"words, an encoder rebuilds the activation from {network.shape.t_text} tokens.",
            load_lines("path/to/this/folder", parts),
            options.licence,
            base=f"`{hub_base(model)[0]}`" if hub_base(model) else f"the one in `{_MODEL}`",
            header={"library_name": "transformers", "base_model": hub_base(model)},
            sections={"How the parts fit together": _fitting(network, model)},
        )
        write_card(staging, card)
    return load_lines(str(folder), parts)


def _record(trained: Trained, model: LanguageModel) -> PublishedRecord:
    """What `samestep.load` needs, without the run and the model that were named: of the built-in network the shape."""
    if isinstance(model, FolderModel):
        return told_record(trained, LEARNER, models=dict.fromkeys(("model_name", "tokenizer_name"), _MODEL))
    assert isinstance(model, ByteModel)
    record, config = told_record(trained, LEARNER), trained.config
    own = dump(replace(config, model_name=None, pretrain=replace(config.pretrain, network=model.shape)))
    return replace(record, config={**(record.config or {}), "model_name": None, "pretrain": own["pretrain"]})


def _require_kept_adapters(model: LanguageModel, network: Lens) -> None:
    if "lora" not in (network.shape.decoder, network.shape.encoder):
        raise UserError("Leave out --adapters: neither decoder nor encoder has any.")
    if not isinstance(model, FolderModel):
        raise UserError("Leave out --adapters keep: the base is the built-in network, whose layers peft cannot name.")


def _write_frozen(folder: Path, model: LanguageModel, network: Lens, options: ExportOptions) -> None:
    """The frozen model in the type it is stored in, unless that is to be halved."""
    dtype = torch.bfloat16 if options.dtype == "bf16" else getattr(torch, model.dtype)
    write_network(folder, plain_network(model, base_state(network.model)), dtype, options)
    write_tokenizer(folder, model)


def _write_part(folder: Path, part: str, model: LanguageModel, network: Lens, options: ExportOptions) -> str:
    """The language model of the decoder or the encoder. Returns a Python expression that opens it in the folder."""
    kind: Kind = getattr(network.shape, part)
    if kind == "lora" and options.adapters == "keep":
        write_adapters(folder / part, network.model, options, base=None, adapter=part)
        return f'PeftModel.from_pretrained({_opened(_MODEL)}, f"{{folder}}/{part}").get_base_model()'
    if kind == "frozen":
        return _opened(_MODEL)
    own: nn.Module = network.model if kind == "lora" else getattr(network, part).model
    weights = merged_weights(own, adapter=part if kind == "lora" else None)
    write_network(folder / part, plain_network(model, weights), EXPORT_TYPES[options.dtype], options)
    write_tokenizer(folder / part, model)
    return _opened(part)


def _opened(part: str) -> str:
    return f'AutoModelForCausalLM.from_pretrained(f"{{folder}}/{part}").float().eval()'


def _own_weights(network: Lens) -> dict[str, torch.Tensor]:
    """What decoder and encoder have beside their language models."""
    parts = {"decoder": network.decoder, "encoder": network.encoder}
    state = {f"{name}.{own}": value for name, part in parts.items() for own, value in part.state_dict().items()}
    return {name: value for name, value in state.items() if ".model." not in name}


def load_lines(folder: str, parts: dict[str, str]) -> list[str]:
    """Lines of Python that load all parts."""
    libraries = ["import torch", "from safetensors.torch import load_file"]
    libraries += ["from peft import PeftModel"] * any("PeftModel" in opened for opened in parts.values())
    return [
        *libraries,
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"folder = {quoted(folder)}",
        f'tokenizer = AutoTokenizer.from_pretrained(f"{{folder}}/{_MODEL}")',
        f"model = {_opened(_MODEL)}",
        *(f"{name} = {opened}" for name, opened in parts.items()),
        f'weights = load_file(f"{{folder}}/{_PROJECTIONS}")',
        "weights = {name: value.float() for name, value in weights.items()}",
    ]


def _fitting(network: Lens, model: LanguageModel) -> str:
    """How an activation becomes a text and a text an activation, in Python."""
    shape = network.shape
    blocks = _blocks_in(model, network)
    values = {
        "BLOCKS": repr(blocks),
        "LAYER": shape.layer,
        "READ_LAYER": shape.read_layer,
        "LENGTH": shape.t_text,
        "BEFORE": network.decoder.slot,
        "FIRST": [] if shape.bos is None else [shape.bos],
    }
    constants = [f"{name} = {value}" for name, value in values.items()]
    lines: Sequence[str] = _EXAMPLE.read_text(encoding="utf-8").splitlines()
    text = (
        "Transformers has no class for the whole: the linear maps, the vectors of the decoder's prompt"
        + (" and the decoder's head" if network.decoder.head is not None else "")
        + " are beside them, as plain tensors. After the lines above:"
    )
    return f"{text}\n\n{code_block('python', [*constants, '', *lines])}"


def _blocks_in(model: LanguageModel, network: Lens) -> str:
    """The name of the list of blocks in the network of transformers."""
    if not isinstance(model, FolderModel):
        return "model.layers"
    first = network.shard_units[0]
    name = next(name for name, part in network.model.named_modules() if part is first)
    return name.rpartition(".")[0]
