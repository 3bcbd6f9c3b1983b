"""Lists of hosts in SLURM's short form, which `--nodelist` takes under every scheduler."""

from collections.abc import Iterator

from samestep.core.errors import UserError


def expand_hosts(text: str) -> list[str]:
    """The short form expanded: `n[01-03,7],m` is n01, n02, n03, n7, m."""
    try:
        return [host for part in _split(text) if part for host in _expand_part(part)]
    except ValueError:
        raise UserError(f"{text!r} is not a list of hosts; write it like node1,node2 or node[1-4]") from None


def _split(text: str) -> Iterator[str]:
    """The parts between commas that stand outside of brackets."""
    depth, part = 0, ""
    for char in text:
        depth += {"[": 1, "]": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield part
            part = ""
        else:
            part += char
    yield part


def _expand_part(part: str) -> list[str]:
    before, bracket, rest = part.partition("[")
    if not bracket:
        return [part]
    inside, _, after = rest.partition("]")
    found = []
    for piece in inside.split(","):
        first, _, last = piece.partition("-")
        for number in range(int(first), int(last or first) + 1):
            found += [f"{before}{number:0{len(first)}d}{tail}" for tail in _expand_part(after)]
    return found
