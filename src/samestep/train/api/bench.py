"""The bench: what a stage builds its task with. It has the world, the configuration and the run directory.

def build(bench):
    return Fit(bench.learner(Net()), bench.feed(train_rows), loss, validation=bench.evaluation_feed(val_rows))
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from torch import nn

from samestep.core.arguments import explains_arguments
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.data.collate import Collate
from samestep.data.datasets import open_rows
from samestep.data.feed import Feed, MicroBatches
from samestep.data.loading import Rows, RowWeights
from samestep.data.order import VALIDATION_EPOCH, Order, Sequential
from samestep.data.order_choice import OrderChoice, choose_order
from samestep.data.rollout import Make, Moments, moments, produce, split_rows
from samestep.parallel.blocks import checkpoint_activations
from samestep.parallel.build import FillFunction
from samestep.parallel.precision import COMPUTE_DTYPES
from samestep.parallel.wrap import wrap
from samestep.train.api.recipe_checks import INSTEAD_IN_FEED, INSTEAD_IN_LEARNER, check_learner_arguments
from samestep.train.api.stage_feeds import StageFeeds
from samestep.train.api.stage_plan import Rate, StagePlan
from samestep.train.api.stream_checks import count_stream, training_rows
from samestep.train.artifacts.array_format import ArrayLayout
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows
from samestep.train.artifacts.array_writer import ArrayArtifact, check_array_artifact
from samestep.train.artifacts.artifact_key import ArtifactKey
from samestep.train.artifacts.files import atomic_artifact, check_name
from samestep.train.learner.draws import Draws
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.learner.frozen import Frozen
from samestep.train.learner.learner import ROUNDING_SCALE, Learner
from samestep.train.learner.lora import Lora
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.learner.optimizers.choices import Factory, OptimizerChoice
from samestep.train.learner.optimizers.groups import Group
from samestep.train.learner.preparation import Choices
from samestep.train.logging.compile_notice import CompileNotice
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import MetricValues
from samestep.train.logging.sample_log import SampleLog
from samestep.train.record.config import Config
from samestep.train.record.first_launch import StageInfo
from samestep.train.record.plan import Plan, Schedule
from samestep.train.record.progress import Progress
from samestep.train.record.samples import Sample
from samestep.train.record.stop import Stop
from samestep.train.weights.first_weights import FirstWeights
from samestep.train.weights.frozen_networks import FrozenNetworks
from samestep.train.weights.learner_network import build_learner_network, in_its_type
from samestep.world.world import World


@dataclass
class Bench:
    """Everything a stage may build with."""

    world: World
    """This process among the others: rank, size, device."""
    config: Any
    """The stage's configuration, an object of the recipe's class."""
    rundir: RunDir
    """The paths of the run directory."""
    stage: str
    """The name of the stage."""
    screen: Screen
    unused: Sequence[str] = ()
    """Glob patterns of parameters that get no gradient, as the recipe declares."""
    recorder: EvidenceRecorder | None = None
    start: str | None = None
    """The earlier stage whose weights the learners begin with."""
    unit: str = "rows"
    """The counted weight that speed is shown in."""
    resumed: bool = False
    """Whether this stage has a checkpoint, which will restore all its state once it is built."""
    shared: bool = True
    """Whether all ranks see the run directory."""
    progress: Progress = field(default_factory=Progress)
    """How far the stage has come; learning rates follow its step."""
    stop: Stop | None = None
    """When the run stops; None where nothing can ask it to."""
    learners: list[Learner] = field(default_factory=list)
    sample_logs: Sequence[SampleLog] | None = None
    """Where rank 0 writes samples; empty on other ranks, None before the first step."""
    is_trial: bool = False
    """Whether code of the recipe only runs to see whether it works: nothing is written."""
    is_built: bool = False
    """Whether the stage's task is built."""
    banner: dict[str, str] = field(default_factory=dict)
    """Lines that `build` adds to the banner, by name."""
    array_artifacts: dict[str, ArrayArtifact] = field(default_factory=dict)
    """Those that this stage writes, by name; the runtime saves and finishes them."""

    def __post_init__(self) -> None:
        info = StageInfo(
            self.config, self.world, self.rundir, self.stage, self.start, self.resumed, is_shared=self.shared
        )
        self.first_launch = info.first_launch
        self.feeds = StageFeeds(info, self.unit, self.learners)
        self.stage_plan = StagePlan(self.config, self.world.dp_size, self.first_launch, self.progress)
        self.first_weights = FirstWeights(info)
        self.compile_notice = CompileNotice(self.screen)
        self.frozen_networks = FrozenNetworks(info, self.first_weights, self.compile_notice.before_compiling)

    def plan(self, samples: int) -> Plan:
        """The stage's numbers, for the samples of its first training feed: as frozen by the first launch, or now."""
        return self.stage_plan.fix(samples)

    @property
    def known_plan(self) -> Plan | None:
        """The plan, once a training feed made one."""
        return self.stage_plan.known

    @explains_arguments("bench.feed", **INSTEAD_IN_FEED)
    def feed(
        self,
        rows: Rows,
        *,
        order: Order | OrderChoice | None = None,
        count: RowWeights | None = None,
        collate: Collate | None = None,
        pad: Mapping[str, float] | None = None,
        keyed_random: bool = False,
    ) -> Feed:
        """Training data in an order that any world size shares; shuffled again in each epoch unless an order is given.

        The first one fixes how long the stage is. Others have the same global batch and run through their own epochs.
        `count` gives each row's weight in terms of the loss, or in the stage's unit. `collate` makes a batch of a list
        of samples; `pad` names what is padded to the longest of a micro-batch, and with what value. `keyed_random` is
        for rows that draw from the generators of Python, numpy or torch: these are seeded for each row."""
        data = open_rows(rows, collate, pad, keyed_random)
        plan = self.plan(training_rows(data.rows, self.config.max_steps))
        self.feeds.check(data, "training")
        order = choose_order(data.rows, order, self.stage_plan.global_batch, self.config.seed)
        return self.feeds.make(data, order, plan.steps, count)

    @explains_arguments("bench.evaluation_feed", **INSTEAD_IN_FEED)
    def evaluation_feed(
        self,
        rows: Rows,
        *,
        count: RowWeights | None = None,
        batch: int | None = None,
        collate: Collate | None = None,
        pad: Mapping[str, float] | None = None,
        keyed_random: bool = False,
    ) -> Feed:
        """Every row exactly once, in order, with fixed noise: for validation and for dumps."""
        data = open_rows(rows, collate, pad, keyed_random)
        count_stream(data.rows, self.world, in_worker=self.config.num_workers > 0)
        if len(data.rows) < 1:
            raise UserError("the validation data is empty: there is no row to validate on")
        self.feeds.check(data, "validation")
        order = Sequential(len(data.rows), batch or self.stage_plan.global_batch, epoch=VALIDATION_EPOCH)
        return self.feeds.make(data, order, order.steps_per_epoch, count, partial(self.screen.track, "validate"))

    def produced(
        self, prompts: MicroBatches, make: Make, *, copies: int = 1, count: RowWeights | None = None
    ) -> MicroBatches:
        """Rows that `make` makes of copies of the prompts, inside a step, to update learners on.

        Their weights are counted and summed over the ranks now, so all ranks call it alike."""
        return produce(self.world, prompts, make, copies, count, self.feeds.counted)

    def split(self, rows: MicroBatches, parts: int, *, turn: int = 0) -> list[MicroBatches]:
        """Rows in parts for several updates, split alike at any world size; another `turn` is another split."""
        return split_rows(self.world, rows, parts, turn)

    def moments(self, rows: MicroBatches, name: str) -> Moments:
        """Mean and variance of a value a row over the global batch, equal on all ranks and at any world size."""
        return moments(self.world, rows, name)

    def check_stop(self) -> None:
        """Leave the step if the run is asked to stop, by a signal or its time limit; for long rollouts.

        Every rank calls it alike, inside a step, which is done again on resume. The state from before it is saved,
        unless the step has changed it already, by an update or otherwise; then the last checkpoint counts."""
        if self.stop is not None:
            self.stop.check_inside()

    @explains_arguments("bench.learner", **INSTEAD_IN_LEARNER)
    def learner(
        self,
        module: nn.Module | Callable[[], nn.Module],
        *,
        name: str = "model",
        rate: Rate | Schedule | None = None,
        optimizer: OptimizerChoice | Factory | None = None,
        groups: Mapping[str, Group] | None = None,
        weight_decay: float | None = None,
        clip: float | None = None,
        clip_value: float | None = None,
        dtype: Literal["float32", "float64", "bfloat16"] | None = None,
        init_from: str | None = None,
        lora: Lora | None = None,
    ) -> Learner:
        """A learner of `module`, or of the one that `module` builds when it is called.

        The latter is for large networks. One that begins with the weights of a file, or offers `init_parameter(name,
        weight)`, is then built without memory, and each device fills only its own shard. It may be called twice.
        `rate` gives the learning rate of each step, `groups` what differs by patterns of parameter names, `dtype` the
        type of the parameters; `clip` bounds the gradient's norm, `clip_value` its elements; what is not given is as
        the configuration says. `init_from` is the run, checkpoint or weight file that this learner begins with,
        whatever else is named. `lora` freezes the network and trains adapters in it."""
        config: Config = self.config
        check_learner_arguments(name, [learner.name for learner in self.learners], rate, groups, optimizer)
        rate = self.stage_plan.rate if rate is None else self.stage_plan.give_rate(name, rate)
        settings = OptimSettings.of(config).given(optimizer, groups, weight_decay, clip, clip_value)
        network = build_learner_network(
            module, self.first_weights, name=name, lora=lora, init_from=init_from, seed=config.seed
        )
        prepared = in_its_type(network.module, config.distributed.dtype, dtype, self.unused)
        initial = self.first_weights.of_fitting(name, prepared) or network.fill
        self._on_network(name, prepared, initial)
        checkpoint_activations(prepared, config.activation_checkpointing)
        compute = COMPUTE_DTYPES.get(config.distributed.mixed_precision)
        parallel = wrap(prepared, self.world, config.distributed.strategy, compute, initial)
        learner = Learner(
            parallel,
            self.world,
            rate,
            settings,
            name=name,
            mixed_precision=config.distributed.mixed_precision,
            max_bad_steps=config.max_bad_steps,
            recorder=self.recorder,
            step=partial(getattr, self.progress, "step"),
            seed=config.seed,
            rounding_scale=ROUNDING_SCALE if config.evidence_rounding else 1.0,
            choices=_choices(self),
        )
        self.learners.append(learner)
        self.frozen_networks.add_learner(
            learner, module, network.begins_at_base, self.first_weights.hashes.get(name, {})
        )
        return learner

    def log_samples(self, name: str, *given: Sample | str) -> None:
        """Show what the network makes: texts, or samples of another kind (`samestep.samples`), `log.samples` of a name
        and step at most. Every rank may call it in a step, a validation, a hook or `finish`; rank 0 writes."""
        if self.sample_logs is None:
            raise RuntimeError("samples can be logged once training has begun: in a step, a hook or `finish`")
        for log in self.sample_logs:
            log.write(self.progress.current, name, given)

    @property
    def sample_count(self) -> int:
        """How many samples to make, equal on all ranks: `log.samples`, and one where validation is only tried."""
        return min(1, self.config.log.samples) if self.is_trial else self.config.log.samples

    @property
    def validation(self) -> MetricValues:
        """The validation metrics of this step, equal on all ranks; empty where it did not validate. For hooks."""
        return self.progress.validation

    def frozen(
        self,
        network: nn.Module | Callable[[], nn.Module] | Learner,
        *,
        name: str = "reference",
        source: str | Path | None = None,
        shard: bool = False,
        dtype: str | None = None,
    ) -> Frozen:
        """A network that is not trained: a module, the one that a function builds, or a copy of a learner's first
        weights. `source` is a run, checkpoint or weight file to fill it from; `shard` shards it over the ranks; `dtype`
        is the type of its weights (default: as it is). It is in no checkpoint, and a resume refuses another one."""
        return self.frozen_networks.build(network, name=name, source=source, sharded=shard, dtype=dtype)

    def draws(self, purpose: str) -> Draws:
        """Keyed sampling of tokens inside the stage, for a named purpose."""
        return Draws(purpose, self.config.seed, self.recorder)

    def artifact(self, name: str, stage: str | None = None) -> Path:
        """The path of an artifact of this stage, or of an earlier one."""
        return self.rundir.artifacts(stage or self.stage) / name

    def write_artifact(self, name: str) -> AbstractContextManager[Path]:
        """A path to write a file or a folder to: `with bench.write_artifact("vocab.json") as path:`. It appears as this
        artifact when the block ends, complete, or not at all. Only what rank 0 writes is kept."""
        check_name(name)
        return atomic_artifact(self.artifact(name), self.world.is_main)

    def array_artifact(
        self, name: str, rows: int, fields: Mapping[str, tuple[Sequence[int], str]], key: ArtifactKey | None = None
    ) -> ArrayArtifact:
        """Arrays of `rows` rows that all ranks fill (see `Dump`): by field, the shape of a row and the type. Made while
        the stage is built; appears when the stage is done. A resume refuses another `key`. Collective."""
        check_array_artifact(name, self.array_artifacts, self.is_built)
        layout = ArrayLayout.make(name, rows, fields, proof=self.config.distributed.dtype == "float64")
        step = partial(getattr, self.progress, "step")
        self.array_artifacts[name] = ArrayArtifact(
            self.artifact(name), layout, self.world, step=step, resumed=self.resumed, shared=self.shared, key=key
        )
        return self.array_artifacts[name]

    def read_array_artifact(self, name: str, stage: str | None = None, key: ArtifactKey | None = None) -> ArrayRows:
        """The rows of an array artifact of this stage, or of an earlier one, memory-mapped; refused if it was computed
        from something else than `key` says. Collective."""
        return open_array_rows(self.artifact(name, stage), self.world, self.shared, key)

    def _on_network(self, learner: str, module: nn.Module, initial: FillFunction | None) -> None:
        """Called before a learner's module is put on its device: a bench that only loads a network leaves `build`."""


def _choices(bench: Bench) -> Choices:
    """What is decided before the first update of each learner."""
    return Choices.of(
        bench.config,
        bench.world,
        bench.first_launch,
        bench.stage_plan.steps_left,
        bench.frozen_networks.compile,
        bench.compile_notice.before_compiling,
    )
