"""What a failed rank leaves in the run directory, for `samestep why`: whoever started it may not keep its word."""

from contextlib import suppress
from dataclasses import asdict

from samestep.core.handover import LastWord
from samestep.core.records import read_json, write_json
from samestep.core.rundir import RunDir
from samestep.train.opening import is_done, set_status, spare


def leave_word(rundir: RunDir, word: LastWord, *, is_main: bool) -> None:
    """Leave the word of this rank; rank 0 also says that the run failed. What cannot be written is left out."""
    with suppress(OSError, ValueError, MemoryError):
        try:
            _write(rundir, word, is_main)
        except OSError:  # the disk is full, perhaps the very failure: there is room set aside
            spare(rundir).unlink(missing_ok=True)
            _write(rundir, word, is_main)


def _write(rundir: RunDir, word: LastWord, is_main: bool) -> None:
    write_json(rundir.word(word.rank), asdict(word))
    status = read_json(rundir.status) or {}
    if is_main and not is_done(status):
        where = {name: status[name] for name in ("stage", "step", "steps") if name in status}
        set_status(rundir, "failed", **where, kind=word.kind, text=word.text)
