"""Every setting of the recipe beyond those that all recipes share."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from samestep import CausalConfig, Config, UserError, free
from samestep.core.config.bounds import Bounds, Count, CountOrZero, NotNegative, PartialShare, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.recipes.lens.components import TrainableComponents
from samestep.recipes.lens.schedules import ValueSchedule

SLOT = "<embed>"
"""Where the activation stands in the decoder's prompt."""


@dataclass(frozen=True)
class DataConfig(CheckedConfig):
    """The texts whose activations are explained."""

    path: str | None = None
    """A .txt file, a .jsonl, .json, .csv, .tsv or .parquet file, or a folder of datasets.save_to_disk; null: the
    English text that comes with Python (`pydoc_data.topics`)."""
    text_field: str = "text"
    """The column that holds the text."""
    validation_fraction: PartialShare = 0.1
    """Share of the texts that is kept for validation: whole documents, chosen by the seed, or the end of a single
    one."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many documents, from the beginning, for a quick trial; null: all."""


@dataclass(frozen=True)
class ActivationDumper(CheckedConfig):
    """Which activations there are, and where they come from."""

    mode: Literal["dumped", "live"] = "dumped"
    """dumped: a stage of its own computes all activations once; live: they are computed with every batch."""
    source: str | None = None
    """A run, or a folder with a dump of one, to train with instead of dumping; null: this run's own."""
    num_samples: Annotated[int, Bounds(least=2)] | None = None
    """Activations to train with; null: one for each text."""
    validation_samples: Annotated[int, Bounds(least=2)] | None = None
    """Activations to validate with; null: one for each text that is kept for validation."""
    seq_len: Annotated[int, Bounds(least=2)] = 64
    """Tokens of a text."""
    position: Literal["random", "midpoint"] = "random"
    """The token of a text whose activation is taken: drawn by the seed, or the middle one."""
    min_position: CountOrZero = 5
    """Drawn positions begin here, counted from 0; in a shorter text the last token is taken."""
    batch_size: Count = free(32)
    """Texts at once on a device, in the stages that write tokens and activations."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of stored activations."""
    save_every: Count = free(100)
    """Steps of these stages between two saves: what a kill costs at most."""

    def __post_init__(self) -> None:
        """Refuse settings that contradict each other."""
        if self.min_position >= self.seq_len:
            raise UserError(
                f"Set activation_dumper.min_position below activation_dumper.seq_len={self.seq_len}; it is "
                f"{self.min_position}."
            )
        if self.source is not None and self.mode == "live":
            raise UserError("Set activation_dumper.mode=dumped to train with a dump, or leave out its source.")


@dataclass(frozen=True)
class PretrainConfig(CheckedConfig):
    """How the built-in language model is trained, where no model is named."""

    network: CausalConfig = field(default_factory=lambda: CausalConfig(tied_head=True))
    """Its shape."""
    max_steps: Count = 300
    """Steps."""
    batch_size: Count = 32
    """Texts per step, over all devices."""
    learning_rate: Positive = 3e-3
    """Peak learning rate."""


@dataclass(frozen=True)
class WarmStartConfig(CheckedConfig):
    """A stage before training that gives the decoder a text to write: the last tokens of the activation's context."""

    max_steps: CountOrZero = 0
    """Steps; 0: no such stage."""
    learning_rate: NotNegative | None = None
    """Peak learning rate; null: learning_rate."""
    mse_weight: NotNegative = 1.0
    """Weight of the encoder's error, which rebuilds the activation from the same tokens."""


@dataclass(frozen=True)
class GrpoConfig(CheckedConfig):
    """A stage after training that rewards explanations from which the activation can be rebuilt."""

    max_steps: CountOrZero = 0
    """Steps; 0: no such stage."""
    group_size: Annotated[int, Bounds(least=2)] = 4
    """Explanations of each activation, which are compared with each other."""
    clip_eps: Positive = 0.2
    """How far an update may move the probability of a token."""
    inner_epochs: Count = 1
    """Updates on the same explanations."""
    learning_rate: NotNegative | None = None
    """Peak learning rate; null: learning_rate."""
    mse_weight: NotNegative = 1.0
    """Weight of the encoder's own error, by which it goes on learning from the drawn explanations."""
    entropy_weight: float = 0.0
    """Weight of the entropy of the decoder's distributions, which is made larger."""


@dataclass(frozen=True)
class EvaluationConfig(CheckedConfig):
    """The last stage, which measures the best weights on activations that were kept for validation."""

    rows: CountOrZero = 512
    """Activations, evenly spread over all of them; 0: no such stage."""
    best_of: Count = 8
    """Explanations of each activation, of which the best is kept."""
    fit_rows: Count = 4096
    """Training activations from which the mean and the linear lens are made."""
    shown: Count = 100
    """Explanations on the page."""


@dataclass(frozen=True)
class LensConfig(Config):
    """Activations of a frozen language model as text, and back."""

    preset: str = "tiny"
    """A named set of values; by default `gpt2` where a model is named."""
    model_name: str | None = None
    """A folder with a causal model of transformers, or a model of the Hub (org/name); null: a small model on bytes,
    which is trained first."""
    tokenizer_name: str | None = None
    """A folder or a model of the Hub that the tokenizer is taken from; null: the model's own."""
    layer_l: CountOrZero = 2
    """The activation is what leaves this block, counted from 0."""
    t_text: Count = 8
    """Tokens of an explanation."""
    decoder_prompt: str = f"Explain {SLOT}: "
    """What the decoder reads before it writes; <embed> is where the activation stands."""
    kl_base_weight: NotNegative = 1.0
    """Weight of the KL divergence between the model's output with the activation and with what was rebuilt."""
    lm_base_weight: NotNegative = 0.1
    """Weight of the KL divergence of the decoder's distributions to those of the frozen model, times alpha_schedule."""
    entropy_weight: float = 0.0
    """Weight of the entropy of the decoder's distributions, which is made larger."""
    mse_weight: NotNegative = 1.0
    """Weight of the squared error of the rebuilt activation, divided by the activation's squared norm."""
    gumbel_tau_schedule: ValueSchedule = field(default_factory=lambda: ValueSchedule("linear", 1.0, 0.5))
    """Temperature of the Gumbel-softmax."""
    alpha_schedule: ValueSchedule = field(default_factory=ValueSchedule)
    """Factor of lm_base_weight."""
    stop_gradient_delta: bool = True
    """Take what is added to the rebuilt activation, A' less its own reconstruction, as a constant."""
    kv_cache: bool = True
    """The decoder keeps keys and values of what it has read; false: it reads everything again for each token."""
    compile: bool | None = free(False)
    """Compile the losses with torch.compile: each token of an explanation passes through all blocks, so it takes many
    minutes. null: on a GPU, where it is faster."""
    trainable_components: TrainableComponents = field(default_factory=TrainableComponents)
    """Which parts are trained."""
    data: DataConfig = field(default_factory=DataConfig)
    """The texts."""
    activation_dumper: ActivationDumper = field(default_factory=ActivationDumper)
    """Which activations there are, and where they come from."""
    pretrain: PretrainConfig = field(default_factory=PretrainConfig)
    """How the built-in language model is trained."""
    warm_start: WarmStartConfig = field(default_factory=WarmStartConfig)
    """A stage that trains with given texts."""
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    """A stage with a reward."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The last stage."""

    @staticmethod
    def default_preset(settings: Mapping[str, Any]) -> str:
        """A model of one's own is not trained as the small one on bytes is."""
        return "tiny" if settings.get("model_name") in (None, "", "null") else "gpt2"

    def __post_init__(self) -> None:
        """Refuse settings that cannot work."""
        if self.decoder_prompt.count(SLOT) != 1:
            raise UserError(f"Write {SLOT} once in decoder_prompt, where the activation stands.")
        if not any((self.kl_base_weight, self.lm_base_weight, self.mse_weight, self.entropy_weight)):
            raise UserError("Set one of kl_base_weight, lm_base_weight and mse_weight above 0.")
        if self.gumbel_tau_schedule.least <= 0:
            raise UserError("Set start and end of gumbel_tau_schedule above 0: they are temperatures.")
