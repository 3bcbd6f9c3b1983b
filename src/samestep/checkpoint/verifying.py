"""Verifying a checkpoint by all ranks that see it, each reading a share of its bytes."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from samestep.checkpoint.agree import settle
from samestep.checkpoint.files import damage_of
from samestep.checkpoint.manifest import Checkpoint
from samestep.checkpoint.shares import share_out
from samestep.core.records import Json
from samestep.world.world import World


def verified(candidate: Checkpoint, world: World, shared: bool) -> Checkpoint:
    """The candidate, either verified or with its damage, the same on every rank. Collective.

    What another rank finds damaged rank 0 reads again: a disk that one machine cannot read well is no damage.
    """
    if candidate.manifest is None:
        return candidate
    sizes = {name: record.size for name, record in candidate.manifest.files.items()}
    shares = share_out(sizes, world.size if shared else 1)
    mine = shares[world.rank] if world.rank < len(shares) else []
    claims = settle(world, f"verifying {candidate.path}", lambda: _damages(candidate, mine))
    suspects = {name for claim in claims for name in claim}

    def confirm() -> Json:
        own = claims[0]
        rest = _damages(candidate, suspects - set(own)) if world.is_main else {}
        return {**own, **rest}

    found = settle(world, f"verifying {candidate.path}", confirm)[0] if suspects else {}
    damage = found[min(found)] if found else None
    return replace(candidate, damage=damage, verified=damage is None)


def _damages(candidate: Checkpoint, names: Iterable[str]) -> dict[str, Json]:
    """What is wrong with some files of a checkpoint, by name."""
    assert candidate.manifest is not None
    files = candidate.manifest.files
    names = sorted(names)
    # hashing leaves the interpreter free, so that several files are read side by side
    with ThreadPoolExecutor(max_workers=8) as pool:
        damages = pool.map(lambda name: damage_of(candidate.path / name, files[name]), names)
        return {name: damage for name, damage in zip(names, damages) if damage}
