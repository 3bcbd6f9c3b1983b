"""Extending a run: another `max_steps` or `epochs` when it is resumed, also when it has finished.

The steps that are done stay as they are, so the run may change its length where the schedule gives each of them the
same learning rate as before: then it is the run that would have been started with that length. That holds for constant
and plateau schedules, for wsd before its decay, and for any during warm-up. Elsewhere `extend=true` is needed. The
length of the warm-up never changes. A stage whose other settings follow from the run's length cannot be extended.

config.json has the length that counts, and a stage that was done is so no more; its plan in first_launch.json follows
when the stage is built (`Bench.plan`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.config import changed, dump
from samestep.core.errors import UserError
from samestep.core.json_files import Json, expected_content, find_object
from samestep.core.rundir import RunDir
from samestep.core.typed_json import from_json
from samestep.train.record.config import Config
from samestep.train.record.fixed_values import PLAN, plan_of, read_fixed

OWN_SCHEDULE = "own_schedule"
"""In first_launch.json, where a learner of a stage has a schedule of its own over the stage's steps."""
LENGTH_SETTINGS = ("max_steps", "epochs")
"""The fixed settings that may change when a run is resumed."""


@dataclass(frozen=True)
class Extension:
    """A stage that gets another length."""

    stage: str
    step: int
    """Steps it has done."""
    before: int
    """Its steps so far."""
    after: int
    """Its steps from now on."""
    old_rate: float
    """The planned learning rate of the next step before."""
    new_rate: float
    """And from now on."""
    has_own_schedule: bool
    """Whether a learner has a schedule of its own over the stage's steps."""
    keeps_rates: bool
    """Whether the new schedules have the learning rate that each of the steps done had."""
    event: ClassVar[str] = "extended"

    def __str__(self) -> str:
        longer = f"stage {self.stage!r} has {self.after:,} steps from now on instead of {self.before:,}"
        if self.keeps_rates:
            return f"{longer}; the new schedule has the same learning rates up to step {self.step:,}"
        return (
            f"{longer}; the learning rate from step {self.step:,} on follows the new schedule: "
            f"{self.new_rate:g} instead of {self.old_rate:g} at step {self.step:,}"
        )

    def to_json(self) -> dict[str, Json]:
        """For the events of the run."""
        return {"stage": self.stage, "step": self.step, "before": self.before, "after": self.after}


@dataclass(frozen=True)
class LaterLength:
    """Another length that only stages to come have."""

    done: str
    """The last stage that is done."""
    stages: Sequence[str]
    event: ClassVar[str] = "later_length"

    def __str__(self) -> str:
        later = _quoted(self.stages)
        return f"stage {self.done!r} is done and stays as it is; the new max_steps and epochs are for {later}"

    def to_json(self) -> dict[str, Json]:
        """For the events of the run."""
        return {"done": self.done, "stages": list(self.stages)}


def find_extension(
    rundir: RunDir, configs: Mapping[str, Config], before: Mapping[str, Config]
) -> Extension | LaterLength | None:
    """How a run's length changes with these settings of its stages, in order; None where none does. `before` has their
    settings with the run's length so far.

    The stage is the one that has not finished, or the last one. Refuses a length that is shorter than what is done, one
    that changes other settings of a stage that has begun, and one for stages that `until` does not let begin.
    """
    for begun in (stage for stage in configs if stage in before and read_done(rundir, stage) is None):
        _check_settings(rundir, begun, configs[begun], before[begun])
    known = read_fixed(rundir)
    plans = {stage: plan_of(fixed) for stage, fixed in known.items() if stage in configs and PLAN in fixed}
    if not plans:
        return None
    stage, last_stage = list(plans)[-1], list(configs)[-1]  # stages begin in order
    config = configs[stage]
    done = read_done(rundir, stage)
    if done is not None and stage != last_stage:
        if read_done(rundir, last_stage) is not None:
            raise UserError(
                f"stage {stage!r} of {rundir.path}, the last whose length max_steps and epochs set, is done, and "
                f"{last_stage!r} came after it; start a new run with init_from={rundir.path}"
            )
        return _later_length(rundir, stage, configs, before)
    plan = plans[stage]
    longer = plan.with_length_of(config)
    if longer == plan:
        return None
    step = done["step"] if done else max(checkpoint_folders(rundir.checkpoints(stage)), default=0)
    _check_length(rundir, stage, longer.steps, step, done or {}, config)
    _check_settings(rundir, stage, config, before.get(stage, config))
    old, new = plan.schedule(config), longer.schedule(config)
    # Schedules of two lengths agree up to a step, and differ ever after.
    has_own = bool(known[stage].get(OWN_SCHEDULE))
    keeps_rates = step == 0 or (old(step - 1) == new(step - 1) and not has_own)
    return Extension(stage, step, plan.steps, longer.steps, old(step), new(step), has_own, keeps_rates)


def _later_length(
    rundir: RunDir, done: str, configs: Mapping[str, Config], before: Mapping[str, Config]
) -> LaterLength:
    """The stages after the one that is done, if they get another length and this launch goes on with them."""
    names = list(configs)
    until, after = configs[done].until, names[names.index(done) + 1 :]
    later = [name for name in after if _length(configs[name]) != _length(before[name])]
    if later and until not in names[: names.index(done) + 1]:
        return LaterLength(done, later)
    others = f"leave out until, and it is the length of {_quoted(later)}; or " if later else ""
    raise UserError(
        f"stage {done!r} of {rundir.path} is done and cannot become longer, since {_quoted(after)} would come "
        f"after it; {others}start a new run with init_from={rundir.path}"
    )


def _quoted(names: Sequence[str]) -> str:
    return ", ".join(map(repr, names))


def _length(config: Config) -> list[int | None]:
    return [getattr(config, name) for name in LENGTH_SETTINGS]


def _check_length(rundir: RunDir, stage: str, steps: int, step: int, done: Mapping[str, Json], config: Config) -> None:
    if steps < max(step, 1):
        raise UserError(
            f"{steps:,} steps are fewer than the {step:,} that stage {stage!r} of {rundir.path} has done; "
            "give a larger max_steps or epochs"
        )
    if "waited" in done and stays_stopped(done, config):
        raise UserError(
            f"stage {stage!r} of {rundir.path} stopped early after step {step:,} ({done['stopped_early']}), so more "
            f"steps alone do not continue it; add early_stopping=0, or more than {done['waited']}"
        )


def _check_settings(rundir: RunDir, stage: str, config: Config, before: Config) -> None:
    if not checkpoint_folders(rundir.checkpoints(stage)):
        return
    found = changed(dump(before), dump(config), type(config))
    names = [name for name in found if name not in LENGTH_SETTINGS]
    if names:
        raise UserError(
            f"stage {stage!r} of {rundir.path} has settings that its config function makes from the run's length "
            f"({', '.join(names)}), and they cannot change once it has begun; leave max_steps and epochs as they are, "
            f"or start a new run with init_from={rundir.path}"
        )


def require_extendable(rundir: RunDir, configs: Mapping[str, Config], before: Mapping[str, Config]) -> None:
    """Refuse another length that changes the learning rate of steps that are done, unless `extend` allows it."""
    found = find_extension(rundir, configs, before)
    if not isinstance(found, Extension) or found.keeps_rates or configs[found.stage].extend:
        return
    schedule = configs[found.stage].schedule
    if found.has_own_schedule:
        raise UserError(
            f"a learner in stage {found.stage!r} of {rundir.path} has a schedule of its own over the {found.before:,} "
            f"steps; with --extend it is one over {found.after:,} steps from now on, so it is not the run that would "
            f"have been started with that many; add --extend, or start a new run with init_from={rundir.path}"
        )
    raise UserError(
        f"the {schedule} schedule of {rundir.path} is made for {found.before:,} steps; with --extend it has "
        f"{found.after:,} steps from now on, and the learning rate is {found.new_rate:g} instead of {found.old_rate:g} "
        f"at step {found.step:,}, so it is not the run that would have been started with {found.after:,} steps; add "
        f"--extend, or start a new run with init_from={rundir.path}"
    )


def read_done(rundir: RunDir, stage: str) -> dict[str, Json] | None:
    """What a stage wrote when it was done: `step`, and where it stopped early `stopped_early` and `waited`."""
    path = rundir.done(stage)
    done = find_object(path)
    if done is None:
        return None
    with expected_content(path):
        from_json(_Done, done)
    return done


@dataclass(frozen=True)
class _Done:
    """The types of what is read from a stage's done.json, as far as it has it."""

    step: int
    stopped_early: str = ""
    waited: int = 0
    config: dict[str, Any] = field(default_factory=dict)
    code: dict[str, str] | None = None

    def __post_init__(self) -> None:
        if self.step < 0:
            raise ValueError(f"step is {self.step}")


def stopped_early(rundir: RunDir, stages: Sequence[str]) -> dict[str, Json]:
    """For the status of a run that is done: which of its stages stopped early, and why; empty if none did."""
    done = {stage: read_done(rundir, stage) or {} for stage in stages}
    texts = [
        f"stage {stage!r} stopped early after step {found['step']:,}: {found['stopped_early']}"
        for stage, found in done.items()
        if "stopped_early" in found
    ]
    return {"stopped_early": "; ".join(texts)} if texts else {}


def stays_stopped(done: Mapping[str, Json], config: Any) -> bool:
    """Whether a stage that is done, and stopped early if it did, has nothing left to do with these settings."""
    return "waited" not in done or 0 < config.early_stopping <= done["waited"]
