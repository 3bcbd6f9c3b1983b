"""The sentence encoder that a user named.

    models/all-mpnet-base-v2        a folder of sentence-transformers or of transformers, also one that was exported
    org/name, org/name@revision     a model of the Hugging Face Hub, which is downloaded once for all ranks
    runs/encoder-1                  a run of samestep, by path or by name, one of its checkpoints, or a .safetensors
                                    file that was exported: read with the instructions that it was trained with

A run names its recipe, and that says which of its learners are sentence encoders (`Recipe.encoders`).
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from torch import Tensor

from samestep.core.errors import UserError
from samestep.kit.find_trained import find_trained
from samestep.models.sentence_encoder import SentenceEncoder
from samestep.models.sentence_folder import EncoderSource, open_encoder
from samestep.train.trained.trained_model import Trained, open_trained
from samestep.train.weights.sources import fitting_tensors, names_in
from samestep.world.world import World


def open_named_encoder(
    name: str,
    world: World,
    *,
    dtype: str = "auto",
    attention: str | None = None,
    append_eos: bool | None = None,
    section: str = "",
) -> EncoderSource:
    """The encoder of a name; see `open_encoder` for the rest. Collective, since it may be downloaded."""
    found = find_trained(name, world, _encoders_of, "sentence encoder")
    if found is None:
        return open_encoder(name, world=world, dtype=dtype, attention=attention, append_eos=append_eos, section=section)
    if attention is not None or append_eos is not None:
        raise UserError(f"Leave out {section}attention and {section}append_eos: {name} reads as it was trained.")
    trained = open_trained(found.source, learner=found.learner)
    source = _encoders_of(trained)[found.learner](world)
    files = {**source.files, "weights": trained.weight_files()}
    network = partial(_trained_network, source.network, trained)
    return replace(source, network=network, folder=trained.source, files=files)


def _encoders_of(trained: Trained) -> Mapping[str, Any]:
    """By learner, a function of the world that opens the encoder that was trained, without what it learned."""
    return {} if trained.recipe.encoders is None else trained.recipe.encoders(trained)


def _trained_network(make: Callable[[], SentenceEncoder], trained: Trained) -> SentenceEncoder:
    """The network, which begins with what was learned."""
    network = make()
    network.first_values = _Learned(trained, network)
    return network


class _Learned:
    """Weights of a trained encoder; see `FirstValues` in sentence_encoder.py."""

    def __init__(self, trained: Trained, network: SentenceEncoder) -> None:
        self._weights = trained.weights()
        fitting_tensors(network, self._weights, f"weights of {trained.source}")  # which refuses others
        self._names = names_in(self._weights, network.state_dict())

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def fill(self, name: str, weight: Tensor) -> None:
        """Copy one into a tensor of any type."""
        self._weights.fill({self._names[name]: weight})
