"""Ways in which a disk, a copy or a hand damages a checkpoint."""

import random
from pathlib import Path

KINDS = ("truncated", "bit flipped", "deleted", "swapped", "zero length")


def spoil(folder: Path, name: str, kind: str, chance: random.Random) -> list[str]:
    """Damage one file of a checkpoint; returns the names of the files that are not what they were."""
    path = folder / name
    content = path.read_bytes()
    if kind == "deleted":
        path.unlink()
    elif kind == "swapped":
        others = [p for p in sorted(folder.iterdir()) if p.read_bytes() != content]
        other = chance.choice(others)
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return [name, other.name]
    elif kind == "bit flipped":
        changed = bytearray(content)
        changed[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(changed)
    else:
        path.write_bytes(content[: chance.randrange(len(content))] if kind == "truncated" else b"")
    return [name]
