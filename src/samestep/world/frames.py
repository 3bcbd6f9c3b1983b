"""The first numbers of every message between ranks: they show whether all ranks are at the same message.

Ranks that do different things, as after an `if` that depends on the rank, send different messages at the same time.
Gloo would end the process if their sizes differed, and give each rank the other's numbers if they did not. So messages
begin with a frame of one size that says what they are.
"""

import math
import os
import sys
from collections.abc import Sequence

import torch

from samestep.core.errors import RunFailed
from samestep.core.output import plural
from samestep.world.activity import ActivityTracker
from samestep.world.source_lines import as_stack, relevant_line
from samestep.world.uneven import SAME_WAY, describe_updates

FRAME = 32
"""Numbers of 8 bytes in a frame. Messages of numbers are multiples of it; those of text have their size in one."""
HEADER = 3
"""How many of them say what a message is."""
_WORLD = os.path.join(os.path.dirname(__file__), "")
_TEXT = -1
"""The second number of a frame with the size of a text: no float64 has these bits."""


def number_frame(numbers: Sequence[float], activity: ActivityTracker) -> torch.Tensor:
    """Numbers with a header: how many there are, and how far this rank is."""
    header = [float(len(numbers)), float(activity.step), float(activity.updates.total)]
    padding = -(HEADER + len(numbers)) % FRAME
    return torch.tensor([*header, *numbers, *[0.0] * padding], dtype=torch.float64)


def size_frame(size: int) -> torch.Tensor:
    """The size of a text that follows."""
    return torch.tensor([size, _TEXT, *[0] * (FRAME - 2)])


def check_number_frames(frames: Sequence[torch.Tensor], rank: int, activity: ActivityTracker) -> None:
    """Raise if a rank sent another message than this one, or is at another place."""
    headers = [frame[:HEADER].tolist() for frame in frames]
    other = next((number for number, header in enumerate(headers) if header != headers[rank]), None)
    if other is not None:
        updates = describe_updates(activity.updates.to_json()) if headers[other][2] != headers[rank][2] else ""
        own = f"{_position(headers[rank])}{'; ' + updates if updates else ''}"
        raise _different(rank, own, other, _position(headers[other]))


def check_size_frames(frames: Sequence[torch.Tensor], rank: int) -> None:
    """Raise if a rank sent anything else than the size of a text."""
    other = next((number for number, frame in enumerate(frames) if int(frame[1]) != _TEXT), None)
    if other is not None:
        raise _different(rank, "sends a text", other, "sends something else")


def _position(header: Sequence[float]) -> str:
    if not all(map(math.isfinite, header)) or not all(number == int(number) for number in header):
        return "sends something else"
    count, step, updates = map(int, header)
    return f"is at step {step} after {plural(updates, 'update')} in this launch, and sends {plural(count, 'number')}"


def _different(rank: int, own: str, other: int, of_other: str) -> "DifferentMessages":
    stack = [frame for frame in as_stack(sys._getframe(2)) if not frame[0].startswith(_WORLD)]
    return DifferentMessages(rank, relevant_line(stack), own, other, of_other)


class DifferentMessages(RunFailed):
    """Two ranks do not do the same. Each knows its own line alone."""

    def __init__(self, rank: int, line: str, own: str, other: int, of_other: str, line_of_other: str = "") -> None:
        self.line, self.other, self._sentence = line, other, (rank, line, own, other, of_other)
        where = f", at {line_of_other}," if line_of_other else ""
        super().__init__(
            f"ranks {rank} and {other} do not do the same: rank {rank}, at {line}, {own}; "
            f"rank {other}{where} {of_other}. {SAME_WAY}"
        )

    def with_line_of_other(self, line: str) -> "DifferentMessages":
        """The same with the line of the other rank, which may be the odd one."""
        return DifferentMessages(*self._sentence, line_of_other=line)
