"""What first_launch.json holds: by stage, in the order in which they began, what no later launch may change."""

from collections.abc import Mapping

from samestep.core.json_files import DamagedFile, Json, expected_content, read_object
from samestep.core.rundir import RunDir
from samestep.core.typed_json import from_json
from samestep.train.record.plan import Plan

DATA = "data"
"""The fingerprints of a stage's data: by purpose, in the order in which the stage makes its feeds."""
PLAN = "plan"
"""The numbers of a stage."""
BATCH_SIZE = "batch_size"
"""The rows of a micro-batch that batch_size=auto became."""


def read_fixed(rundir: RunDir) -> dict[str, dict[str, Json]]:
    """The content of first_launch.json; empty before the first stage begins, refused if it is not what was written."""
    found = read_object(rundir.first_launch)
    with expected_content(rundir.first_launch):
        for stage, fixed in found.items():
            if not isinstance(fixed, dict):
                raise DamagedFile(rundir.first_launch, f"stage {stage!r} has no named values")
            if PLAN in fixed:
                plan_of(fixed)
            if type(rows := fixed.get(BATCH_SIZE, 1)) is not int or rows < 1:
                raise ValueError(f"stage {stage!r} has no number of rows as its batch_size")
            _check_fingerprints(fixed.get(DATA, {}))
    return found


def plan_of(fixed: Mapping[str, Json]) -> Plan:
    """The plan of a stage; ValueError where it is none that a run can have."""
    plan = from_json(Plan, fixed[PLAN])
    if min(plan.samples, plan.steps_per_epoch, plan.steps) < 1 or plan.warmup_steps < 0:
        raise ValueError("the plan counts fewer than 1")
    return plan


def _check_fingerprints(by_purpose: Mapping[str, Json]) -> None:
    """Refuse fingerprints that cannot be compared."""
    for feeds in by_purpose.values():
        for record in feeds:
            files, digest = record.get("files", []), record.get("digest", {"sha256": "", "floats": {}})
            hashes = [*(file["sha256"] for file in files), digest["sha256"]]
            numbers = [number for pair in digest["floats"].values() for number in pair]
            if not all(isinstance(found, str) for found in hashes) or type(record["rows"]) is not int:
                raise ValueError("a fingerprint of data has other types")
            if not all(isinstance(number, int | float) for number in numbers):
                raise ValueError("a fingerprint of data has other types")
