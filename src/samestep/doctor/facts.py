"""What the recorded lines of an update say for certain about why a row's loss may change, and candidates otherwise."""

from collections.abc import Iterable

from samestep.doctor.trace import Line

SLIGHT = 1e-4
"""A difference below this may be rounding: it is never called a mistake of weights."""
LOW_PRECISION = "arithmetic in float32 or less"


def candidates(*causes: str) -> str:
    """Causes that the evidence leaves open."""
    return f"candidates: {'; '.join(causes)}"


def facts(lines: Iterable[Line]) -> str:
    """What happened in an update that makes a row's loss depend on more than the row; empty when nothing did."""
    held = list(lines)
    drew = [name for name in ("torch", "numpy", "python") if any(name in line.get("drew", ()) for line in held)]
    norms = sorted({name for line in held for name in line.get("batch_norms", ())})
    found = []
    if norms:
        more = f" and {len(norms) - 1} more" if len(norms) > 1 else ""
        found.append(
            f"BatchNorm module {norms[0]!r}{more} normalises a row with the statistics of its micro-batch (use a norm "
            "of single rows, or keep it in evaluation mode)"
        )
    if drew:
        found.append(
            f"random numbers were drawn from {_listed(drew)} own generator during the update (dropout, "
            f"{_EXAMPLES[drew[0]]}?), which depend on the rank and on the row's place (key them by batch['ids'] with "
            "samestep.noise; dropout: samestep.keyed_dropout)"
        )
    return ", and ".join(found)


_EXAMPLES = {"torch": "torch.rand", "numpy": "np.random", "python": "random.random"}


def _listed(names: list[str]) -> str:
    return " and ".join(f"{name}'s" for name in names)
