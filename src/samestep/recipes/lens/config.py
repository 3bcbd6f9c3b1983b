"""Every setting of the recipe beyond those that all recipes share: values by step, what is trained, and the rest.

Lengths are texts: "500s" are 500 optimizer steps, "2e" are 2 epochs, and -1 is the whole stage.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Annotated, Any, Literal

from samestep import CausalConfig, Config, Group, UserError, free
from samestep.core.config.bounds import Bounds, Count, CountOrZero, NotNegative, PartialShare, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.data.pydoc_topics import BUILT_IN_TEXT
from samestep.data.records.mixture import parse_sources, shown
from samestep.data.records.reading import RecordsConfig
from samestep.kit.model_settings import LoraSettings

WHOLE_STAGE = "-1"
_LENGTH = re.compile(r"(\d+)\s*([se]?)")


def steps_of(length: str, steps_per_epoch: int, stage_steps: int) -> int:
    """A length in optimizer steps."""
    if length.strip() == WHOLE_STAGE:
        return stage_steps
    found = _LENGTH.fullmatch(length.strip())
    if found is None:
        raise UserError(
            f"Write a length as 500s (optimizer steps), 2e (epochs) or -1 (the whole stage), not {length!r}."
        )
    return int(found[1]) * (steps_per_epoch if found[2] == "e" else 1)


@dataclass(frozen=True)
class ValueSchedule(CheckedConfig):
    """A number as a function of the optimizer step: from `start` to `end`, then constant."""

    type: Literal["constant", "linear", "cosine", "exponential"] = "constant"
    """The shape of the way from start to end; constant: start all the time."""
    start: float = 1.0
    """The value at the first step."""
    end: float = 1.0
    """The value after num_steps."""
    num_steps: str = WHOLE_STAGE
    """How long it takes: 500s (optimizer steps), 2e (epochs), -1 (the whole stage)."""

    def __post_init__(self) -> None:
        if steps_of(self.num_steps, 1, 1) < 1:
            raise UserError(f"Set num_steps of a schedule to 1 step or more, or to -1; it is {self.num_steps}.")
        if self.type == "exponential" and min(self.start, self.end) <= 0:
            raise UserError("Set start and end of an exponential schedule above 0.")

    @property
    def least(self) -> float:
        """The smallest value that it takes."""
        return self.start if self.type == "constant" else min(self.start, self.end)

    def at(self, step: int, steps_per_epoch: int, stage_steps: int) -> float:
        """The value of a step, counted from 0; before it, that of the first. The last step of its length has the value
        `end`, unless it is also the first."""
        steps = steps_of(self.num_steps, steps_per_epoch, stage_steps)
        done = min(1.0, max(0, step) / max(1, steps - 1))
        if self.type == "constant":
            return self.start
        if self.type == "exponential":
            return self.start * (self.end / self.start) ** done
        if self.type == "cosine":
            done = (1 - math.cos(math.pi * done)) / 2
        return self.start + (self.end - self.start) * done


Base = bool | Literal["lora"]
"""Whether a copy of the language model is trained: no, in full, or by adapters on the frozen one."""


@dataclass(frozen=True)
class DecoderParts:
    """What of the decoder is trained."""

    base_model: Base = False
    """The language model inside of it: false, true (a copy of its own) or lora."""
    projection_layer: bool = True
    """The linear layer that an activation goes through before it stands in the prompt."""
    output_head: bool = False
    """A head of its own, which begins as the language model's."""
    prompt: bool = True
    """The vectors of the prompt, which begin as those of its tokens."""


@dataclass(frozen=True)
class EncoderParts(CheckedConfig):
    """What of the encoder is trained."""

    base_model: Base = False
    """The language model inside of it: false, true (a copy of its own) or lora."""
    projection_layer: bool = True
    """The linear layer behind it, which begins as the identity."""
    layer: CountOrZero | None = None
    """What leaves this block of it is the text's vector; null: layer_l."""


PATTERNS: dict[str, tuple[str, ...]] = {
    "decoder.base_model": ("decoder.model.*", "*.lora_*.decoder.*"),
    "decoder.projection_layer": ("decoder.projection.*",),
    "decoder.output_head": ("decoder.head.*",),
    "decoder.prompt": ("decoder.prompt",),
    "encoder.base_model": ("encoder.model.*", "*.lora_*.encoder.*"),
    "encoder.projection_layer": ("encoder.projection.*",),
}
"""The parameters of each part, as patterns of their names."""


@dataclass(frozen=True)
class TrainableComponents(LoraSettings):
    """Which parts are trained; the rest is the frozen language model, which all of them share."""

    lora_rank: Count = 8
    """The rank of adapters, where base_model is lora."""
    decoder: DecoderParts = field(default_factory=DecoderParts)
    """What of the decoder is trained."""
    encoder: EncoderParts = field(default_factory=EncoderParts)
    """What of the encoder is trained."""
    learning_rate_multipliers: dict[str, NotNegative] = field(default_factory=dict)
    """By part, such as {decoder.base_model: 0.1}: a factor of the learning rate."""
    freeze_until: dict[str, str] = field(default_factory=dict)
    """By part, such as {decoder.base_model: 500s}: it begins to train after so many steps (500s) or epochs (2e)."""

    def __post_init__(self) -> None:
        if not self.trained:
            raise UserError("Set one of trainable_components to true: nothing would be trained.")
        for setting in ("learning_rate_multipliers", "freeze_until"):
            for part in getattr(self, setting):
                if part not in self.trained:
                    raise UserError(
                        f"Name a part that is trained in trainable_components.{setting}, one of "
                        f"{', '.join(self.trained)}; {part} is not."
                    )
        for length in self.freeze_until.values():
            steps_of(length, 1, 1)

    @property
    def trained(self) -> list[str]:
        """The names of the parts that are trained."""
        return [part for part in PATTERNS if attrgetter(part)(self)]

    @property
    def has_copy(self) -> bool:
        """Whether a copy of the language model is trained."""
        return True in (self.decoder.base_model, self.encoder.base_model)

    def groups(self, steps_per_epoch: int, stage_steps: int) -> dict[str, Group]:
        """What a learner needs to know, by patterns of parameter names."""
        found: dict[str, Group] = {}
        for part in self.trained:
            factor = self.learning_rate_multipliers.get(part, 1.0)
            first = steps_of(self.freeze_until.get(part, "0s"), steps_per_epoch, stage_steps)
            if factor != 1.0 or first:
                found |= {pattern: Group(rate=factor, train_from=first) for pattern in self._patterns(part)}
        return found

    def _patterns(self, part: str) -> tuple[str, ...]:
        """Only those that there are: a learner refuses a pattern that matches nothing."""
        own, adapters = PATTERNS[part][0], PATTERNS[part][1:]
        base = self.decoder.base_model if part.startswith("decoder") else self.encoder.base_model
        return adapters if adapters and base == "lora" else (own,)


SLOT = "<embed>"
"""Where the activation stands in the decoder's prompt."""


@dataclass(frozen=True)
class DataConfig(RecordsConfig):
    """The texts whose activations are explained."""

    path: str | list[str] | None = field(default=None, hash=False)
    """A .txt file; or a file or folder of records (.jsonl, .json, .csv, .tsv, .parquet), a dataset of the Hub
    (org/name:split), with a column `text`; or several of them, whose shares of the activations are in the proportion of
    weights, as [a.jsonl:3, b.csv:1]. null: the English text that comes with Python (`pydoc_data.topics`)."""
    validation_fraction: PartialShare = 0.1
    """Share of the texts that chooses the best weights: whole documents, chosen by seed and content, or the end of a
    text where there are few."""
    test_fraction: Annotated[float, Bounds(least=0, below=1)] = 0.1
    """Likewise, the share that a lens is evaluated on and that chooses nothing; 0: it is evaluated on validation."""
    limit: Annotated[int, Bounds(least=2)] | None = None
    """Use only this many documents, from the beginning, for a quick trial; null: all."""

    def __post_init__(self) -> None:
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "Set data.validation_fraction and data.test_fraction to less than 1 together, or nothing is left for "
                f"training; they are {self.validation_fraction:g} and {self.test_fraction:g}."
            )

    @property
    def weights(self) -> list[float]:
        """Of the paths; empty where none are given."""
        named = parse_sources(self.path) if isinstance(self.path, list) else []
        return [weight for _, weight in named if weight is not None]

    @property
    def name(self) -> str:
        """What messages call the texts."""
        return shown(self.path) or BUILT_IN_TEXT

    @property
    def is_text(self) -> bool:
        """Whether it is a file of plain text."""
        return isinstance(self.path, str) and self.path.lower().endswith(".txt")


@dataclass(frozen=True)
class ActivationDumper(CheckedConfig):
    """Which activations there are, and where they come from."""

    mode: Literal["dumped", "live"] = "dumped"
    """dumped: a stage of its own computes all activations once; live: they are computed with every batch."""
    source: str | None = None
    """A run, or a folder with a dump of one, to train with instead of dumping; null: this run's own."""
    num_samples: Annotated[int, Bounds(least=2)] | None = None
    """Activations to train with; null: one for each row of tokens."""
    validation_samples: Annotated[int, Bounds(least=2)] | None = None
    """Activations to validate with; null: one for each row that is kept for validation."""
    test_samples: Annotated[int, Bounds(least=2)] | None = None
    """Activations to evaluate with; null: one for each row that is kept for the test."""
    seq_len: Annotated[int, Bounds(least=2)] = 64
    """Tokens of a row at most: a longer text is cut into several rows."""
    position: Literal["random", "midpoint"] = "random"
    """The token of a row whose activation is taken: drawn by the seed, or the middle one."""
    min_position: CountOrZero = 5
    """Drawn positions begin here, counted from 0; in a shorter row the last token is taken."""
    batch_size: Count = free(32)
    """Texts at once on a device, in the stages that write tokens and activations."""
    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """Type of stored activations."""
    save_every: Count = free(100)
    """Steps of these stages between two saves: what a kill costs at most."""

    def __post_init__(self) -> None:
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
class EncoderAloneConfig(CheckedConfig):
    """A stage before training in which the encoder alone learns, from explanations that the decoder draws."""

    max_steps: CountOrZero = 0
    """Steps; 0: no such stage."""
    learning_rate: NotNegative | None = None
    """Peak learning rate; null: learning_rate."""


@dataclass(frozen=True)
class GrpoConfig(CheckedConfig):
    """A stage after training that rewards explanations from which the activation can be rebuilt."""

    max_steps: CountOrZero = 0
    """Steps; 0: no such stage."""
    activations: Count | None = None
    """Activations a step, over all devices, each with group_size explanations; null: global_batch_size."""
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
    kl_weight: NotNegative = 0.0
    """Weight of the divergence of the decoder from what it was when the stage began, a token; 0: no copy is kept."""
    entropy_weight: float = 0.0
    """Weight of the entropy of the decoder's distributions, which is made larger."""


@dataclass(frozen=True)
class EvaluationConfig(CheckedConfig):
    """The last stage, which measures the best weights on activations of the test part."""

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
    """A folder with a causal model of transformers, a model of the Hub (org/name or org/name@revision), or a run; null:
    a small model on bytes, which is trained first."""
    model_dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of that model's weights; auto: as they are stored. It is float32 if a copy of it is trained."""
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
    encoder_alone: EncoderAloneConfig = field(default_factory=EncoderAloneConfig)
    """A stage that trains the encoder with drawn texts."""
    through_draws: bool = True
    """Whether there is the stage `train`, in which gradients flow through drawn tokens; false: what follows the warm
    start is the encoder alone, and rewards."""
    grpo: GrpoConfig = field(default_factory=GrpoConfig)
    """A stage with a reward."""
    evaluation: EvaluationConfig = field(default_factory=EvaluationConfig)
    """The last stage."""

    @staticmethod
    def default_preset(settings: Mapping[str, Any]) -> str:
        """A model of one's own is not trained as the small one on bytes is."""
        return "tiny" if settings.get("model_name") in (None, "", "null") else "gpt2"

    def __post_init__(self) -> None:
        if self.decoder_prompt.count(SLOT) != 1:
            raise UserError(f"Write {SLOT} once in decoder_prompt, where the activation stands.")
        if not any((self.kl_base_weight, self.lm_base_weight, self.mse_weight, self.entropy_weight)):
            raise UserError("Set one of kl_base_weight, lm_base_weight and mse_weight above 0.")
        if not self.through_draws and not self.warm_start.max_steps:
            raise UserError("Set warm_start.max_steps, or through_draws=true: what follows needs a lens to begin with.")
        if self.gumbel_tau_schedule.least <= 0:
            raise UserError("Set start and end of gumbel_tau_schedule above 0: they are temperatures.")
