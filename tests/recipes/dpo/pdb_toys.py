"""Small PDB files, line by line."""

from collections.abc import Sequence

BACKBONE = ("N", "CA", "C", "O")
NAMES = {"A": "ALA", "G": "GLY", "S": "SER", "K": "LYS", "L": "LEU", "V": "VAL", "X": "UNK", "W": "TRP"}


def atom(
    name: str,
    residue: str,
    chain: str,
    number: int,
    place: Sequence[float] = (0.0, 0.0, 0.0),
    *,
    altloc: str = " ",
    code: str = " ",
    occupancy: float = 1.0,
    record: str = "ATOM",
    element: str = "",
) -> str:
    """One line; `code` is the insertion code."""
    where = "".join(f"{each:8.3f}" for each in place)
    start = f"{record:<6}{1:5d} {f' {name}':<4}{altloc}{residue:>3} {chain}{number:4d}{code}   {where}"
    return f"{start}{occupancy:6.2f}{20:6.2f}          {element or name[0]:>2}\n"


def residue(
    name: str,
    chain: str,
    number: int,
    *,
    atoms: Sequence[str] = BACKBONE,
    shift: float = 0.0,
    **options: str | float,
) -> str:
    """Its backbone; coordinates follow from the residue's number, an atom's name and `shift`."""
    return "".join(
        atom(each, name, chain, number, place(number, each, shift), **options)  # type: ignore[arg-type]
        for each in atoms
    )


def place(number: int, name: str, shift: float = 0.0) -> list[float]:
    """The coordinates of an atom in these files."""
    return [3.0 * number + shift, float(BACKBONE.index(name)), shift]


def chain(letters: str, chain_id: str = "A", first: int = 1) -> str:
    """A whole chain of amino acids."""
    return "".join(residue(NAMES[letter], chain_id, first + n) for n, letter in enumerate(letters)) + "TER\n"
