"""The frozen language model: the one that is named, or the built-in one with the weights of the first stage."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from samestep import CausalConfig, CausalTransformer, LanguageModel, UserError, World, open_language_model
from samestep.kit.language_model import ByteModel, FolderModel, first_tokens
from samestep.parallel.build import build_uninitialized
from samestep.recipes.lens.config import SLOT, LensConfig
from samestep.train.learner.frozen import read_copy

LANGUAGE_MODEL = "language_model"
"""The learner of the built-in one."""


def open_model(config: LensConfig, world: World, weights: Path | None = None) -> LanguageModel:
    """The model that a configuration names; `weights` are those of the built-in one, which are random without.
    Collective: it may be downloaded."""
    shape = config.pretrain.network
    model = open_language_model(
        config.model_name,
        world,
        shape=shape,
        setting="pretrain.network",
        # Weights that are trained are float32, whatever they are stored in.
        dtype="float32" if config.trainable_components.has_copy else config.model_dtype,
        tokenizer=config.tokenizer_name,
    )
    if isinstance(model, FolderModel):
        _check_tokenizer(model)
    if weights is None or config.model_name is not None:
        return model
    assert isinstance(model, ByteModel)
    made_from = {"weights": {weights.name: weights}}
    return replace(model, make=lambda: pretrained(shape, weights), made_from=made_from)


def pretrained(shape: CausalConfig, weights: Path) -> nn.Module:
    """The built-in network with the weights that the first stage left."""
    check_weights(shape, weights)
    network = CausalTransformer(shape)
    read_copy(weights).fill(network.state_dict())
    return network


def check_weights(shape: CausalConfig, weights: Path) -> None:
    """Refuse a file that is not there, or is of another shape."""
    if not weights.is_file():
        raise UserError(f"{weights} is gone, the built-in language model; put it back, or start a new run.")
    expected = build_uninitialized(lambda: CausalTransformer(shape)).state_dict()
    found = read_copy(weights).layout
    if {name: weight.shape for name, weight in found.items()} != {n: w.shape for n, w in expected.items()}:
        raise UserError(f"Set pretrain.network as in the run that trained {weights}: it has another shape there.")


def _check_tokenizer(model: FolderModel) -> None:
    """Refuse a tokenizer with tokens that the model does not know."""
    largest, rows = max(model.folder.tokenizer.get_vocab().values()), int(model.folder.text_config.vocab_size)
    if largest >= rows:
        raise UserError(
            f"Set tokenizer_name to the tokenizer of {model.name}: that in {model.folder.tokenizer_folder} does not "
            f"match the model, since it has tokens up to {largest}, and the model knows {rows}."
        )


def prompt_tokens(model: LanguageModel, prompt: str) -> tuple[list[int], list[int]]:
    """The tokens before and after the activation's place in the decoder's prompt."""
    before, after = prompt.split(SLOT)
    return [*first_tokens(model), *model.encode(before)], model.encode(after)


def context_of(model: LanguageModel, tokens: Sequence[int], position: int) -> dict[str, str]:
    """The text `before` the token of an activation, the `token`, and the text `after` it, which the model had not
    read; without the token that begins a text, and without padding."""
    start = int(bool(tokens) and tokens[0] == model.bos and position > 0)
    stop = len(tokens)
    while stop > position + 1 and tokens[stop - 1] == model.pad:
        stop -= 1
    return {
        "before": model.spell(tokens[start:position]),
        "token": model.spell(tokens[position : position + 1]),
        "after": model.spell(tokens[position + 1 : stop]),
    }
