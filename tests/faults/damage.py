"""Ways in which a file of a checkpoint gets damaged: by a disk, a broken copy or a person."""

import random
from pathlib import Path

KINDS = ("truncated", "bit flipped", "deleted", "swapped", "zero length")


def corrupt(folder: Path, name: str, kind: str, rng: random.Random) -> list[str]:
    """Damage one file of a checkpoint; returns the names of the files that changed."""
    path = folder / name
    content = path.read_bytes()
    if kind == "deleted":
        path.unlink()
    elif kind == "swapped":
        others = [p for p in sorted(folder.iterdir()) if p.read_bytes() != content]
        other = rng.choice(others)
        path.write_bytes(other.read_bytes())
        other.write_bytes(content)
        return [name, other.name]
    elif kind == "bit flipped":
        changed = bytearray(content)
        changed[rng.randrange(len(content))] ^= 1 << rng.randrange(8)
        path.write_bytes(changed)
    else:
        path.write_bytes(content[: rng.randrange(len(content))] if kind == "truncated" else b"")
    return [name]
