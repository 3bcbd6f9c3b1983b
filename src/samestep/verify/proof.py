"""The proof that a recipe is the same run at any world size and after a kill: groups of checks, one after another."""

import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core.errors import EXIT_USER, UserError
from samestep.core.output import plural
from samestep.core.rundir import RunDir
from samestep.train.api.recipe import Recipe
from samestep.verify.artifacts import artifacts_checks, compare_artifacts
from samestep.verify.bitwise import differing_metric, first_change, largest_difference, read_metrics
from samestep.verify.compare import Comparison, compare
from samestep.verify.report import apply_floor, comparison_checks, every_parameter_reached, largest_seen
from samestep.verify.rounding import NAME as FLOOR_NAME
from samestep.verify.rounding import measure_floor
from samestep.verify.runner import KillMoment, ProofRunner, RunResult, SingleProcessRun, StartedRun, other_batch_size
from samestep.verify.tolerance import STRICT, CheckResult, Floor, ProofStatus
from samestep.verify.trace import RecordedLaunch, early_return_sentence, splice, stall_sentence
from samestep.verify.updates import LOW_PRECISION, SLIGHT, RunNames, candidates

WORLDS = (2, 3)
_OTHER_WORLD = {2: 3, 3: 1}
_FORGOTTEN = "a forgotten state, missing from the task's `state`"
_UNSEEDED = "a random choice that does not follow the run's seed"


@dataclass
class Proof:
    """Runs a recipe again and again, and compares. It stops after a group of checks in which something failed."""

    runner: ProofRunner
    recipe: Recipe
    rng: random.Random
    progress: Callable[[str], None] = lambda text: None
    """Called with the run that is under way."""
    _runs: dict[int, RunResult] = field(default_factory=dict)
    _evidence: dict[int, RecordedLaunch] = field(default_factory=dict)
    _floor: Floor = STRICT

    def checks(self) -> Iterator[CheckResult]:
        """Every check, as soon as it is done."""
        groups: list[tuple[str, Callable[[], Iterator[CheckResult]]]] = [
            ("one rank", self._one_rank),
            ("1, 2 and 3 ranks", self._several_ranks),
            ("kill and resume at 2 ranks", lambda: self._killed(2)),
            ("kill and resume at 3 ranks", lambda: self._killed(3)),
        ]
        for number, (_, group) in enumerate(groups):
            failed = False
            for check in group():
                failed = failed or check.result is ProofStatus.FAILED
                yield check
            if failed:
                rest = [title for title, _ in groups[number + 1 :]]
                if rest:
                    yield CheckResult(
                        "the rest", ProofStatus.NOT_RUN, f"{', '.join(rest)}: stopped at the first failure"
                    )
                return

    def _one_rank(self) -> Iterator[CheckResult]:
        """A single process, one that cuts the batch into other micro-batches, and one that only rounds differently."""
        batch, micro = self.runner.settings["global_batch_size"], self.runner.settings["batch_size"]
        other = other_batch_size(batch, micro)
        self.progress("one rank")
        single, split, rounded = self._one_rank_runs(other or micro)
        if EXIT_USER in single.codes:
            raise UserError(single.failure())
        if not single.done:
            yield CheckResult("runs on one rank", ProofStatus.FAILED, single.failure())
            return
        self._store(1, single)
        if not self._evidence[1].finished_steps():
            raise UserError("the recipe made no step on its preset; give it at least 4, for example with max_steps=8")
        reached = every_parameter_reached(self._evidence[1].trace(), self.recipe.unused)
        yield reached
        name = f"same run with batch_size {micro} and {other}" if other else "same run in another process"
        if EXIT_USER in split.codes:  # such as batch statistics that allow one micro-batch alone
            yield CheckResult(name, ProofStatus.NOT_RUN, split.failure())
            yield self._measure_floor(rounded)
            return
        if not split.done:  # a parameter without a gradient may be the reason: DDP waits for every gradient
            if reached.result is ProofStatus.OK:
                yield CheckResult("runs on one rank", ProofStatus.FAILED, split.failure())
            return
        yield self._measure_floor(rounded)
        names = RunNames(f"batch_size {micro}", f"batch_size {other or micro}", "wrong accumulation weight")
        found = compare(self._evidence[1].trace(), split.evidence().trace(), names, self._floor)
        wrong = found.difference.sentence if found.difference else self._metrics_difference(split, names, found)
        yield self._complete_check(name, wrong, _summary(found), found, split)

    def _one_rank_runs(self, micro: int) -> tuple[RunResult, RunResult, RunResult]:
        """The three runs at one rank, in parallel; those at more ranks too, if the fresh process is the last one.

        Most of its time goes into imports, which the others have behind them.
        """
        single = SingleProcessRun(self.runner, "alone")
        others: list[StartedRun] = []
        try:
            others.append(self.runner.start_run("split", 1, batch_size=micro))
            others.append(self.runner.start_run("rounding", 1, evidence_rounding=True))
            split, rounded = (each.wait() for each in others)
            if EXIT_USER in rounded.codes:  # its settings are the user's, so the fresh process would end alike
                raise UserError(rounded.failure())
            ended = [split, rounded]
            for world in WORLDS:
                if all(run.done for run in ended) and single.is_running():
                    self._runs[world] = self.runner.run(f"ranks-{world}", world)
                    ended.append(self._runs[world])
            return single.wait(), split, rounded
        finally:
            single.stop()
            for each in others:
                each.stop()

    def _measure_floor(self, rounded: RunResult) -> CheckResult:
        if not rounded.done:
            return CheckResult(FLOOR_NAME, ProofStatus.UNKNOWN, f"the run in another order failed: {rounded.failure()}")
        metrics = read_metrics(self._runs[1].path), read_metrics(rounded.path)
        self._floor, check = measure_floor(self._evidence[1].trace(), rounded.evidence().trace(), metrics)
        return check

    def _complete_check(self, name: str, wrong: str, right: str, found: Comparison, result: RunResult) -> CheckResult:
        """A check of everything in a run: failed with `wrong`, or passed with `right`."""
        if wrong:
            return CheckResult(name, ProofStatus.FAILED, wrong)
        seen = {**found.stats.largest, "metrics": 0.0 if found.tie else self._largest_metric_difference(result)}
        return apply_floor(self._floor, seen, CheckResult(name, ProofStatus.OK, right))

    def _largest_metric_difference(self, result: RunResult) -> float:
        return largest_difference(read_metrics(self._runs[1].path), read_metrics(result.path))[0]

    def _several_ranks(self) -> Iterator[CheckResult]:
        comparisons, difference = [], ""
        for world in WORLDS:
            self.progress(f"{world} ranks")
            result = self._runs.get(world) or self.runner.run(f"ranks-{world}", world)
            if not result.done:
                yield self._failed_check(result)
                return
            self._store(world, result)
            names = RunNames("1 rank", f"{world} ranks", "mean of means")
            comparisons.append(compare(self._evidence[1].trace(), self._evidence[world].trace(), names, self._floor))
            difference = difference or self._metrics_difference(result, names, comparisons[-1])
        checks = comparison_checks(comparisons, self._floor)
        yield from checks
        if all(check.result is not ProofStatus.FAILED for check in checks):
            yield self._metrics_check(difference)
            if not any(found.tie for found in comparisons):
                paths = {world: self._runs[world].path for world in WORLDS}
                yield from artifacts_checks(self._runs[1].path, paths, self._floor)

    def _metrics_check(self, difference: str) -> CheckResult:
        name = "logged metrics at 1, 2, 3 ranks"
        if difference:
            return CheckResult(name, ProofStatus.FAILED, difference)
        rows = len(read_metrics(self._runs[1].path))
        seen = {"metrics": max(self._largest_metric_difference(self._runs[world]) for world in WORLDS)}
        return apply_floor(
            self._floor, seen, CheckResult(name, ProofStatus.OK, f"{plural(rows, 'row')} of metrics.jsonl")
        )

    def _failed_check(self, result: RunResult) -> CheckResult:
        early_return = early_return_sentence(result.evidence(), self._evidence[1].trace())
        stall = stall_sentence(result.evidence(), result.codes)
        return CheckResult(
            f"runs at {result.world} ranks", ProofStatus.FAILED, early_return or f"{stall}{result.failure()}"
        )

    def _killed(self, world: int) -> Iterator[CheckResult]:
        """Kill a run, resume it at the same world size, and resume a copy of it at another world size."""
        self.progress(f"{world} ranks, killed")
        first = int(self.runner.settings["checkpoint"]["every_steps"]) + 1
        chosen = KillMoment.choose(self.rng, world, first, self._evidence[world].finished_steps())
        result, moment = self.runner.kill(f"killed-{world}", world, chosen)
        name = f"kill -9, resume at {world} ranks"
        if not any(code == -9 for code in result.codes):
            sentence = f"the run was over before it could be killed ({result.failure()}): use more steps"
            yield CheckResult(name, ProofStatus.FAILED, sentence)
            return
        killed = result.evidence()
        (result.path / "evidence").rename(result.path / "evidence-killed")
        other_world = _OTHER_WORLD[world]
        shutil.copytree(result.path, self.runner.folder / f"killed-{world}-on-{other_world}")
        history = f"{moment.describe(world)} after step {killed.finished_steps()}"
        wrong, seen = self._resumed_at_same_world(world, result.path, killed, history)
        yield CheckResult(name, ProofStatus.FAILED if wrong else ProofStatus.OK, wrong or seen)
        if not wrong:
            yield self._resumed_at_other_world(world, other_world, killed)

    def _resumed_at_same_world(self, world: int, path: Path, killed: RecordedLaunch, history: str) -> tuple[str, str]:
        """What is wrong (empty when nothing is), and what was seen."""
        expected = self._evidence[world]
        change = first_change(expected, killed)
        if change:
            causes = candidates(_UNSEEDED, "arithmetic that varies")
            return f"two launches at {world} ranks differ before any kill, {change}; {causes}", ""
        saved = _newest(path, killed)
        self.progress(f"{world} ranks, resumed")
        result = self.runner.run(path.name, world)
        if not result.done:
            return f"{history}; the resume failed: {result.failure()}", ""
        resumed = result.evidence()
        began = next(iter(resumed.starts.items()), None)
        history = f"{history}, resumed {_resume_text(began, several=len(expected.starts) > 1)}"
        if saved is not None and began != saved:
            return f"{history}, though there is a checkpoint of step {saved[1]} of {saved[0]!r}", ""
        change = first_change(expected, resumed)
        if change:
            return f"{history}: {change}; {candidates(_FORGOTTEN, _UNSEEDED)}", ""
        missing = [key for key in expected.trace() if key not in splice(killed, resumed)]
        difference = differing_metric(read_metrics(self._runs[world].path), read_metrics(result.path))
        difference = difference or compare_artifacts(self._runs[world].path, result.path).difference
        if missing or difference:
            return f"{history}: {f'steps {missing} are missing' if missing else difference}", ""
        hashes = sum(len(step.updates) for steps in resumed.ranks for step in steps.values())
        return "", f"{history}; {plural(hashes, 'hash')} and all metrics equal bit for bit"

    def _resumed_at_other_world(self, world: int, other_world: int, killed: RecordedLaunch) -> CheckResult:
        name = f"killed at {world}, resumed at {plural(other_world, 'rank')}"
        self.progress(f"{world} ranks, resumed at {other_world}")
        result = self.runner.run(f"killed-{world}-on-{other_world}", other_world)
        if not result.done:
            return CheckResult(name, ProofStatus.FAILED, f"the resume failed: {result.failure()}")
        resumed = result.evidence()
        names = RunNames(
            "1 rank without a kill", f"{world} ranks and then {other_world}", "a state that depends on the ranks"
        )
        found = compare(self._evidence[1].trace(), splice(killed, resumed), names, self._floor)
        wrong = found.difference.sentence if found.difference else self._metrics_difference(result, names, found)
        tolerance = self._floor.tolerance("losses")
        if not wrong and not found.tie:
            wrong = compare_artifacts(self._runs[1].path, result.path, tolerance).difference
        samples = sum(len(line["ids"]) for steps in resumed.ranks for step in steps.values() for line in step.updates)
        return self._complete_check(
            name, wrong, f"{plural(samples, 'remaining sample')} once each; {_summary(found)}", found, result
        )

    def _store(self, world: int, result: RunResult) -> None:
        self._runs[world], self._evidence[world] = result, result.evidence()

    def _metrics_difference(self, result: RunResult, names: RunNames, found: Comparison) -> str:
        """What differs between the logged metrics of two runs that are otherwise the same."""
        if found.difference or found.tie:
            return ""
        ours, theirs = read_metrics(self._runs[1].path), read_metrics(result.path)
        difference = differing_metric(ours, theirs, self._floor.tolerance("metrics"))
        if not difference:
            return ""
        apart = self._largest_metric_difference(result)
        rounding = [f"{LOW_PRECISION} in the sum of a metric"] if apart <= SLIGHT else []
        causes = candidates(*rounding, "a metric of one rank alone, or a mean of means (return Metric(sum, weight))")
        return f"{difference} at {names.ours} and {names.theirs}; {causes}"


def _newest(path: Path, killed: RecordedLaunch) -> tuple[str, int] | None:
    """The stage that the killed launch was in and the step of its newest checkpoint, where a resume must start."""
    stage = list(killed.starts)[-1]
    if RunDir(path).done(stage).exists():
        return None
    steps = [int(folder.name.removeprefix("step_")) for folder in RunDir(path).checkpoints(stage).glob("step_*")]
    return (stage, max(steps)) if steps else None


def _resume_text(began: tuple[str, int] | None, several: bool) -> str:
    if began is None:
        return "after its last step"
    return f"at step {began[1]}" + (f" of {began[0]!r}" if several else "")


def _summary(found: Comparison) -> str:
    difference = max(largest_seen([found], subject) for subject in ("losses", "gradients", "validation"))
    until = "; compared up to a tie between sampled tokens" if found.tie else ""
    return (
        f"{plural(found.steps, 'step')}, {plural(found.stats.rows, 'row')}, largest difference {difference:.1e}{until}"
    )
