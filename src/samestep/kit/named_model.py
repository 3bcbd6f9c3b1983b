"""The language model that a user named, and the tokenizer of whatever model is named.

    null                            the built-in one, on bytes
    models/SmolLM2-135M             a folder with a causal model of transformers
    org/name, org/name@revision     a model of the Hugging Face Hub, which is downloaded once for all ranks
    runs/stories:generator          a run of samestep, by path or by name, or one of its checkpoints; its learner can be
                                    left out where only one is a language model
    exported                        what `samestep export` wrote

A run names its recipe, and that says which of its learners are language models (`Recipe.language_models`). Their
adapters are added to their base.
"""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from samestep.core.config import listed
from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.data.tokenizer import has_tokenizer
from samestep.kit.language_model import ByteModel, FolderModel, LanguageModel
from samestep.models.causal_folder import open_causal_lm
from samestep.models.causal_lm import CausalConfig
from samestep.models.hub import resolve_model
from samestep.train.learner.lora import has_adapters, merged_weights
from samestep.train.record.run_record import run_path
from samestep.train.trained.published import read_record
from samestep.train.trained.trained_model import Trained, open_trained
from samestep.train.weights.sources import is_checkpoint, is_run
from samestep.world.world import World


def open_language_model(
    name: str | None,
    world: World,
    *,
    shape: CausalConfig,
    setting: str = "network",
    dtype: str = "auto",
    tokenizer: str | None = None,
) -> LanguageModel:
    """The model of a name; `shape` is that of the built-in one, and `setting` what a user calls it. `dtype` is the type
    of the weights of any other, `auto` as they are stored; `tokenizer` names a folder or a model of the Hub to take the
    tokenizer from. Collective, since it may be downloaded."""
    if name is None:
        return ByteModel(shape, setting=setting)
    if (found := _find_trained(name, world)) is not None:
        if tokenizer:
            raise UserError(f"Leave out the tokenizer {tokenizer}: {name} was trained with its own.")
        trained = open_trained(found.source, learner=found.learner)
        model = _in_type(_models_of(trained)[found.learner](world), dtype)
        make = partial(_trained_network, trained, model, dtype)
        return replace(model, name=name, make=make, made_from={"weights": trained.weight_files()})
    folder = resolve_model(name, world)
    own = find_tokenizer(tokenizer, world) if tokenizer else None
    return FolderModel(open_causal_lm(folder, dtype=dtype, tokenizer=own), name)


def find_tokenizer(name: str, world: World) -> Path:
    """The folder with the tokenizer of a model that a user named: a folder, a model of the Hub, of which no weights are
    downloaded, a run, a checkpoint, or an exported one. Collective."""

    def find() -> str | None:
        named = _split(name) if world.is_main else None
        return None if named is None or has_tokenizer(Path(named[0])) else str(_tokenizer_of(name, *named))

    found = world.run_on_all_ranks(f"finding the tokenizer of {name}", find)[0]
    return resolve_model(name, world, weights=False) if found is None else Path(found)


def _tokenizer_of(name: str, source: str, learner: str | None) -> Path:
    """That of a run, a checkpoint or an exported model: its own, or that of the model that its training began with."""
    trained = open_trained(source, learner=learner)
    if has_tokenizer(trained.tokenizer):
        return trained.tokenizer
    models = _models_of(trained)
    model = models[_choose(name, source, learner).learner](World.single()) if models else None
    if isinstance(model, FolderModel):
        return model.folder.tokenizer_folder
    raise UserError(f"Name another tokenizer than that of {name}: its tokens are bytes, or it has none to read.")


def is_at_hand(name: str | None) -> bool:
    """Whether nothing has to be downloaded for the model of a name."""
    return name is None or expand_home(name).exists() or _split(name) is not None


class _Named(NamedTuple):
    source: str
    """A checkpoint, or what was exported."""
    learner: str


def _find_trained(name: str, world: World) -> _Named | None:
    """The trained model of a name, or None if it is none of samestep: rank 0 looks, as a run that still trains may save
    another checkpoint meanwhile. Collective."""

    def find() -> list[str] | None:
        named = _split(name) if world.is_main else None
        return None if named is None else list(_choose(name, *named))

    found = world.run_on_all_ranks(f"finding {name}", find)[0]
    return None if found is None else _Named(*found)


def _split(name: str) -> tuple[str, str | None] | None:
    """The path of a run, a checkpoint or an exported model, and the learner that is named; None if it is none."""
    text, _, learner = name.rpartition(":")
    for source, wanted in ((name, None), (text, learner)):
        path = expand_home(run_path(source, "runs")) if source else Path()
        if source and (is_run(path) or is_checkpoint(path) or _is_exported(path)):
            return str(path), wanted
    return None


def _is_exported(path: Path) -> bool:
    """Whether a recipe is needed to open what is there; a folder of transformers is opened like any other."""
    is_one = path.is_dir() or (path.is_file() and path.suffix == ".safetensors")
    record = read_record(path) if is_one else None
    return record is not None and not record.form


def _choose(name: str, source: str, learner: str | None) -> _Named:
    """The checkpoint and the learner that are meant."""
    trained = open_trained(source)
    known = _models_of(trained)
    if not is_run(Path(source)):
        known = {learner: model for learner, model in known.items() if learner in trained.learners()}
    if not known:
        raise UserError(
            f"Name another model than {name}: it is of the recipe {trained.name}, and no causal language model."
        )
    chosen = learner or (next(iter(known)) if len(known) == 1 else "")
    if chosen not in known:
        choices = listed([f"{source}:{one}" for one in known], "or")
        raise UserError(f"Say which language model of {source} is meant: {choices}; {name} names none of them.")
    if chosen not in trained.learners():  # one of an earlier stage
        trained = open_trained(source, learner=chosen)
    return _Named(str(trained.source), chosen)


def _models_of(trained: Trained) -> dict[str, Any]:
    """By learner, a function of the world that opens the language model that its training began with."""
    offered = trained.recipe.language_models
    return {} if offered is None else dict(offered(trained.config))


def _in_type(model: Any, dtype: str) -> Any:
    """The model with weights of another type, unless it is `auto`."""
    if dtype == "auto":
        return model
    if isinstance(model, FolderModel):
        return replace(model, folder=replace(model.folder, dtype=dtype))
    return replace(model, dtype=dtype)


def _trained_network(trained: Trained, model: LanguageModel, dtype: str) -> nn.Module:
    """The plain network with its trained weights."""
    if torch.get_default_device().type == "meta":
        raise RuntimeError("a trained network has values, and cannot be built without")
    network = trained.network()
    if has_adapters(network):
        weights = merged_weights(network)
        network = model.network()
        network.load_state_dict(weights)
    network.has_weights = True  # type: ignore[assignment]  # so that a learner does not draw them anew
    is_of_proof = next(network.parameters()).dtype == torch.float64  # which is not rounded
    return network if dtype == "auto" or is_of_proof else network.to(getattr(torch, dtype))
