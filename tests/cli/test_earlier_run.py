"""A run that an earlier version began goes on as if nothing had changed: `earlier_run` was made by one, up to step 30.

What is kept of it is its checkpoint of step 15 and all its metrics; its record has none of what was added since.
"""

import shutil
from pathlib import Path

import pytest

from cli.conftest import Shell
from samestep.core.records import JsonLines

EARLIER = Path(__file__).parent / "earlier_run"


def metrics(path: Path) -> list[dict]:
    return [{k: v for k, v in row.items() if not k.endswith("/s")} for row in JsonLines(path)]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("ranks", [1, 2])
def test_it_is_resumed_and_ends_as_it_would_have(shell: Shell, ranks: int) -> None:
    shutil.copytree(EARLIER / "run", "runs/earlier")
    shutil.copy(EARLIER / "sine.py", "sine.py")
    codes, output = shell("train", "--resume", "earlier", ranks=ranks)
    assert codes == [2] * ranks, "its recipe has not been started here"
    assert "if you trust it, give --recipe sine.py" in output
    codes, output = shell("train", "--resume", "earlier", "--recipe", "sine.py", ranks=ranks)
    assert codes == [0] * ranks, output
    assert "step_00000015, step 15" in output
    found, wanted = metrics(Path("runs/earlier/metrics.jsonl")), metrics(EARLIER / "run" / "metrics.jsonl")
    assert len(found) == len(wanted)
    for mine, theirs in zip(found, wanted):
        assert {**mine, "stage": 0} == pytest.approx({**theirs, "stage": 0}, rel=1e-4), (
            "to float32, for processors differ"
        )
