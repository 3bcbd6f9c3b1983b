"""What faulthandler writes down by itself, when no Python of ours can run any more."""

import faulthandler
import sys
from pathlib import Path


class BlackBox:
    """The file that takes the stacks of a rank: when it crashes in native code, and when its interpreter is held."""

    def __init__(self, path: Path, *, alone: bool) -> None:
        """`alone`: there is no other rank to tell the user, nor to end this process."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = open(path, "a", encoding="utf-8")  # noqa: SIM115 (open as long as the box)
        self._alone = alone
        self._crashes = not faulthandler.is_enabled()  # or somebody else takes those already
        if self._crashes:
            faulthandler.enable(self._file)

    def arm(self, seconds: float) -> None:
        """Unless armed again within so many seconds, the stacks are written: by a timer that needs no interpreter."""
        shown = sys.__stderr__ if self._alone and sys.__stderr__ is not None else self._file
        faulthandler.dump_traceback_later(seconds, exit=self._alone, file=shown)

    def dump(self) -> None:
        """Write the stacks now."""
        faulthandler.dump_traceback(self._file, all_threads=True)

    def end_within(self, seconds: float) -> None:
        """End the process then, whatever it hangs in."""
        faulthandler.dump_traceback_later(seconds, exit=True, file=self._file)

    def close(self) -> None:
        """Nothing is watched any more."""
        faulthandler.cancel_dump_traceback_later()
        if self._crashes:
            faulthandler.disable()
        self._file.close()
