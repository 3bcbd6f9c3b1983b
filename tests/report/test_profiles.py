"""The table of slowest operations: made of what torch.profiler recorded, shown in the page, named where damaged."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from page_parts import PageParts
from report.made_runs import make_run
from samestep.core.rundir import operations_path
from samestep.report.html_report import report_page
from samestep.report.run_report import read_report
from samestep.train.session.hooks.slowest_operations import NO_OPERATION, printed_operations, slowest_operations


def recorded(key: str, count: int, cpu: float, device: float, kind: str, annotation: bool = False) -> Any:
    """What the profiler has of an operation, in microseconds."""
    return SimpleNamespace(
        key=key,
        count=count,
        self_cpu_time_total=cpu,
        self_device_time_total=device,
        device_type=SimpleNamespace(name=kind),
        is_user_annotation=annotation,
    )


def test_kernels_count_for_the_operations_that_started_them() -> None:
    cpu, gpu = "CPU", "CUDA"
    averages = [
        recorded("aten::add", 2, 500.0, 100.0, cpu),
        recorded("aten::mm", 4, 50.0, 600.0, cpu),
        recorded("gemm_kernel", 4, 0.0, 600.0, gpu),
        recorded("add_kernel", 2, 0.0, 100.0, gpu),
        recorded("graph_kernel", 1, 0.0, 300.0, gpu),
        recorded("a block of the program", 1, 0.0, 1000.0, gpu, annotation=True),
    ]
    rows = slowest_operations(averages, "cuda")
    assert [(row["name"], row["calls"]) for row in rows] == [("aten::mm", 4), (NO_OPERATION, 0), ("aten::add", 2)]
    assert [row["share"] for row in rows] == pytest.approx([0.6, 0.3, 0.1])
    assert [row["device_seconds"] for row in rows] == pytest.approx([600e-6, 300e-6, 100e-6])
    assert "aten::mm" in printed_operations(rows, "cuda", "2 to 3").splitlines()[2]
    on_cpu = slowest_operations(averages[:2], "cpu")
    assert on_cpu[0]["name"] == "aten::add" and on_cpu[0]["share"] == pytest.approx(500 / 550)


def test_the_page_shows_the_table_as_text_and_says_how_to_open_the_trace(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    trace = run.profile("fit") / "steps_2-3_rank_0.json"
    table, hostile = operations_path(trace), "<script>alert(1)</script>"
    table.parent.mkdir(parents=True)
    rows = [
        {"name": hostile, "calls": 1200, "cpu_seconds": 0.5, "device_seconds": 0.25, "share": 0.75},
        {"name": "aten::mm", "calls": "many", "cpu_seconds": None, "share": float("nan")},
    ]
    about = {"first": 2, "last": 3, "rank": 0, "device": hostile}
    table.write_text(json.dumps({**about, "operations": rows}))
    parts = PageParts(report_page([read_report(run)]))
    assert parts.names.count("script") == 2, "the data, and the page's own"
    cells = parts.texts["td"]
    at = cells.index(hostile)
    assert cells[at : at + 5] == [hostile, "250.00", "500.00", "1,200", "75.0%"]
    assert cells[at + 5] == "aten::mm" and "many" not in cells
    assert any("perfetto" in text for text in parts.texts["p"])
    assert any(f"trace: {trace} (not there any more)" in text for text in parts.texts["p"])
    assert any("calls" in text and table.name in text for text in parts.texts["p"]), "what is damaged is named"
    for content in ("[]", "{", json.dumps({**about, "first": None, "operations": []})):
        table.write_text(content)
        said = PageParts(report_page([read_report(run)])).texts["p"]
        assert any(table.name in text for text in said), content
