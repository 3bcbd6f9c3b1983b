"""What is refused before a run is recorded: with the mistake corrected, the same command then works."""

from dataclasses import replace

from samestep import UserError, World
from samestep.core.paths import expand_home
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.dump import dump_folder, read_key, trained_beside
from samestep.recipes.lens.language_model import (
    BUILT_IN,
    BuiltInModel,
    LanguageModel,
    open_language_model,
    prompt_tokens,
)
from samestep.recipes.lens.pretokenize import texts_of


def resolve_config(config: LensConfig) -> LensConfig:
    """The configuration with the whole path of its dump, if its layer, its lengths, its dump and its texts are
    there."""
    model = _model_at_hand(config)
    if model is not None:
        check_layers(config, model)
        check_lengths(config, model)
    folder = dump_folder(config)
    if folder is None:
        if isinstance(model, BuiltInModel):
            texts_of(config, model)
        return config
    key = read_key(folder)
    if (key.get("model") == BUILT_IN) != (config.model_name is None):
        raise UserError(
            f"Set model_name, or name another dump: that in {folder} is of another model, {key.get('model')}."
        )
    if key.get("layer") != config.layer_l:
        raise UserError(f"Set layer_l to {key.get('layer')}, or name another dump: that in {folder} is of that layer.")
    if isinstance(model, BuiltInModel):
        replace(model, weights=trained_beside(folder)).check_weights()
    return replace(config, activation_dumper=replace(config.activation_dumper, source=str(folder)))


def _model_at_hand(config: LensConfig) -> LanguageModel | None:
    """The model with random weights, or None if it may have to be downloaded."""
    if config.model_name is not None and not expand_home(config.model_name).is_dir():
        return None
    return open_language_model(config, World.single())


def check_lengths(config: LensConfig, model: LanguageModel) -> None:
    """Refuse texts that are longer than the model reads."""
    limit, columns = model.most_tokens, config.activation_dumper.seq_len
    if limit is None:
        return
    if columns > limit and config.activation_dumper.source is None:
        raise UserError(
            f"Set activation_dumper.seq_len to {limit} or less: the model reads no more tokens; it is {columns}."
        )
    prompt = 1 + sum(map(len, prompt_tokens(model, config.decoder_prompt)))
    # The decoder does not read its last token, the encoder reads all after the one that begins a text.
    longest = min(limit - prompt + 1, limit - int(model.bos is not None))
    if config.t_text > longest:
        raise UserError(
            f"Set t_text to {longest} or less: the model reads {limit} tokens, of which the decoder's prompt takes "
            f"{prompt}; it is {config.t_text}."
            if longest > 0
            else f"Shorten decoder_prompt: it has {prompt} tokens, and the model reads {limit}."
        )


def check_layers(config: LensConfig, model: LanguageModel) -> None:
    """Refuse a layer that the model does not have."""
    named = {"layer_l": config.layer_l, "trainable_components.encoder.layer": config.trainable_components.encoder.layer}
    for name, layer in named.items():
        if layer is not None and not 0 <= layer < model.layers:
            raise UserError(
                f"Set {name} from 0 to {model.layers - 1}: the model has {model.layers} layers; it is {layer}."
            )
