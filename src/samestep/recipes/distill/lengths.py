"""Texts with more tokens than the student reads, by `data.too_long`. The retrieval set keeps them, and they are cut."""

from collections.abc import Sequence

from samestep import UserError
from samestep.data.records.reading import SHOWN
from samestep.data.records.too_long import LengthLimit, TooLong
from samestep.recipes.distill.data import DistillData
from samestep.recipes.distill.models import Reading

_LOOKED_AT = 10_000
"""Texts that are counted where all are used anyway."""
_AT_ONCE = 1_000


def too_long(data: DistillData, numbers: Sequence[int], reading: Reading, choice: TooLong) -> set[int]:
    """Those of these texts that are not used. A sentence says how many are dropped, or cut, which is counted in a part
    of them; refused ones are named."""
    every = max(1, len(numbers) // _LOOKED_AT) if choice == "truncate" else 1
    what = f"texts (every {every:,}th of {len(numbers):,})" if every > 1 else "texts"
    limit, looked_at = LengthLimit(reading.max_length, choice, what=what), numbers[::every]
    refused: list[str] = []
    dropped = set()
    for start in range(0, len(looked_at), _AT_ONCE):
        some = looked_at[start : start + _AT_ONCE]
        for number, length in zip(some, reading.lengths([data.texts[number] for number in some])):
            problems: list[str] = []
            if not limit.keeps(length, problems.append):
                dropped.add(number)
            refused += [f"  {data.texts[number].text[:40]!r}: {problem}" for problem in problems]
    if refused:
        head = f"Shorten {limit.longer:,} of {limit.total:,} texts of {data.name}, or raise student.max_length:"
        raise UserError("\n".join([head, *refused[:SHOWN]]))
    limit.say(data.name)
    return dropped
