"""What is refused before a run is recorded: with the mistake corrected, the same command then works."""

from samestep import UserError, World, open_causal_lm
from samestep.core.paths import expand_home
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.dump import dump_folder, read_key
from samestep.recipes.lens.language_model import BUILT_IN, open_language_model
from samestep.recipes.lens.pretokenize import texts_of


def resolve_config(config: LensConfig) -> LensConfig:
    """The configuration as it is, if its layer, its dump and its texts are there."""
    check_layers(config)
    folder = dump_folder(config)
    if folder is not None:
        key = read_key(folder)
        if (key.get("model") == BUILT_IN) != (config.model_name is None):
            raise UserError(
                f"Set model_name, or name another dump: that in {folder} is of another model, {key.get('model')}."
            )
        if key.get("layer") != config.layer_l:
            raise UserError(
                f"Set layer_l to {key.get('layer')}, or name another dump: that in {folder} is of that layer."
            )
    elif config.model_name is None:
        texts_of(config, open_language_model(config, World.single()))
    return config


def check_layers(config: LensConfig) -> None:
    """Refuse a layer that the model does not have, where that is known without a download."""
    layers = _layers(config)
    named = {"layer_l": config.layer_l, "trainable_components.encoder.layer": config.trainable_components.encoder.layer}
    for name, layer in named.items():
        if layers is not None and layer is not None and not 0 <= layer < layers:
            raise UserError(f"Set {name} from 0 to {layers - 1}: the model has {layers} layers; it is {layer}.")


def _layers(config: LensConfig) -> int | None:
    if config.model_name is None:
        return config.pretrain.network.n_layers
    path = expand_home(config.model_name)
    if not path.is_dir():
        return None
    return int(open_causal_lm(path).config.get_text_config(decoder=True).num_hidden_layers)
