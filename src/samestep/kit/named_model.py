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

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.core.errors import UserError
from samestep.core.paths import expand_home
from samestep.data.tokenizer import has_tokenizer
from samestep.kit.find_trained import choose_trained, find_trained, split_name
from samestep.kit.language_model import ByteModel, FolderModel, LanguageModel
from samestep.models.causal_folder import open_causal_lm
from samestep.models.causal_lm import CausalConfig
from samestep.models.hub import resolve_model
from samestep.train.learner.lora import has_adapters, merged_weights
from samestep.train.trained.trained_model import Trained, open_trained
from samestep.world.world import World

KIND = "causal language model"


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
    if (found := find_trained(name, world, _models_of, KIND)) is not None:
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
        named = split_name(name) if world.is_main else None
        return None if named is None or has_tokenizer(Path(named[0])) else str(_tokenizer_of(name, *named))

    found = world.run_on_all_ranks(f"finding the tokenizer of {name}", find)[0]
    return resolve_model(name, world, weights=False) if found is None else Path(found)


def _tokenizer_of(name: str, source: str, learner: str | None) -> Path:
    """That of a run, a checkpoint or an exported model: its own, or that of the model that its training began with."""
    trained = open_trained(source, learner=learner)
    if has_tokenizer(trained.tokenizer):
        return trained.tokenizer
    models = _models_of(trained)
    model = models[choose_trained(name, source, learner, _models_of, KIND).learner](World.single()) if models else None
    if isinstance(model, FolderModel):
        return model.folder.tokenizer_folder
    raise UserError(f"Name another tokenizer than that of {name}: its tokens are bytes, or it has none to read.")


def is_at_hand(name: str | None) -> bool:
    """Whether nothing has to be downloaded for the model of a name."""
    return name is None or expand_home(name).exists() or split_name(name) is not None


def _models_of(trained: Trained) -> Mapping[str, Any]:
    """By learner, a function of the world that opens the language model that its training began with."""
    offered = trained.recipe.language_models
    return {} if offered is None else offered(trained.config)


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
