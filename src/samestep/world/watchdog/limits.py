"""How long each activity may go on without progress before the watchdog ends the run."""

from dataclasses import dataclass

from samestep.core.config import free
from samestep.core.config.checked import CheckedConfig
from samestep.core.errors import UserError

ACTIVITIES = {
    "start": "starting",
    "step": "computing",
    "data": "loading data",
    "compile": "compiling",
    "save": "saving",
    "validate": "validating",
    "generate": "generating",
    "finish": "finishing",
}
"""What a thread may be doing, and how messages call it."""


@dataclass(frozen=True)
class WatchdogConfig(CheckedConfig):
    """When a run counts as hung, and what else is checked while it runs. Limits are seconds without any progress."""

    enabled: bool = free(True)
    """Watch; false: only torch's own timeouts are left."""
    limit: float | None = free(None)
    """One limit for everything, in place of the following."""
    start: float = free(540.0)
    """Setting up a stage: building, first weights, reading a checkpoint."""
    step: float = free(300.0)
    """A micro-batch, or what follows the last one of a step."""
    data: float = free(300.0)
    """Loading a step's rows."""
    compile: float = free(1800.0)
    """The first steps of a compiled model."""
    save: float = free(900.0)
    """Writing a checkpoint."""
    validate: float = free(300.0)
    """A batch of a validation."""
    generate: float = free(600.0)
    """Sampling inside training."""
    finish: float = free(540.0)
    """What a stage does at its end."""
    hash_every: int = free(100)
    """Steps between two checks that all ranks hold the same parameters; 0: never."""

    def seconds(self, activity: str) -> float:
        return self.limit if self.limit is not None else float(getattr(self, activity))

    def setting(self, activity: str) -> str:
        """The name of the setting that this limit comes from."""
        return "watch.limit" if self.limit is not None else f"watch.{activity}"

    def check(self) -> None:
        """Refuse limits that would end every run."""
        for name in ("limit", *ACTIVITIES):
            seconds = getattr(self, name)
            if seconds is not None and seconds < 1:
                raise UserError(f"watch.{name}={seconds:g} would end runs on any busy machine; give 1 second or more")
