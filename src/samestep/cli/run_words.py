"""The words of a verb that takes one run and may take one flag."""

from collections.abc import Sequence

from samestep.core.errors import UserError


def one_run(words: Sequence[str], verb: str, flag: str) -> tuple[str, bool]:
    """The run that was named, and whether the flag was given."""
    names = [word for word in words if not word.startswith("-")]
    unknown = [word for word in words if word.startswith("-") and word != flag]
    if unknown or len(names) != 1:
        what = f"there is no option {unknown[0]}" if unknown else f"one run is expected, not {len(names)}"
        raise UserError(f"{what}; the command is: samestep {verb} RUN [{flag}]")
    return names[0], flag in words
