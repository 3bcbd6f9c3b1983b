"""The names that a misspelt one may have meant: of settings, verbs, recipes, runs, layers and arguments."""

import difflib
from collections.abc import Iterable

LEAST_SIMILARITY = 0.6
AT_MOST = 3


def nearest(name: str, names: Iterable[str], *, at_most: int = AT_MOST, least: float = LEAST_SIMILARITY) -> list[str]:
    """The names most similar to `name`, the nearest first: by the full name or by its last part, so that `backend`
    finds `distributed.backend`. Capitals and dashes make no difference."""
    wanted = spelled(name)

    def similarity(known: str) -> float:
        pairs = ((wanted, spelled(known)), (wanted.rpartition(".")[2], spelled(known).rpartition(".")[2]))
        return max(difflib.SequenceMatcher(None, *pair).ratio() for pair in pairs)

    scored = sorted(((similarity(known), known) for known in dict.fromkeys(names)), key=lambda pair: -pair[0])
    return [known for score, known in scored[:at_most] if score >= least]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """` (did you mean 'train'?)`, to stand after a name that does not exist; empty if none is similar."""
    near = nearest(name, names, at_most=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def spelled(name: str) -> str:
    """A name as settings are spelled."""
    return name.replace("-", "_").lower()
