"""What a lens is made of."""

from dataclasses import dataclass
from typing import Literal

from samestep import UserError

Kind = Literal["frozen", "full", "lora"]


@dataclass(frozen=True)
class LensShape:
    """What a lens is made of."""

    layer: int
    """The activation is what leaves this block of the model, counted from 0."""
    t_text: int = 10
    """Tokens of a text."""
    encoder_layer: int | None = None
    """The encoder reads what leaves this block; None: the same as `layer`."""
    decoder: Kind = "full"
    """Whether the decoder's blocks are the model's, a trained copy of them, or the model's with adapters."""
    encoder: Kind = "full"
    """Likewise for the encoder's."""
    trains_decoder_projection: bool = True
    """Whether the linear map of an activation to a vector among the decoder's prompt is trained."""
    trains_prompt: bool = True
    """Whether the vectors of the decoder's prompt are trained, which begin as those of its tokens."""
    trains_head: bool = False
    """Whether the decoder has an output head of its own."""
    trains_encoder_projection: bool = True
    """Whether the linear map of what the encoder has read to an activation is trained."""
    lora_rank: int = 8
    lora_alpha: float = 16.0
    kv_cache: bool = True
    """Whether the decoder keeps keys and values while it writes; the same numbers, in less time."""
    stop_gradient: bool = True
    """Whether no gradient flows through what the reconstruction of the other activation lacks."""
    bos: int | None = None
    """The token that a text begins with for the model."""
    seed: int = 0
    """Of the noise, and of the adapters' first values."""

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.t_text < 1:
            raise UserError(f"t_text={self.t_text} leaves no token to explain an activation with; set it to 1 or more")

    @property
    def read_layer(self) -> int:
        """The block whose output the encoder reads."""
        return self.layer if self.encoder_layer is None else self.encoder_layer
