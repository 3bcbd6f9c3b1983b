"""Settings of a language model that is trained; recipes inherit them."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from samestep.core.config import NoEffect
from samestep.core.config.bounds import Bounds, CountOrZero, Positive
from samestep.core.config.checked import CheckedConfig
from samestep.train.learner.lora import ALL_LINEAR, Lora


@dataclass(frozen=True)
class LoraSettings(CheckedConfig):
    """Adapters that are trained in place of a network."""

    lora_rank: CountOrZero = 0
    """Train adapters of this rank instead of the whole network; 0: the whole network."""
    lora_alpha: Positive = 16.0
    """What an adapter adds is multiplied by lora_alpha / lora_rank."""
    lora_targets: tuple[str, ...] = ()
    """The layers that get adapters, by the ends of their names, such as [q_proj, v_proj]; none: all linear layers but
    the head. Experts that a library keeps as one tensor are no such layers: they stay as they are."""
    lora_dropout: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Dropout of an adapter's input in training; its masks are keyed by the sample."""

    @property
    def lora(self) -> Lora | None:
        """The adapters; None: the whole network is trained."""
        if not self.lora_rank:
            return None
        return Lora(self.lora_rank, self.lora_alpha, self.lora_dropout, self.lora_targets or ALL_LINEAR)


@dataclass(frozen=True)
class TrainedModelSettings(LoraSettings):
    """How the weights of a language model that has a name are kept and trained."""

    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """The type of the base that adapters stand on; auto: as it is stored."""

    @property
    def weights_dtype(self) -> str:
        """Weights that are trained are float32, whatever they are stored in: small steps are lost in less."""
        return self.dtype if self.lora_rank else "float32"


def without_effect(
    section: str, settings: Callable[[Any], TrainedModelSettings], is_named: Callable[[Any], bool], shape: str
) -> tuple[NoEffect, ...]:
    """What has no effect of the settings in a section of a configuration; `is_named` says whether a model is named, and
    `shape` is the setting in it that holds the shape of the built-in network."""
    of_adapters = ("lora_alpha", "lora_targets", "lora_dropout", "dtype")
    return (
        NoEffect(
            tuple(f"{section}.{name}" for name in of_adapters),
            lambda config: not settings(config).lora_rank,
            f"the whole network is trained, in float32; set {section}.lora_rank, or leave it out",
        ),
        NoEffect(
            f"{section}.dtype",
            lambda config: not is_named(config),
            "it is the type of a model that is named, and none is; leave it out",
        ),
        NoEffect(
            f"{section}.{shape}.*",
            is_named,
            "it is the shape of the built-in network, and a model is named; leave out one of the two",
        ),
    )
