"""The numbers of one stage, as its first launch fixed them, and the learning rates that follow from them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from samestep.core.errors import UserError
from samestep.train.record.config import Config
from samestep.train.record.extension import OWN_SCHEDULE
from samestep.train.record.first_launch import FirstLaunch
from samestep.train.record.plan import Plan, Schedule, global_batch
from samestep.train.record.progress import Progress

Rate = Callable[[int], float]
"""The learning rate as a function of the loop's step."""


@dataclass
class StagePlan:
    """The plan of a stage, which its first training feed makes."""

    config: Config
    dp_size: int
    """Shares of the data."""
    first_launch: FirstLaunch
    progress: Progress
    known: Plan | None = None
    """None until there is a training feed."""
    given_rates: dict[str, Rate] = field(default_factory=dict)
    """By learner, the learning rates that the recipe gave."""
    batch_size_note: str = ""
    """How `batch_size=auto` became a number; empty where it was one."""

    @property
    def global_batch(self) -> int:
        """Rows of a step over all ranks. A session fills it into the settings, from the first launch's ranks."""
        return global_batch(self.config, self.dp_size)

    def fix(self, samples: int) -> Plan:
        """The plan for this number of training samples: as the first launch fixed it, or fixed now."""
        if self.known is not None:
            return self.known
        made = self.first_launch.fix("plan", lambda: Plan.make(self.config, self.dp_size, samples).to_json())
        self.known = self._extended(Plan(**made))
        if self.known.samples != samples:
            raise UserError(
                f"this run was started on {self.known.samples} training samples but the data now has "
                f"{samples}; restore the data, or start a new run (init_from=... keeps the weights)"
            )
        if self.known.steps_per_epoch != -(-samples // self.global_batch):
            raise UserError(
                f"stage {self.first_launch.stage!r} was started with another global batch than {self.global_batch} "
                "rows; give it that again, or start a new run"
            )
        return self.known

    def rate(self, step: int) -> float:
        """The learning rate of learners that were given none."""
        return self._planned().schedule(self.config)(step) * self.progress.improvement.rate_factor

    def give_rate(self, learner: str, rate: Rate | Schedule) -> Rate:
        """The learning rate that the recipe gives a learner. A schedule without a number of steps takes all those of
        the stage, once they are known."""
        if isinstance(rate, Schedule):
            rate = self._over_stage(rate)
        self.given_rates[learner] = rate
        return rate

    def steps_left(self) -> int:
        """Steps that are still to be done; 0 where that is not known."""
        return self.known.steps - self.progress.step if self.known else 0

    def _extended(self, plan: Plan) -> Plan:
        """The plan, as long as the configuration asks for now (see extension.py)."""
        longer = plan.with_length_of(self.config)
        if longer != plan:
            self.first_launch.change("plan", longer.to_json())
        return longer

    def _over_stage(self, schedule: Schedule) -> Rate:
        if not schedule.steps and schedule.kind != "constant":
            self.first_launch.fix(OWN_SCHEDULE, lambda: True)
        return lambda step: (schedule if schedule.steps else replace(schedule, steps=self._planned().steps))(step)

    def _planned(self) -> Plan:
        assert self.known is not None, "make the training feed before the first update: it fixes the plan"
        return self.known
