"""What the runtime records: enough to distinguish samples, data, states and ranks."""

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from samestep.core.json_files import JsonLines
from samestep.data.feed import MicroBatches
from samestep.parallel.wrap import warm_up
from samestep.train.learner.evidence import EvidenceRecorder, module_hash
from samestep.train.record.progress import Tick
from samestep.train.session.hook_order import RecordReturned, RecordStep


def micros(*batches: torch.Tensor) -> MicroBatches:
    """Micro-batches of these values; an empty one becomes a filler row."""
    held, spans, at = [], [], 0
    for values in batches:
        spans.append((at, at + len(values)))
        at += len(values)
        rows = values if len(values) else torch.zeros(1, *values.shape[1:])
        held.append({"x": rows, "live": torch.full((len(rows),), len(values) > 0)})
    return MicroBatches(5, held, {"rows": float(at)}, np.array([[0, n] for n in range(at)]), spans)


def update_line(path: Path, given: MicroBatches) -> dict[str, Any]:
    recorder = EvidenceRecorder(path, "fit")
    module = torch.nn.Linear(1, 1)
    recorder.begin("model", module)
    recorder.rows("model", given, [{"error": torch.arange(float(len(batch["x"])))} for batch in given.batches])
    recorder.gradients("model", module)
    recorder.parameters("model", module, given)
    return list(JsonLines(path))[-1]


def test_a_row_has_the_same_checksum_in_any_micro_batch(tmp_path: Path) -> None:
    values = torch.randn(5, 2, generator=torch.Generator().manual_seed(0))
    uncut = update_line(tmp_path / "a", micros(values))
    cut = update_line(tmp_path / "b", micros(values[:2], values[2:]))
    changed = values.clone()
    changed[3, 1] += 1e-6
    other = update_line(tmp_path / "c", micros(changed))
    assert uncut["data"] == cut["data"]
    assert [a == b for a, b in zip(uncut["data"], other["data"])] == [True, True, True, False, True]
    assert (uncut["sizes"], cut["sizes"]) == ([5], [2, 3])


def test_filler_rows_are_not_recorded(tmp_path: Path) -> None:
    line = update_line(tmp_path / "a", micros(torch.ones(2, 1), torch.ones(0, 1)))
    assert len(line["ids"]) == len(line["data"]) == len(line["rows"]["error"]) == 2
    assert line["sizes"] == [2, 0]


def test_rows_of_any_kind_have_a_checksum(tmp_path: Path) -> None:
    kinds = (torch.arange(3), torch.ones(3, 2, 2).bool(), torch.ones(3, 0), torch.ones(3).bfloat16())
    for number, values in enumerate(kinds):
        assert len(update_line(tmp_path / str(number), micros(values))["data"]) == 3


def recorded(path: Path, module: torch.nn.Module, forward: Callable[[], object]) -> dict[str, Any]:
    """The line of an update whose passes are `forward`."""
    recorder, given = EvidenceRecorder(path, "fit"), micros(torch.ones(2, 1))
    recorder.begin("model", module)
    forward()
    recorder.rows("model", given, [{"error": torch.zeros(2)}])
    recorder.gradients("model", module)
    recorder.parameters("model", module, given)
    return list(JsonLines(path))[-1]


def test_what_an_update_began_with_is_hashed_before_its_forward_pass(tmp_path: Path) -> None:
    module = torch.nn.BatchNorm1d(1)
    expected = module_hash(module)
    line = recorded(tmp_path / "a", module, lambda: module(torch.tensor([[1.0], [2.0]])))
    assert line["before"] == expected, "the forward pass changes running statistics"
    assert line["hash"] != expected


@pytest.mark.parametrize(
    ("name", "draw"),
    [
        ("torch", lambda: torch.nn.functional.dropout(torch.ones(3))),
        ("numpy", lambda: np.random.rand()),
        ("python", lambda: random.random()),
    ],
)
def test_a_draw_from_a_generator_of_the_process_is_noted(name: str, draw: Callable[[], object], tmp_path: Path) -> None:
    assert recorded(tmp_path / "a", torch.nn.Linear(1, 1), draw)["drew"] == [name]
    assert recorded(tmp_path / "b", torch.nn.Linear(1, 1), lambda: None)["drew"] == []


def test_draws_and_running_statistics_of_a_discarded_pass_are_not_the_updates(tmp_path: Path) -> None:
    module = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.5))
    line = recorded(tmp_path / "a", module, lambda: warm_up(module, lambda: module(torch.ones(2, 1))))
    assert line["drew"] == []
    assert line["before"] == line["hash"]


def test_only_batch_norms_that_normalise_by_the_micro_batch_are_named(tmp_path: Path) -> None:
    parts = {"used": torch.nn.BatchNorm1d(1), "fixed": torch.nn.BatchNorm1d(1), "idle": torch.nn.BatchNorm1d(1)}
    module = torch.nn.ModuleDict(parts)
    parts["fixed"].eval()

    def forward() -> None:
        for name in ("used", "fixed"):
            parts[name](torch.tensor([[1.0], [2.0]]))

    assert recorded(tmp_path / "a", module, forward)["batch_norms"] == ["used"]


class Held:
    """A state with a tensor, a number, and a part of each rank's own."""

    def __init__(self, value: float, number: int, own: int) -> None:
        self.value, self.number, self.own = torch.full((3,), value), number, own

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "number": self.number}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        raise AssertionError("evidence loads nothing")

    def rank_state(self) -> int:
        return self.own

    def load_rank_state(self, states: list[int]) -> None:
        raise AssertionError("evidence loads nothing")


def marked(path: Path, held: Held) -> dict[str, Any]:
    recorder = EvidenceRecorder(path, "fit")
    tick = Tick(4, 0, False)
    RecordReturned(recorder).after_step(tick, {}, False)
    RecordStep(recorder, {"held": held}, lambda: {"val/error": 0.5}).after_step(tick, {}, False)
    returned, line = JsonLines(path)
    assert (returned["kind"], returned["step"]) == ("returned", 4)
    return line


def test_a_step_is_closed_with_its_complete_state(tmp_path: Path) -> None:
    line = marked(tmp_path / "a", Held(2.0, 1, 7))
    assert (line["kind"], line["step"], line["metrics"], line["own"]) == (
        "step",
        4,
        {"val/error": 0.5},
        {"held": 7},
    )
    assert list(line["state"]["held"]["prints"]) == ["value"]
    hashes = {
        marked(tmp_path / name, held)["state"]["held"]["hash"]
        for name, held in {"b": Held(2.0, 1, 8), "c": Held(2.5, 1, 7), "d": Held(2.0, 2, 7)}.items()
    }
    assert len(hashes) == 3, "a tensor and a number count, a rank's own part does not"
    assert line["state"]["held"]["hash"] in hashes
