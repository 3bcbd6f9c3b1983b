"""What has changed in a recipe's source files between two launches, as data and in one sentence."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class CodeChanges:
    """Files of a recipe that are not what they were, by their names."""

    changed: list[str]
    appeared: list[str]
    vanished: list[str]

    @classmethod
    def between(cls, before: Mapping[str, str], now: Mapping[str, str]) -> "CodeChanges":
        """What happened from one set of hashes to the other."""
        changed = sorted(name for name in before.keys() & now.keys() if before[name] != now[name])
        return cls(changed, sorted(now.keys() - before.keys()), sorted(before.keys() - now.keys()))

    def __bool__(self) -> bool:
        return bool(self.changed or self.appeared or self.vanished)

    def __str__(self) -> str:
        words = {"changed": self.changed, "new": self.appeared, "gone": self.vanished}
        told = "; ".join(f"{word}: {', '.join(names)}" for word, names in words.items() if names)
        return f"the recipe's code is not that of the run's last launch ({told}); the run goes on with the code of now"

    def to_json(self) -> dict[str, list[str]]:
        """For the events of the run."""
        return asdict(self)
