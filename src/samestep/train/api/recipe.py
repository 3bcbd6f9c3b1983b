"""A recipe is a record of functions, and its stages are a list of such records."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from samestep.core.arguments import check_function, described, explains_init
from samestep.core.config import Alias, NoEffect
from samestep.core.errors import UserError
from samestep.train.api.bench import Bench
from samestep.train.api.loop import Hook
from samestep.train.api.recipe_checks import check_names, check_presets, check_stages
from samestep.train.logging.metrics import MetricValues
from samestep.train.record.config import TRAINING_SETTINGS, Config
from samestep.train.record.progress import Tick
from samestep.world.world import World


def no_validation(task: Any, tick: Tick) -> MetricValues:
    return {}


def no_finish(task: Any, bench: Bench) -> None:
    """Nothing to hand over."""


def no_hooks(task: Any, bench: Bench) -> Sequence[Hook]:
    return ()


@explains_init(
    metric='name it with "min" or "max" in best=(metric, "min")',
    validation="give the function validate=..., and the feed to the task: Fit(..., validation=feed)",
    task="give the function that makes it: Stage(name, build)",
)
@dataclass(frozen=True)
class Stage:
    """One phase of a recipe. Stages run in order, each resumes alone, and they hand over through artifacts on disk."""

    name: str
    """What it is called: in the run directory, on the screen, and in `until` and `start`."""
    build: Callable[[Bench], Any]
    """Makes the stage's task out of what the bench offers."""
    validate: Callable[[Any, Tick], MetricValues] = no_validation
    """Validation metrics of a task, equal on all ranks."""
    best: tuple[str, str] | None = None
    """The validation metric that decides which checkpoint is best, and `min` or `max`."""
    finish: Callable[[Any, Bench], None] = no_finish
    """Runs after the last step on every rank; writes artifacts for later stages."""
    unit: str = "rows"
    """The counted weight that speed is shown in, such as `tokens`."""
    start: str | None = None
    """The earlier stage whose weights this stage's learners begin with: `align` or `align:best`; None: from the seed,
    or with `init_from` if no earlier stage used it."""
    hooks: Callable[[Any, Bench], Sequence[Hook]] = no_hooks
    """Further hooks for a task: they run on every rank after each step, after validation and before the save."""
    config: Callable[[Any], Any] | None = None
    """The stage's own settings, made from the run's: `lambda c: replace(c, learning_rate=c.align_lr)`."""
    ignores: Sequence[str] = ()
    """Settings that this stage does not use (glob patterns); `stages_from` takes it over whatever they are."""
    shown: Sequence[str] = ()
    """Metrics on the screen, in this order (names, or glob patterns). Where none of them is there, training steps show
    their losses, and a validation its first eight; the metric of `best` is always there. The files have all."""
    gpus_of: str | None = None
    """The stage whose number of GPUs it has in `samestep submit`: `--num-gpus-train` is then for both."""

    def __post_init__(self) -> None:
        check_names(self.name, self.best, {"ignores": self.ignores, "shown": self.shown})
        functions = {"build": ["bench"], "validate": ["task", "tick"], "finish": ["task", "bench"]}
        for field_name, arguments in {**functions, "hooks": ["task", "bench"], "config": ["config"]}.items():
            function = getattr(self, field_name)
            if function is not None or field_name != "config":
                check_function(f"{field_name} of stage {self.name!r}", function, arguments)

    @property
    def trains(self) -> bool:
        """Whether it trains: one that only computes, such as a dump, ignores TRAINING_SETTINGS."""
        return not set(TRAINING_SETTINGS) <= set(self.ignores)


@dataclass(frozen=True)
class NoOptions:
    """A verb without options of its own."""


@dataclass(frozen=True)
class Verb:
    """What a recipe does for `samestep sample` or `samestep evaluate`."""

    run: Callable[..., Any]
    """(trained, options, world) to the result, on every rank: for `sample` one record (a dict that JSON can hold) for
    each sample, whose `text` is printed; for `evaluate` names and values. `trained.network()` loads the network."""
    options: type = NoOptions
    """A dataclass whose fields are the verb's flags for this recipe; the text under a field is its help."""
    aliases: Mapping[str, str | Alias] = field(default_factory=dict)
    """Short names of settings that go with this verb, such as `temperature` for `sampling.temperature`."""
    show: Callable[..., None] | None = None
    """(trained, result): prints the result, on rank 0; None: as plain text."""
    second: str | None = None
    """The option that a second model on the command line sets, as in `samestep evaluate RUN_A RUN_B`; None: there is
    no second model."""


_COMMON_ALIASES = {"log_level": "log.level", "quiet": "log.quiet"}


@explains_init(
    stage="give a function that lists the stages: stages=lambda config: [Stage(...)]",
    preset="give presets={name: {setting: value}}",
)
@dataclass(frozen=True)
class Recipe:
    """A complete training method. `config` inherits from samestep's Config; `stages` lists what to run, in order."""

    config: type[Config]
    """The class of its configuration, which inherits from `Config`."""
    stages: Callable[[Any], Sequence[Stage]]
    """(config) to what to run, in order."""
    presets: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Named sets of values; `verify` is the small one that proofs run on."""
    aliases: Mapping[str, str | Alias] = field(default_factory=dict)
    """Flag names that people know from other programs."""
    no_effect: Sequence[NoEffect] = ()
    """Settings that have no effect beside others: whoever gives one is told."""
    version: int = 1
    """Raise it when the recipe trains otherwise with the same settings: a run that another version began is then not
    resumed, since its second half would be that of another run."""
    unused: Sequence[str] = ()
    """Trainable parameters that are known to get no gradient (glob patterns)."""
    describe: Callable[[Any], Mapping[str, str]] | None = None
    """Extra lines for the banner: (config) to name and value."""
    resolve: Callable[[Any], Any] | None = None
    """Fills in what a configuration takes from its data or from its first weights, before the run is recorded."""
    read_pretrained: Callable[[Path], Any] | None = None
    """Recognises a published model: (folder or .pt file) to its configuration, or None when it is of another kind."""
    read_tokenizer: Callable[..., Any] | None = None
    """Reads a tokenizer for `samestep data prepare`: (folder, mask token or None, end token or None) to a tokenizer."""
    networks: Callable[[Any], Mapping[str, Callable[[], nn.Module]]] | None = None
    """(config) to a function for each learner that builds its network, as `build` does: for loading a trained network
    where the data of its stage is not at hand. Not needed where `build` makes the learner before it reads data."""
    language_models: Callable[[Any], Mapping[str, Callable[[World], Any]]] | None = None
    """(config) to a function for each learner that is a causal language model: (world) to the model, of the class
    `LanguageModel`, that its training began with. Other runs can then begin with what it learned, by its name."""
    encoders: Callable[[Any], Mapping[str, Callable[[World], Any]]] | None = None
    """(trained model) to a function for each learner that is a sentence encoder: (world) to its `EncoderSource`, which
    reads texts as it was trained to. Other runs can then take what it learned as teacher or student, by its name."""
    code_settings: Sequence[str] = ()
    """Settings that may name a function, as `module:function`. It is run, so it is taken only from the command line and
    from the recipe, never from a config file."""
    model_settings: Mapping[str, str] = field(default_factory=dict)
    """By learner, the setting that names its language model: an exported one names itself there."""
    sample: Verb | None = None
    """Generates from a trained model."""
    evaluate: Verb | None = None
    """Evaluates a trained model."""
    methods: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    """What a model of this recipe can do in Python: `samestep.load(RUN).generate(...)` calls the function of that name
    with the model and the arguments. `model.use(verb, ...)` is a verb of the command line."""
    export: Callable[..., Sequence[str]] | None = None
    """Writes a trained model in its published form: (trained, folder, options), and returns lines of Python that load
    it. None: a language model is written as a folder of transformers, another network as safetensors."""
    exports_onnx: bool = False
    """Whether `export` minds `options.onnx`; else `samestep export --onnx` is refused."""

    def __post_init__(self) -> None:
        if not isinstance(self.config, type) or not issubclass(self.config, Config):
            raise UserError(
                "a recipe's config must be the class of its settings, Config or a dataclass that inherits from it, but "
                f"is {described(self.config)}"
            )
        if isinstance(self.stages, list | tuple | Stage):
            raise UserError(
                "a recipe's stages must be a function of the settings; write stages=lambda config: [Stage(...)]"
            )
        check_function("a recipe's stages", self.stages, ["config"])
        check_presets(self.presets)
        list_stages = self.stages

        def stages(config: Any) -> Sequence[Stage]:  # whoever asks for the stages gets checked ones
            found = list_stages(config)
            check_stages(found, Stage)
            return found

        object.__setattr__(self, "stages", stages)

    @property
    def all_aliases(self) -> dict[str, str | Alias]:
        """Its own, and those that every recipe has."""
        return {**_COMMON_ALIASES, **self.aliases}

    def stage_configs(self, config: Any) -> dict[str, Any]:
        """The configuration of each stage, in order."""
        return {stage.name: stage.config(config) if stage.config else config for stage in self.stages(config)}

    def length_configs(self, config: Any) -> dict[str, Any]:
        """The same, where stages that ignore the run's length (`max_steps`, `epochs`) have the default one."""
        found, stages = self.stage_configs(config), self.stages(config)
        ignoring = [stage.name for stage in stages if {"max_steps", "epochs"} <= set(stage.ignores)]
        return found | {name: replace(found[name], max_steps=None, epochs=1) for name in ignoring}
