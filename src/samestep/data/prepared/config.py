"""The settings of `samestep data prepare`. Imports no torch."""

from dataclasses import dataclass
from typing import Annotated, Literal

from samestep.core.config.bounds import Bounds, Count, PartialShare
from samestep.core.errors import UserError
from samestep.data.records.reading import RecordsConfig
from samestep.data.records.too_long import TooLong


@dataclass(frozen=True)
class PrepareConfig(RecordsConfig):
    """How text becomes tokens."""

    out: str
    """The folder to write."""
    tokenizer: str = "byte"
    """byte, char, word or bpe (which are learned from the text), or the model whose tokenizer it is: a folder, org/name
    or org/name@revision of the Hub, a run or a checkpoint."""
    vocab_size: Count | None = None
    """Tokens that word and bpe learn, bytes and special ones included; null is 4096."""
    sequence_length: Annotated[int, Bounds(least=2)] | None = None
    """Tokens in a row; null is 256, and 1024 for chats."""
    validation_fraction: PartialShare = 0.1
    """Share of the documents (of a single text: its end) that is kept for validation."""
    test_fraction: Annotated[float, Bounds(least=0, below=1)] = 0.0
    """Another share, for a last test (of a single text: what comes before its validation part). Nothing trains or
    validates with it; `samestep evaluate RUN` measures on it. Validation stays what it is without. 0: none."""
    kind: Literal["auto", "text", "chat"] = "auto"
    """text, chat, or auto: records with messages, or with a prompt and an answer, are chats."""
    too_long: TooLong = "truncate"
    """What to do with a chat's answer that does not fit into a row: truncate, drop, or refuse. One whose prompt leaves
    no room for it cannot be cut and is dropped."""
    mask_token: str | None = None
    """The mask token, if the tokenizer folder does not name it: a token, its number, or new to add one."""
    eos_token: str | None = None
    """The end-of-document token, if the tokenizer folder does not name it: a token, its number, or new to add one."""
    seed: int = 0
    """Chooses the documents that are kept for validation."""
    shard_bytes: Annotated[int, Bounds(least=4)] = 1 << 30
    """Largest size of a token file."""
    overwrite: bool = False
    """Replace the folder if it exists."""

    def __post_init__(self) -> None:
        """Refuse invalid settings before anything is read."""
        if self.vocab_size is not None and self.tokenizer != "bpe":
            raise UserError(f"Give vocab_size only with --tokenizer bpe; the tokenizer is {self.tokenizer}.")
        if self.validation_fraction + self.test_fraction >= 1:
            raise UserError(
                "Give validation_fraction and test_fraction that are less than 1 together, or nothing is left to train "
                f"on; they are {self.validation_fraction:g} and {self.test_fraction:g}."
            )
