"""Which parts of decoder and encoder are trained, with which learning rate, and from which step on."""

from dataclasses import dataclass, field
from typing import Literal

from samestep import Group, UserError
from samestep.core.config.bounds import Count, CountOrZero, NotNegative, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.recipes.lens.schedules import steps_of

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


@dataclass(frozen=True)
class LoraConfig(CheckedConfig):
    """Adapters, where base_model is lora."""

    rank: Count = 8
    """Rows of the smaller matrices."""
    alpha: Positive = 16.0
    """What an adapter adds is multiplied by alpha / rank."""


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
class TrainableComponents(CheckedConfig):
    """Which parts are trained; the rest is the frozen language model, which all of them share."""

    decoder: DecoderParts = field(default_factory=DecoderParts)
    """What of the decoder is trained."""
    encoder: EncoderParts = field(default_factory=EncoderParts)
    """What of the encoder is trained."""
    lora: LoraConfig = field(default_factory=LoraConfig)
    """Adapters, where base_model is lora."""
    learning_rate_multipliers: dict[str, NotNegative] = field(default_factory=dict)
    """By part, such as {decoder.base_model: 0.1}: a factor of the learning rate."""
    freeze_until: dict[str, str] = field(default_factory=dict)
    """By part, such as {decoder.base_model: 500s}: it begins to train after so many steps (500s) or epochs (2e)."""

    def __post_init__(self) -> None:
        """Refuse parts that are not trained."""
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
        on = {
            "decoder.base_model": self.decoder.base_model,
            "decoder.projection_layer": self.decoder.projection_layer,
            "decoder.output_head": self.decoder.output_head,
            "decoder.prompt": self.decoder.prompt,
            "encoder.base_model": self.encoder.base_model,
            "encoder.projection_layer": self.encoder.projection_layer,
        }
        return [part for part, is_trained in on.items() if is_trained]

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
