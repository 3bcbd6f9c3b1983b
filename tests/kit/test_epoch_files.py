"""Names of the files that older programs look for."""

from pathlib import Path

from samestep.kit.epoch_files import epoch_file


def test_the_name_says_how_many_epochs_are_complete() -> None:
    assert epoch_file(Path("runs/a"), 5) == Path("runs/a/checkpoint_epoch_5.pt")
