"""A masked-diffusion language model in the manner of LLaDA: `samestep train mdlm --preset tiny`."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from samestep.core.records import write_json
from samestep.data.vocabulary import BYTES
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm import corpus
from samestep.recipes.mdlm.corpus import DataConfig
from samestep.recipes.mdlm.objective import Objective, ObjectiveConfig, figures
from samestep.recipes.mdlm.presets import PRESETS
from samestep.recipes.mdlm.sampling import SamplingConfig, write
from samestep.train.bench import Bench
from samestep.train.config import Config
from samestep.train.fit import Fit
from samestep.train.recipe import Recipe, Stage
from samestep.train.trained import Trained


@dataclass(frozen=True)
class MdlmConfig(Config):
    """A masked-diffusion language model."""

    preset: str = "tiny"
    """A named set of values: tiny for a CPU, small for a GPU, verify for proofs."""
    data: DataConfig = field(default_factory=DataConfig)
    """What to learn from."""
    model: TransformerConfig = field(default_factory=TransformerConfig)
    """The network."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """How tokens are hidden, and how validation averages over it."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How text is written at the end of training and by `samestep sample`."""


def build(bench: Bench) -> Fit:
    """One network, fitted to the text."""
    config: MdlmConfig = bench.config
    text = corpus.load(config.data)
    if bench.world.is_main:
        write_json(bench.artifact("corpus.json"), text.describe())
    objective = Objective(config.objective, BYTES, config.seed)
    feed = bench.feed(text.train, count=objective.count)
    return Fit(
        bench.learner(Transformer(config.model)),
        feed,
        objective.loss,
        validation=bench.rows_once(text.validation, count=objective.measure_count),
        measure=objective.measure,
        derive=lambda found: figures(found["nll"]),
    )


def show_sample(task: Fit, bench: Bench) -> None:
    """Write a little text, so that one sees what was learned."""
    with task.learner.inference() as module:
        text = write(module, "", 1, bench.config.sampling, seed=bench.config.seed)[0]
    bench.screen.say(f"\nsampled text:\n{text}\n")


def sample(trained: Trained, prompt: str, samples: int) -> list[str]:
    """A prompt continued by a trained network, several times."""
    config: MdlmConfig = trained.config
    network = Transformer(config.model)
    trained.load(network)
    return [prompt + text for text in write(network.eval(), prompt, samples, config.sampling, seed=config.seed)]


def stages(config: MdlmConfig) -> list[Stage]:
    """One stage: pre-training."""
    best = ("val/bits_per_byte", "min")
    return [Stage("pretrain", build, validate=Fit.validate, best=best, finish=show_sample, unit="tokens")]


def describe(config: MdlmConfig) -> Mapping[str, str]:
    """The dataset and the network, for the banner."""
    model = config.model
    return {
        "dataset": config.data.path or "pydoc_data.topics (the text inside Python)",
        "model": f"{model.n_layers} layers of width {model.d_model}, rows of {config.data.sequence_length} bytes",
    }


recipe = Recipe(
    config=MdlmConfig,
    stages=stages,
    presets=PRESETS,
    aliases={"data_dir": "data.path", "save_dir": "out"},
    sample=sample,
    describe=describe,
)
