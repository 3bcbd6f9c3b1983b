"""Files that a run writes after each epoch for other programs, beside its own checkpoints."""

from pathlib import Path


def epoch_file(folder: Path, epochs: int) -> Path:
    """The file that is written when so many epochs are complete, as older programs name it."""
    return folder / f"checkpoint_epoch_{epochs}.pt"
