"""Every setting of the recipe beyond those that all recipes share."""

from dataclasses import dataclass, field

from samestep.core.config import free
from samestep.core.errors import UserError
from samestep.models.transformer import TransformerConfig
from samestep.recipes.mdlm.corpus import DataConfig
from samestep.recipes.mdlm.objective import ObjectiveConfig
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.train.config import Config


@dataclass(frozen=True)
class MdlmConfig(Config):
    """A masked-diffusion language model."""

    preset: str = "tiny"
    """A named set of values: tiny for a CPU, small for a GPU, llada-8b to fine-tune a published model, verify and
    verify-sft for proofs."""
    data: DataConfig = field(default_factory=DataConfig)
    """What to learn from; of chats, only the answers are learned."""
    model: TransformerConfig = field(default_factory=TransformerConfig)
    """The network. Its vocabulary is that of the data; with init_from=FOLDER all of it is as that folder says."""
    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    """How tokens are hidden, how rows are weighed, and how validation averages over it."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    """How text is written at the end of training and by `samestep sample`."""
    ema_decay: float = 0.0
    """Keep an exponential moving average of the weights with this decay, such as 0.999, for validation, sampling and
    export; 0: none."""
    pt_checkpoints: bool = False
    """Also write checkpoint_epoch_N.pt after every epoch, for older scripts; `--resume FILE` goes on from one."""
    samples_at_end: int = free(1)
    """Texts to write and show once training is done."""

    def __post_init__(self) -> None:
        """Refuse what would fail only after hours."""
        if not 0 <= self.ema_decay < 1:
            raise UserError(f"Set ema_decay to 0 or to a number below 1, such as 0.999; it is {self.ema_decay}.")
        if self.samples_at_end and self.sampling.length > self.model.max_sequence_length:
            raise UserError(
                f"Set sampling.length to at most model.max_sequence_length={self.model.max_sequence_length}, or "
                f"samples_at_end to 0; it is {self.sampling.length}."
            )
