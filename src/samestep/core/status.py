"""The status of a run: the file status.json in its directory, for other programs to read.

It says "running" only of a run that runs, or whose only process was killed: where ranks could not write their end, the
launcher does, with the cause that it found.
"""

from collections.abc import Mapping

from samestep.core.exit_report import ExitReport
from samestep.core.json_files import Json, read_object_if_readable, write_json
from samestep.core.rundir import RunDir


def set_status(rundir: RunDir, status: str, **details: Json) -> None:
    """Write the status of the run."""
    write_json(rundir.status, {"status": status, **details})


def is_done(status: Mapping[str, Json]) -> bool:
    """Whether all of a run is done: where the status names a stage, only that stage is."""
    return status.get("status") == "done" and "stage" not in status


def set_failed(rundir: RunDir, report: ExitReport) -> None:
    """The run has failed, for this reason; one that is done stays so."""
    _set_ended(rundir, "failed", kind=report.kind, text=report.text)


def set_stopped(rundir: RunDir, reason: str) -> bool:
    """The run was stopped by a signal, without a save; false: it has said itself how it stopped."""
    is_new = read_object_if_readable(rundir.status).get("status") == "running"
    if is_new:
        _set_ended(rundir, "preempted", reason=reason, saved=False)
    return is_new


def _set_ended(rundir: RunDir, ended: str, **details: Json) -> None:
    status = read_object_if_readable(rundir.status)
    if not is_done(status):
        where = {name: status[name] for name in ("stage", "step", "steps") if name in status}
        set_status(rundir, ended, **where, **details)
