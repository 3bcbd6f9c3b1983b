"""A trained language model as a folder that other programs open: `AutoModelForCausalLM.from_pretrained`, or peft.

A model that came from a folder of transformers goes back under its own class, with its tokenizer and its chat template.
The built-in one becomes the Llama that computes the same (models/llama_form.py). Adapters are added to their base, or
kept: then the folder is one of peft, and the base is the model that training began with.
"""

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep.core.errors import UserError
from samestep.core.json_files import read_object, write_json
from samestep.data.tokenizer.vocabulary import BYTES
from samestep.kit.language_model import BUILT_IN, ByteModel, FolderModel, LanguageModel
from samestep.models.causal_folder import without_progress_bars
from samestep.models.llama_form import byte_tokenizer, llama_config, llama_names
from samestep.models.older_names import write_older_names
from samestep.train.learner.lora import adapter_weights, base_state, has_adapters, merged_weights
from samestep.train.trained.export import (
    EXPORT_TYPES,
    ExportOptions,
    check_target,
    quoted,
    save_weights,
    staging_folder,
    told_record,
)
from samestep.train.trained.model_card import ModelCard, trained_card, write_card
from samestep.train.trained.published import PEFT, TRANSFORMERS
from samestep.train.trained.told import is_of_hub, told_text
from samestep.train.trained.trained_model import Trained
from samestep.world.world import World

_ADAPTERS = "adapter_model.safetensors"
assert BYTES.bos is not None
_SPECIAL = {"mask": BYTES.required_mask, "eos": BYTES.eos, "bos": BYTES.bos}
_ANYWHERE = "path/to/this/folder"


def is_language_model(trained: Trained) -> bool:
    """Whether the learner that is meant is a causal language model."""
    offered = trained.recipe.language_models
    return offered is not None and trained.learner_name() in offered(trained.config)


def export_language_model(trained: Trained, folder: Path, options: ExportOptions) -> list[str]:
    """Write the folder. Returns lines of Python that load it."""
    assert trained.recipe.language_models is not None
    check_target(folder, options.overwrite)
    require_transformers()
    if trained.form:
        raise UserError(f"{trained.source} has that form already; export the run that it came from.")
    learner = trained.learner_name()
    model = trained.recipe.language_models(trained.config)[learner](World.single())
    network = trained.network(learner, dtype=torch.float32)
    is_kept = options.adapters == "keep"
    if is_kept:
        _require_kept_adapters(model, network)
    # What had a name is read from the folder itself; the nameless one is built from its settings.
    is_named, setting = model.name != BUILT_IN, trained.recipe.model_settings.get(learner)
    form = PEFT if is_kept else TRANSFORMERS if is_named else ""
    models = {setting: "."} if form == TRANSFORMERS and setting else {}
    with staging_folder(folder, options.overwrite, told_record(trained, learner, form, models)) as staging:
        if is_kept:
            write_adapters(staging, network, options, base=model.name)
        else:
            is_plain = isinstance(model, FolderModel) and not has_adapters(network)
            whole = network if is_plain else plain_network(model, merged_weights(network))
            write_network(staging, whole, EXPORT_TYPES[options.dtype], options)
        write_tokenizer(staging, model)
        write_card(staging, _card(trained, model, options))
    return _usage(str(folder), model.name, options)


def require_transformers() -> None:
    """Refuse where the library is missing."""
    if find_spec("transformers") is None:
        raise UserError(
            'Install transformers with: pip install "samestep[hf]", or name FILE.safetensors for the weights alone.'
        )


def write_network(folder: Path, network: Any, dtype: torch.dtype, options: ExportOptions) -> None:
    """A network of transformers in a type, with its configuration."""
    with without_progress_bars():
        network.to(dtype).save_pretrained(folder, max_shard_size=options.max_shard_size)
    for file in folder.glob("*.safetensors"):  # which the library makes readable by their owner only
        file.chmod((folder / "config.json").stat().st_mode & 0o777)
    write_older_names(folder)


def plain_network(model: LanguageModel, weights: Mapping[str, Tensor]) -> nn.Module:
    """The network of transformers that computes what that of a model does, in float32, with these weights."""
    if isinstance(model, FolderModel):
        network = model.folder.network().float()
        network.load_state_dict(weights)
        return network
    assert isinstance(model, ByteModel)
    from transformers import GenerationConfig, LlamaForCausalLM

    names = llama_names(weights)
    assert names is not None, "the built-in network has other names"
    llama: Any = LlamaForCausalLM(llama_config(model.shape, model.bos, model.text_end))
    llama.load_state_dict({names[name]: weight for name, weight in weights.items()})
    ids = {"bos_token_id": model.bos, "eos_token_id": list(model.eos), "pad_token_id": model.pad}
    # What samestep never writes with it either: the mask, and rows of the embedding without a token.
    llama.generation_config = GenerationConfig(**ids, suppress_tokens=list(model.forbidden))
    return llama


def write_tokenizer(folder: Path, model: LanguageModel) -> None:
    """The tokenizer with its chat template."""
    tokenizer = model.folder.tokenizer if isinstance(model, FolderModel) else byte_tokenizer(_SPECIAL)
    tokenizer.save_pretrained(folder)
    write_older_names(folder)


def _require_kept_adapters(model: LanguageModel, network: nn.Module) -> None:
    """Refuse adapters that are none without a base which others have."""
    if not has_adapters(network):
        raise UserError("Leave out --adapters: the whole network was trained, and there are none.")
    if isinstance(model, ByteModel):
        raise UserError("Leave out --adapters keep: the base is the built-in network, which peft cannot open.")
    assert isinstance(model, FolderModel)
    stored = model.folder.network().float().state_dict()
    used = base_state(network)
    if stored.keys() != used.keys() or not all(torch.equal(stored[name], used[name]) for name in stored):
        raise UserError(
            "Leave out --adapters keep: they stand on weights of a run, not on those in the folder of "
            f"{model.folder.path.name}."
        )


def write_adapters(
    folder: Path, network: nn.Module, options: ExportOptions, *, base: str | None, adapter: str | None = None
) -> None:
    """A folder of peft. Its base is named where others have it too; else it is given to peft by who loads it."""
    config, weights = adapter_weights(network, adapter)
    if base is not None and is_of_hub(base):
        config.base_model_name_or_path, _, revision = base.partition("@")
        config.revision = revision or None
    config.task_type = "CAUSAL_LM"
    config.inference_mode = True
    config.save_pretrained(folder)
    file = folder / "adapter_config.json"
    write_json(file, {**read_object(file), "target_modules": sorted(config.target_modules)})  # peft has them in a set
    save_weights(folder / _ADAPTERS, weights, EXPORT_TYPES[options.dtype])


def _usage(folder: str, base: str, options: ExportOptions) -> list[str]:
    """Lines of Python that load it."""
    tokenizer = f"tokenizer = AutoTokenizer.from_pretrained({quoted(folder)})"
    if options.adapters == "merge":
        whole = f"model = AutoModelForCausalLM.from_pretrained({quoted(folder)})"
        return ["from transformers import AutoModelForCausalLM, AutoTokenizer", "", whole, tokenizer]
    name, _, revision = base.partition("@") if is_of_hub(base) else (base, "", "")
    at = f', revision="{revision}"' if revision else ""
    return [
        "from peft import PeftModel",
        "from transformers import AutoModelForCausalLM, AutoTokenizer",
        "",
        f"base = AutoModelForCausalLM.from_pretrained({quoted(name)}{at})",
        f"model = PeftModel.from_pretrained(base, {quoted(folder)})",
        tokenizer,
    ]


def _card(trained: Trained, model: LanguageModel, options: ExportOptions) -> ModelCard:
    is_whole = options.adapters == "merge"
    what = "A causal language model" if is_whole else "LoRA adapters of a causal language model"
    base = told_text(model.name) or "a model whose name is not told"
    return trained_card(
        trained,
        f"{what} that was trained with samestep." + " Its tokens are bytes." * isinstance(model, ByteModel),
        _usage(_ANYWHERE, base, options),
        options.licence,
        base="none, a small network of samestep's own" if isinstance(model, ByteModel) else f"`{base}`",
        header={
            "library_name": "transformers" if is_whole else "peft",
            "pipeline_tag": "text-generation",
            "base_model": hub_base(model),
        },
    )


def hub_base(model: LanguageModel) -> Sequence[str]:
    """The model of the Hub that it began as, for a card's header."""
    return [model.name.partition("@")[0]] if is_of_hub(model.name) else []
