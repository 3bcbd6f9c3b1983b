"""The proof that a recipe is the same run at any world size and after a kill, one group of checks after another."""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from samestep.core.errors import EXIT_USER, UserError
from samestep.core.output import plural
from samestep.core.rundir import RunDir
from samestep.train.recipe import Recipe
from samestep.verify.bitwise import differing_metric, first_change, largest_difference, read_metrics
from samestep.verify.compare import Comparison, compare
from samestep.verify.report import held_against, judge, largest
from samestep.verify.rounding import NAME as FLOOR_NAME
from samestep.verify.rounding import measure
from samestep.verify.runner import Moment, ProofRunner, RunResult, StartedRun, other_micro
from samestep.verify.tolerance import STRICT, CheckResult, Floor, ProofStatus
from samestep.verify.trace import RecordedLaunch, early_leaver, every_parameter_reached, spliced, stalled
from samestep.verify.updates import LOW_PRECISION, SLIGHT, Names, candidates

WORLDS = (2, 3)
_ELSEWHERE = {2: 3, 3: 1}
_FORGOTTEN = "a forgotten state, missing from the task's `state`"
_UNSAVED = "a random choice that does not follow the run's seed"


@dataclass
class Proof:
    """Runs a recipe again and again, and compares. It stops after a group of checks in which something failed."""

    lab: ProofRunner
    recipe: Recipe
    chance: random.Random
    say: Callable[[str], None] = lambda text: None
    """Told what is going on."""
    _runs: dict[int, RunResult] = field(default_factory=dict)
    _evidence: dict[int, RecordedLaunch] = field(default_factory=dict)
    _floor: Floor = STRICT

    def checks(self) -> Iterator[CheckResult]:
        """Every check as it is done."""
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
        """A lone process, one that cuts the batch into other micro-batches, and one that only rounds differently."""
        batch, micro = self.lab.settings["global_batch_size"], self.lab.settings["batch_size"]
        other = other_micro(batch, micro)
        self.say("one rank")
        alone, split, rounded = self._side_by_side(other or micro)
        if EXIT_USER in alone.codes:
            raise UserError(alone.failure())
        if not alone.done:
            yield CheckResult("runs on one rank", ProofStatus.FAILED, alone.failure())
            return
        self._keep(1, alone)
        if not self._evidence[1].marks():
            raise UserError("the recipe made no step on its preset; give it at least 4, for example with max_steps=8")
        reached = every_parameter_reached(self._evidence[1].trace(), self.recipe.unused)
        yield reached
        if not split.done:  # what got no gradient may be why: DDP waits for every gradient
            if reached.result is ProofStatus.OK:
                yield CheckResult("runs on one rank", ProofStatus.FAILED, split.failure())
            return
        yield self._measure_floor(rounded)
        names = Names(f"batch_size {micro}", f"batch_size {other or micro}", "wrong accumulation weight")
        found = compare(self._evidence[1].trace(), split.evidence().trace(), names, self._floor)
        wrong = found.difference.sentence if found.difference else self._unlike_figures(split, names, found)
        name = f"same run with batch_size {micro} and {other}" if other else "same run in another process"
        yield self._whole(name, wrong, _amount(found), found, split)

    def _side_by_side(self, micro: int) -> tuple[RunResult, RunResult, RunResult]:
        """The three runs at one rank; most of their time goes into imports, so they hardly wait for each other."""
        lone = self.lab.begin_alone("alone")
        others: list[StartedRun] = []
        try:
            others.append(self.lab.begin("split", 1, batch_size=micro))
            others.append(self.lab.begin("rounding", 1, evidence_rounding=True))
            split, rounded = (each.end() for each in others)
            return lone.end(), split, rounded
        finally:
            lone.stop()
            for each in others:
                each.stop()

    def _measure_floor(self, rounded: RunResult) -> CheckResult:
        if not rounded.done:
            return CheckResult(FLOOR_NAME, ProofStatus.UNKNOWN, f"the run in another order failed: {rounded.failure()}")
        figures = read_metrics(self._runs[1].path), read_metrics(rounded.path)
        self._floor, check = measure(self._evidence[1].trace(), rounded.evidence().trace(), figures)
        return check

    def _whole(self, name: str, wrong: str, right: str, found: Comparison, outcome: RunResult) -> CheckResult:
        """A check of everything in a run."""
        if wrong:
            return CheckResult(name, ProofStatus.FAILED, wrong)
        seen = {**found.seen.largest, "figures": 0.0 if found.tie else self._figures_apart(outcome)}
        return held_against(self._floor, seen, CheckResult(name, ProofStatus.OK, right))

    def _figures_apart(self, outcome: RunResult) -> float:
        return largest_difference(read_metrics(self._runs[1].path), read_metrics(outcome.path))[0]

    def _several_ranks(self) -> Iterator[CheckResult]:
        comparisons, unlike = [], ""
        for world in WORLDS:
            self.say(f"{world} ranks")
            outcome = self.lab.run(f"ranks-{world}", world)
            if not outcome.done:
                yield self._died(outcome)
                return
            self._keep(world, outcome)
            names = Names("1 rank", f"{world} ranks", "mean of means")
            comparisons.append(compare(self._evidence[1].trace(), self._evidence[world].trace(), names, self._floor))
            unlike = unlike or self._unlike_figures(outcome, names, comparisons[-1])
        checks = judge(comparisons, self._floor)
        yield from checks
        if all(check.result is not ProofStatus.FAILED for check in checks):
            yield self._figures_checked(unlike)

    def _figures_checked(self, unlike: str) -> CheckResult:
        name = "logged figures at 1, 2, 3 ranks"
        if unlike:
            return CheckResult(name, ProofStatus.FAILED, unlike)
        rows = len(read_metrics(self._runs[1].path))
        seen = {"figures": max(self._figures_apart(self._runs[world]) for world in WORLDS)}
        return held_against(
            self._floor, seen, CheckResult(name, ProofStatus.OK, f"{plural(rows, 'row')} of metrics.jsonl")
        )

    def _died(self, outcome: RunResult) -> CheckResult:
        leaver = early_leaver(outcome.evidence(), self._evidence[1].trace())
        stuck = stalled(outcome.evidence(), outcome.codes)
        return CheckResult(
            f"runs at {outcome.world} ranks", ProofStatus.FAILED, leaver or f"{stuck}{outcome.failure()}"
        )

    def _killed(self, world: int) -> Iterator[CheckResult]:
        """Killed and resumed at the same world size, then from a copy of the same remains at another."""
        self.say(f"{world} ranks, killed")
        first = int(self.lab.settings["checkpoint"]["every_steps"]) + 1
        wanted = Moment.choose(self.chance, world, first, self._evidence[world].marks())
        remains, moment = self.lab.kill(f"killed-{world}", world, wanted)
        name = f"kill -9, resume at {world} ranks"
        if not any(code == -9 for code in remains.codes):
            sentence = f"the run was over before it could be killed ({remains.failure()}): use more steps"
            yield CheckResult(name, ProofStatus.FAILED, sentence)
            return
        killed = remains.evidence()
        (remains.path / "evidence").rename(remains.path / "evidence-killed")
        elsewhere = _ELSEWHERE[world]
        self.lab.copy(remains, f"killed-{world}-on-{elsewhere}")
        story = f"{moment.words(world)} after step {killed.marks()}"
        wrong, seen = self._resumed_here(world, remains, killed, story)
        yield CheckResult(name, ProofStatus.FAILED if wrong else ProofStatus.OK, wrong or seen)
        if not wrong:
            yield self._resumed_elsewhere(world, elsewhere, killed)

    def _resumed_here(self, world: int, remains: RunResult, killed: RecordedLaunch, story: str) -> tuple[str, str]:
        """What is wrong (empty: nothing), and what was seen."""
        wanted = self._evidence[world]
        change = first_change(wanted, killed)
        if change:
            causes = candidates("a random choice that does not follow the run's seed", "arithmetic that varies")
            return f"two launches at {world} ranks differ before any kill, {change}; {causes}", ""
        saved = _newest(remains.path, killed)
        self.say(f"{world} ranks, resumed")
        outcome = self.lab.run(remains.path.name, world)
        if not outcome.done:
            return f"{story}; the resume failed: {outcome.failure()}", ""
        resumed = outcome.evidence()
        began = next(iter(resumed.starts.items()), None)
        story = f"{story}, resumed {_words(began, several=len(wanted.starts) > 1)}"
        if saved is not None and began != saved:
            return f"{story}, though there is a checkpoint of step {saved[1]} of {saved[0]!r}", ""
        change = first_change(wanted, resumed)
        if change:
            return f"{story}: {change}; {candidates(_FORGOTTEN, _UNSAVED)}", ""
        missing = [key for key in wanted.trace() if key not in spliced(killed, resumed)]
        unlike = differing_metric(read_metrics(self._runs[world].path), read_metrics(outcome.path))
        if missing or unlike:
            return f"{story}: {f'steps {missing} are missing' if missing else unlike}", ""
        hashes = sum(len(step.updates) for steps in resumed.ranks for step in steps.values())
        return "", f"{story}; {plural(hashes, 'hash')} and all figures equal bit for bit"

    def _resumed_elsewhere(self, world: int, elsewhere: int, killed: RecordedLaunch) -> CheckResult:
        name = f"killed at {world}, resumed at {plural(elsewhere, 'rank')}"
        self.say(f"{world} ranks, resumed at {elsewhere}")
        outcome = self.lab.run(f"killed-{world}-on-{elsewhere}", elsewhere)
        if not outcome.done:
            return CheckResult(name, ProofStatus.FAILED, f"the resume failed: {outcome.failure()}")
        resumed = outcome.evidence()
        names = Names(
            "1 rank without a kill", f"{world} ranks and then {elsewhere}", "a state that depends on the ranks"
        )
        found = compare(self._evidence[1].trace(), spliced(killed, resumed), names, self._floor)
        wrong = found.difference.sentence if found.difference else self._unlike_figures(outcome, names, found)
        samples = sum(len(line["ids"]) for steps in resumed.ranks for step in steps.values() for line in step.updates)
        return self._whole(
            name, wrong, f"{plural(samples, 'remaining sample')} once each; {_amount(found)}", found, outcome
        )

    def _keep(self, world: int, outcome: RunResult) -> None:
        self._runs[world], self._evidence[world] = outcome, outcome.evidence()

    def _unlike_figures(self, outcome: RunResult, names: Names, found: Comparison) -> str:
        """What differs between the logged figures of two runs that are otherwise the same."""
        if found.difference or found.tie:
            return ""
        ours, theirs = read_metrics(self._runs[1].path), read_metrics(outcome.path)
        unlike = differing_metric(ours, theirs, self._floor.tolerance("figures"))
        if not unlike:
            return ""
        apart = self._figures_apart(outcome)
        rounding = [f"{LOW_PRECISION} in the sum of a figure"] if apart <= SLIGHT else []
        causes = candidates(*rounding, "a figure of one rank alone, or a mean of means (return Figure(sum, weight))")
        return f"{unlike} at {names.ours} and {names.theirs}; {causes}"


def _newest(path: Path, killed: RecordedLaunch) -> tuple[str, int] | None:
    """The stage that the killed launch was in and its newest checkpoint, which a resume must begin with."""
    stage = list(killed.starts)[-1]
    if (RunDir(path).artifacts(stage) / "done.json").exists():
        return None
    steps = [int(folder.name.removeprefix("step_")) for folder in RunDir(path).checkpoints(stage).glob("step_*")]
    return (stage, max(steps)) if steps else None


def _words(began: tuple[str, int] | None, several: bool) -> str:
    """Where a resumed launch began."""
    if began is None:
        return "after its last step"
    return f"at step {began[1]}" + (f" of {began[0]!r}" if several else "")


def _amount(found: Comparison) -> str:
    difference = max(largest([found], subject) for subject in ("losses", "gradients", "validation"))
    until = "; compared up to a tie between sampled tokens" if found.tie else ""
    return (
        f"{plural(found.steps, 'step')}, {plural(found.seen.rows, 'row')}, largest difference {difference:.1e}{until}"
    )
