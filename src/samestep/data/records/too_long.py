"""Texts with more tokens, or characters, than a limit: one setting and one sentence for all recipes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from samestep.data.records.reading import say_once

TooLong = Literal["refuse", "drop", "truncate"]
"""What is done with them: stop and name them, leave them out, or cut them at the limit."""
DONE = {"drop": "dropped", "truncate": "cut"}


@dataclass
class LengthLimit:
    """The longest that texts may be; counts those that are longer."""

    limit: int | None
    """None: there is no limit."""
    too_long: TooLong
    unit: str = "tokens"
    what: str = "texts"
    setting: str = "data.too_long"
    total: int = 0
    longer: int = 0

    def keeps(self, length: int, refuse: Callable[[str], None]) -> bool:
        """Whether a text of this length stays, to be cut if it is longer; `refuse` takes what is wrong with it."""
        self.total += 1
        if self.limit is None or length <= self.limit:
            return True
        self.longer += 1
        if self.too_long == "refuse":
            refuse(
                f"it has {length} {self.unit}, more than {self.limit}; set {self.setting}=drop to leave such out, or "
                "truncate to cut them"
            )
        return self.too_long == "truncate"

    def say(self, name: str) -> None:
        """Say once what was done with the texts of a file."""
        if self.sentence:
            say_once(f"{name}: {self.sentence}")

    @property
    def sentence(self) -> str:
        """What was done; empty if nothing was."""
        if not self.longer or self.too_long == "refuse":
            return ""
        return (
            f"{self.longer} of {self.total} {self.what} are longer than {self.limit} {self.unit} and were "
            f"{DONE[self.too_long]} ({self.setting}={self.too_long})"
        )
