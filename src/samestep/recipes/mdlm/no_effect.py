"""Settings that have no effect beside others."""

from samestep import NoEffect
from samestep.core.paths import expand_home
from samestep.data.text import JSONL
from samestep.recipes.mdlm.config import MdlmConfig
from samestep.recipes.mdlm.stages import holds_chats


def _is_folder(config: MdlmConfig) -> bool:
    return config.data.path is not None and expand_home(config.data.path).is_dir()


NO_EFFECT = (
    NoEffect(
        "objective.cut_rows",
        lambda c: holds_chats(c.data),
        "rows of running text are cut, and the data is chats; leave it out",
    ),
    NoEffect(
        "data.validation_fraction",
        _is_folder,
        "a prepared folder has its own; give it to samestep data prepare, or leave it out",
    ),
    NoEffect(
        "data.field",
        lambda c: not (c.data.path or "").endswith(JSONL),
        "it is for files of JSON lines; name one with data.path, or leave it out",
    ),
    NoEffect(
        "sampling.steps",
        lambda c: (c.sampling.steps or 0) > c.sampling.length,
        "there is no more than one pass for each of the tokens; lower it to sampling.length, or leave it out",
    ),
)
"""Settings that have no effect beside others."""
