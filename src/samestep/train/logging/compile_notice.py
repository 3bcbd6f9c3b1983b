"""What is said while something is compiled, which takes long and shows nothing."""

import time

from samestep.core.durations import format_spent
from samestep.train.logging.console import Screen


class CompileNotice:
    """Says once in a launch of a stage that something is compiled, and then how long the step took."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._begun = 0.0
        self._is_said = self._is_over = False

    def before_compiling(self, what: str) -> None:
        """Something is going to be compiled now. After the first steps it is no longer said: it may be short then."""
        if not self._is_said and not self._is_over:
            self._is_said = True
            self._screen.print(f"compiling {what}: the first steps take longer")

    def begin_steps(self) -> None:
        """Steps begin now."""
        self._begun = time.monotonic()

    def end_step(self, step: int, *, is_last: bool) -> None:
        """So many steps are done; `is_last`: nothing is to be said after this one."""
        now = time.monotonic()
        if self._is_said and not self._is_over:
            self._screen.print(f"step {step:,} took {format_spent(now - self._begun)}, compiling included")
        self._begun, self._is_over = now, self._is_said or is_last
