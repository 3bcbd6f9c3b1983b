"""The benchmark: its metrics by hand, the same at any world size, with a baseline that survives a kill."""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from adapter_toys import new_folder
from cli.conftest import Shell
from samestep import Bench, CausalConfig, GenerationConfig, Tick, UserError, World
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.recipes.gan.config import GanConfig
from samestep.recipes.gan.data import DataConfig, Record, TextRows
from samestep.recipes.gan.evaluation import Baseline, Benchmark, BenchmarkConfig, Verdicts, _decoded, benchmark_table
from samestep.recipes.gan.judges import JudgeConfig
from samestep.recipes.gan.players import PlayerConfig
from samestep.recipes.gan.task import Adversaries
from samestep.train.logging.console import Screen
from samestep.train.record.config import Distributed
from toys import SEVERAL, Case, CountGathers, on_ranks

pytestmark = pytest.mark.timeout(900)
NETWORK = CausalConfig(
    d_model=16, n_layers=2, n_heads=2, mlp_hidden_size=32, max_sequence_length=256, init_std=0.3, tied_head=True
)


def write_stories(path: Path) -> None:
    """Sorted by genre, of which there are two."""
    rows = [
        {"title": f"T{number}", "genre": "tale" if number < 10 else "noir", "human_story": f"He saw {number} cats."}
        for number in range(16)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def write_pairs(path: Path) -> None:
    rows = [
        {"title": f"P{number}", "genre": "tale", "human_story": f"I fed {number} dogs.", "generated": "x" * number * 3}
        for number in range(4, 9)
    ]
    path.write_text("\n".join(map(json.dumps, rows)))


def adversaries(
    world: World, strategy: str = "lone", size: int = 5, pairs: bool = False, **changes: Any
) -> Adversaries:
    folder = new_folder(world)
    if world.is_main:
        write_stories(folder / "stories.jsonl")
        write_pairs(folder / "pairs.jsonl")
    world.gather(None)
    config = GanConfig(
        data=DataConfig(path=str(folder / "stories.jsonl"), validation_fraction=0.4),
        generator=PlayerConfig(network=NETWORK),
        judge=PlayerConfig(network=NETWORK),
        writing=GenerationConfig(max_new_tokens=7),
        benchmark=BenchmarkConfig(size=size, pairs=str(folder / "pairs.jsonl") if pairs else None),
        distributed=Distributed(strategy="fsdp" if strategy == "fsdp" else "ddp", dtype="float64"),
        **{
            "judging": JudgeConfig(max_tokens=12),
            "global_batch_size": 4,
            "batch_size": 2,
            "max_steps": 3,
            "learning_rate": 0.02,
            **changes,
        },
    )
    bench = Bench(world, config, RunDir(folder / "run"), "gan", Screen(False), sample_logs=[])
    return Adversaries(bench)


def tick(step: int) -> Tick:
    return Tick(step, 0, last_of_epoch=False)


def after_steps(task: Adversaries, steps: int) -> dict[str, float]:
    for step in range(steps):
        task.step(tick(step))
    return dict(task.validate(tick(steps - 1)))


@cache
def of_one_process(size: int, steps: int) -> dict[str, float]:
    return after_steps(adversaries(World.single(), size=size, pairs=True), steps)


class Noted:
    """Keeps the samples of the last validation."""

    def write(self, step: int, name: str, given: Sequence[Any]) -> None:
        self.pairs = given if name == "completions" else []


@cache
def samples_of_one_process(size: int, steps: int) -> list[Any]:
    task = adversaries(World.single(), size=size, pairs=True)
    task._bench.sample_logs = [noted := Noted()]  # type: ignore[list-item]
    after_steps(task, steps)
    return list(noted.pairs)


def same_at_any_world_size(world: World, strategy: str) -> None:
    """Also with fewer records than ranks."""
    for size, steps in ((5, 2), (2, 1)):
        expected = of_one_process(size, steps)
        task = adversaries(world, strategy, size, pairs=True)
        task._bench.sample_logs = [noted := Noted()]  # type: ignore[list-item]
        found = after_steps(task, steps)
        assert list(noted.pairs) == samples_of_one_process(size, steps)
        assert len(noted.pairs) == min(size, 4) and all(len(pair.verdicts) == 2 for pair in noted.pairs)
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9)
        assert list(found) == list(expected)
        assert all(other == found for other in world.gather(found))


def unreadable_and_empty(world: World, strategy: str) -> None:
    """A judge that never answers about completions that are all empty; every rank asks equally often."""
    task = adversaries(world, strategy)
    benchmark = task._benchmark
    assert benchmark is not None
    asked = 0

    def silent(network: nn.Module, records: Sequence[Record], *_: object) -> list[list[None]]:
        nonlocal asked
        asked += 1
        return [[None, None]] * len(records)

    benchmark._judged = silent
    ends_at_once = replace(benchmark._write, eos=range(257), forbidden=())
    benchmark._write = lambda *args, **kwargs: replace(  # type: ignore[assignment]
        written := ends_at_once(*args, **kwargs), lengths=torch.zeros_like(written.lengths)
    )
    benchmark.begin()
    found = benchmark.measure(tick(0))
    assert found["benchmark/failures"] == found["benchmark/empty"] == found["benchmark/baseline_failures"] == 1
    assert found["benchmark/accuracy"] == found["benchmark/win_rate"] == found["benchmark/distinct_1"] == 0
    assert "benchmark/position_bias" not in found
    assert set(world.gather(asked)) == {asked}


def gathered_once(world: World, strategy: str) -> None:
    """While texts are written; the judge's answers, too. Its texts are the same."""
    generative = JudgeConfig(mode="generative", max_tokens=12, answer_tokens=7)
    found = []
    for keep in (True, False):
        task = adversaries(world, strategy, judging=generative, keep_gathered=keep)
        benchmark = task._benchmark
        assert benchmark is not None
        with CountGathers() as writing:
            written = benchmark._written()
        with CountGathers() as judging:
            benchmark._verdicts(["abc"] * 5)
        found.append((written["tokens"].tolist(), writing.count, judging.count))
    (kept, *few), (freed, *many) = found
    assert kept == freed
    if strategy == "fsdp":
        assert all(2 * one < other for one, other in zip(few, many, strict=True))


CASES: list[Case] = [same_at_any_world_size, unreadable_and_empty, gathered_once]

test_on_ranks = on_ranks(CASES, SEVERAL)


def test_verdicts_by_hand() -> None:
    # Human first, then second: right twice, always 1, always 2, unreadable once and wrong, a tie and right.
    rows = [[1.0, 1.0], [1.0, 0.0], [0.0, 1.0], [math.nan, 0.0], [0.5, 1.0]]
    verdicts = Verdicts.of(torch.tensor(rows))
    assert verdicts.right == [(1, 1), (1, 0), (0, 1), (None, 0), (0.5, 1)]
    assert verdicts.failures == 1 / 10
    assert verdicts.win_rate().rate == 3.5 / 10
    assert 0 < verdicts.win_rate().low < 3.5 / 10 < verdicts.win_rate().high < 1
    accuracies = verdicts.accuracies(["b", "a", "a", "b", "b"])
    assert accuracies == {
        "accuracy": 5.5 / 10,
        "accuracy_human_first": 2.5 / 5,
        "accuracy_human_second": 3 / 5,
        "accuracy/a": 2 / 4,
        "accuracy/b": 3.5 / 6,
    }
    assert accuracies["accuracy"] + verdicts.win_rate().rate + verdicts.failures == 1
    assert verdicts.position_bias() == pytest.approx((5 - 5) / 10)


def test_judge_that_always_gives_one_answer_is_all_bias() -> None:
    for right, bias in (((1.0, 0.0), 0.5), ((0.0, 1.0), -0.5), ((0.5, 0.5), 0.0)):
        verdicts = Verdicts([right] * 3)
        assert verdicts.position_bias() == bias
        assert verdicts.win_rate().rate == verdicts.accuracies(["x"] * 3)["accuracy"] == 0.5


def test_the_interval_is_that_of_one_game_a_record() -> None:
    few = Verdicts([(1.0, 0.0)] * 4).win_rate()
    many = Verdicts([(1.0, 0.0)] * 8).win_rate()
    # Wilson: half the width is z sqrt(1/4 / n + z^2 / 4 n^2) / (1 + z^2 / n).
    z2 = 1.959963984540054**2
    assert few.high - 0.5 == pytest.approx(math.sqrt(z2 / 16 + z2 * z2 / 64) / (1 + z2 / 4))
    assert many.high < few.high


def test_baseline_comes_back_from_its_state() -> None:
    baseline, other = Baseline(2, 3), Baseline(2, 3)
    other.load_state_dict(baseline.state_dict())
    assert other.nats is None
    baseline.keep({"tokens": torch.tensor([[1, 2, 0], [3, 0, 0]]), "lengths": torch.tensor([2, 1])}, 1.5)
    other.load_state_dict(baseline.state_dict())
    assert other.nats == 1.5
    assert all(torch.equal(other.state_dict()[name], baseline.state_dict()[name]) for name in ("tokens", "lengths"))


def test_baseline_is_what_the_generator_wrote_first() -> None:
    task = adversaries(World.single(), learning_rate=0.3)
    first = after_steps(task, 1)
    benchmark = task._benchmark
    assert benchmark is not None
    kept, state = benchmark.baseline.texts(task.writer), benchmark.baseline.state_dict()["tokens"].clone()
    fresh = adversaries(World.single())._benchmark
    assert fresh is not None
    assert torch.equal(fresh._written()["tokens"], state)
    task.step(tick(1))
    second = dict(task.validate(tick(1)))
    assert benchmark.baseline.texts(task.writer) == kept
    names = ("distinct_1", "distinct_2", "words", "human_nats", "self_bleu")
    assert all(first[f"benchmark/baseline_{name}"] == second[f"benchmark/baseline_{name}"] for name in names)
    assert not torch.equal(benchmark._written()["tokens"], state), "the generator writes differently by now"
    assert second["benchmark/human_nats"] != second["benchmark/baseline_human_nats"]


def test_generator_that_has_not_learned_equals_its_baseline() -> None:
    benchmark = adversaries(World.single())._benchmark
    assert benchmark is not None
    benchmark.begin()
    found = benchmark.measure(tick(7))
    shared = [name for name in found if name.replace("/", "/baseline_") in found]
    assert {"benchmark/win_rate", "benchmark/self_bleu", "benchmark/words", "benchmark/human_nats"} <= set(shared)
    assert all(found[name] == found[name.replace("/", "/baseline_")] for name in shared)


def test_judge_sees_each_text_beside_its_record_in_both_orders() -> None:
    """A judge that finds out the baseline alone, by heart."""
    task = adversaries(World.single(), learning_rate=0.3)
    for step in range(2):
        task.step(tick(step))
    benchmark = task._benchmark
    assert benchmark is not None
    records = benchmark._rows.records
    first = dict(zip(records, benchmark.baseline.texts(task.writer), strict=True))
    asked: list[str] = []

    def by_heart(network: nn.Module, records: Sequence[Record], texts: Sequence[str], ids: Tensor) -> list[list[float]]:
        asked.extend(texts)
        return [[float(first[record] == text)] * 2 for record, text in zip(records, texts, strict=True)]

    benchmark._judged = by_heart
    found = benchmark.measure(tick(1))
    assert found["benchmark/baseline_win_rate"] == 0 and found["benchmark/position_bias"] == pytest.approx(0)
    written = _decoded(benchmark._written(), task.writer)
    changed = sum(text != first[record] for text, record in zip(written, records, strict=True))
    assert changed and found["benchmark/win_rate"] == changed / len(records)
    assert sorted(asked) == sorted([*written, *first.values()])


def test_records_are_spread_over_groups() -> None:
    task = adversaries(World.single(), size=3)
    assert {name for name in after_steps(task, 1) if "accuracy/" in name} == {
        "benchmark/accuracy/noir",
        "benchmark/accuracy/tale",
    }
    benchmark = task._benchmark
    assert benchmark is not None
    assert {record.group for record in benchmark._rows.records} == {"noir", "tale"} and len(benchmark._rows) == 3


def test_prompts_that_occur_in_training_are_counted(tmp_path: Path) -> None:
    task = adversaries(World.single(), size=5)
    assert after_steps(task, 1)["benchmark/prompts_in_training"] == 0
    texts, benchmark = task.texts, task._benchmark
    assert benchmark is not None
    known = replace(texts.train.records[0], prompt=texts.validation.records[0].prompt)
    train = TextRows([*texts.train.records, known], texts.train.groups, texts.train.origins())
    players = task.writer, task.generator, task.judge
    more = Benchmark(task._bench, replace(texts, train=train), *players, task.rollouts.right)
    more.baseline = benchmark.baseline
    found = more.measure(tick(0))
    assert found["benchmark/prompts_in_training"] == 1
    table = benchmark_table({name.removeprefix("benchmark/"): value for name, value in found.items()}, 5)
    assert "5 records, 1 of them with a prompt that occurs in training with another human text" in " ".join(
        table.split()
    )


def test_fewer_records_than_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    printed: list[str] = []
    monkeypatch.setattr(Screen, "print", lambda self, text: printed.append(text))
    task = adversaries(World.single(), size=99)
    assert printed == ["benchmark.size=99: the benchmark has all 7 records kept for validation"]
    assert task._benchmark is not None and len(task._benchmark._rows) == 7


def test_no_benchmark() -> None:
    task = adversaries(World.single(), size=0)
    assert after_steps(task, 1) == {}
    assert "baseline" not in task.state


def test_a_file_of_pairs_tracks_the_judge_alone() -> None:
    task = adversaries(World.single(), size=0, pairs=True)
    before = task.validate(tick(0))
    assert {name.partition("/")[0] for name in before} == {"pairs"}
    assert before["pairs/failures"] == 0
    with torch.no_grad():
        for weight in task.generator.module.parameters():
            weight.mul_(-1)
    assert task.validate(tick(0)) == before, "the texts are those of the file"
    with torch.no_grad():
        for number, weight in enumerate(task.judge.module.parameters()):
            weight.normal_(generator=torch.Generator().manual_seed(number))
    after = task.validate(tick(0))
    assert after != before
    assert after.keys() == before.keys()


def test_collapse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    task = adversaries(World.single())
    with caplog.at_level(logging.WARNING):
        assert after_steps(task, 1)["benchmark/collapsed"] == 0
        assert not caplog.records
        with torch.no_grad():
            for weight in task.generator.module.parameters():
                weight.mul_(20)
        for _ in range(2):
            found = task.validate(tick(1))
            assert found["benchmark/collapsed"] == 1
    (record,) = caplog.records
    assert "after step 2 a token of the human texts costs it" in record.message
    assert "benchmark.collapse_factor=1.5" in record.message


def test_nan_is_a_collapse() -> None:
    task = adversaries(World.single())
    task.step(tick(0))
    assert task._benchmark is not None
    found = task._benchmark._likelihood(math.nan, 1)
    assert found["collapsed"] == 1


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"size": -1}, "size must be a whole number of at least 0, not -1"),
        ({"collapse_factor": 0.9}, "collapse_factor must be a number of at least 1, not 0.9"),
        ({"collapse_factor": math.nan}, "collapse_factor must be a number that is finite, not nan"),
    ],
)
def test_bad_settings(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        BenchmarkConfig(**changes)


def test_table_has_all_three_beside_each_other() -> None:
    found = after_steps(adversaries(World.single()), 1)
    table = benchmark_table({name.removeprefix("benchmark/"): value for name, value in found.items()}, 5)
    lines = {line.split()[0]: line.split() for line in table.splitlines() if line}
    assert lines["generator"] == ["generator", "baseline", "people"]
    assert lines["win_rate"].count("to") == 2
    assert len(lines["distinct_1"]) == 4 and len(lines["human_nats"]) == 3
    assert "accuracy/tale" in lines and "position_bias" in lines


KILLED = """
import os
import signal
from dataclasses import replace

from samestep import Every
from samestep.recipes.gan import recipe as gan


def die(tick):
    if str(tick.step + 1) == os.environ.get("KILL_AT"):
        os.kill(os.getpid(), signal.SIGKILL)


def stages(config):
    *before, last = gan.stages(config)
    return [*before, replace(last, hooks=lambda task, bench: [Every(1, die)])]  # after validation, before the save


recipe = replace(gan, stages=stages)
"""
TRAIN = [
    *("train", "killed.py", "--preset", "verify", "--benchmark_freq", "1", "--checkpoint.every_steps", "3"),
    "--no-log.tensorboard",
    *("--no-checkpoint.background", "--benchmark.size", "99", "--mle_epochs", "1", "--log.quiet"),
]


def benchmark_rows(run: str) -> list[dict[str, Any]]:
    rows = [row for row in JsonLines(Path("runs") / run / "metrics.jsonl") if row["stage"] == "gan"]
    return [row for row in rows if "benchmark/win_rate" in row]


def test_killed_between_benchmark_and_save(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "killed.py").write_text(KILLED)
    shell = Shell(tmp_path)
    assert shell(*TRAIN, "--name", "whole", ranks=2)[0] == [0, 0]
    codes, output = shell(*TRAIN, "--name", "killed", ranks=2, env={"KILL_AT": "4"})
    assert codes == [-9, -9], output
    assert [row["step"] for row in benchmark_rows("killed")] == [1, 2, 3, 4], "the benchmark of step 4 was made"
    codes, output = shell("train", "--resume", "killed", ranks=2)
    assert codes == [0, 0], output
    resumed = [event["step"] for event in JsonLines(Path("runs/killed/events.jsonl")) if event["kind"] == "resume"]
    assert resumed == [3]
    assert benchmark_rows("killed") == benchmark_rows("whole") and len(benchmark_rows("whole")) == 4
    rows = JsonLines(Path("runs/whole/metrics.jsonl"))
    after_mle = [row["val/nats"] for row in rows if row["stage"] == "mle" and "val/nats" in row][-1]
    for row in benchmark_rows("whole"):
        assert row["benchmark/baseline_human_nats"] == pytest.approx(after_mle), "it is what maximum likelihood gave"
