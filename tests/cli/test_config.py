"""`samestep config RECIPE`."""

import io
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from rich.console import Console

from cli.conftest import EXAMPLE
from samestep.cli.config import show
from samestep.cli.main import main
from samestep.core.config import Alias


@dataclass(frozen=True)
class Distributed:
    """A section."""

    device: str = "class"
    """Where [it] computes."""
    backend: str = "class"
    """Carrier."""
    timeout: float = 1.0
    """Patience, in seconds."""
    mixed_precision: Literal["none", "bf16", "fp16"] = "none"
    """Arithmetic."""
    strategy: Literal["ddp", "fsdp"] = "ddp"
    """How the model is spread, which is a matter that takes many more words than fit on one line of a terminal."""


@dataclass(frozen=True)
class Toy:
    """A config."""

    data: Path
    """Must be given."""
    preset: str = "default"
    """Named values."""
    limit: int | None = None
    """May be null."""
    text: str = ""
    """May be empty."""
    lr: float = 0.1
    """Step size."""
    a_field_with_a_name_of_many_letters: list[int] = field(default_factory=lambda: [1, 2])
    """A long one."""
    distributed: Distributed = Distributed()
    """A section."""


PRESETS: dict[str, dict[str, Any]] = {"default": {"lr": 0.2}, "big": {"distributed": {"strategy": "fsdp"}, "limit": 3}}
ALIASES: dict[str, str | Alias] = {
    "fp16": Alias("distributed.mixed_precision", {"true": "fp16", "false": "none"}),
    "alpha": "lr",
}


def test_one_line_a_field_when_not_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show("toy", Toy, PRESETS, ALIASES)
    lines = [line.split(maxsplit=3) for line in capsys.readouterr().out.splitlines()]
    assert ["data", "path", "(required)", "Must be given."] in lines
    assert ["text", "str", '""', "May be empty."] in lines
    assert ["lr", "float", "0.2", "Step size."] in lines  # the default preset is in force
    assert ["distributed.device", "str", "auto", "Where [it] computes."] in lines  # and so is the base group
    assert ["big", "distributed.strategy=fsdp", "limit=3"] in lines
    assert ["--fp16", "distributed.mixed_precision", "(true:", "fp16, false: none)"] in lines
    assert ["--alpha", "lr"] in lines
    assert not any("\x1b" in word for line in lines for word in line)


def test_a_terminal_of_80_columns_shows_every_word() -> None:
    page = io.StringIO()
    show("toy", Toy, PRESETS, ALIASES, console=Console(file=page, width=80, force_terminal=True, color_system=None))
    text = page.getvalue()
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
    assert "…" not in text
    words = text.split()
    for word in ["a_field_with_a_name_of_many_letters", "distributed.mixed_precision", "[it]", "null", "terminal."]:
        assert word in words


def test_a_config_with_nothing_around_it(capsys: pytest.CaptureFixture[str]) -> None:
    @dataclass(frozen=True)
    class Bare:
        x: int = 3

    show("bare", Bare)
    assert capsys.readouterr().out == "Fields of bare\nField  Type  Default  Meaning\nx      int   3\n"


def test_the_import_is_cheap() -> None:
    """`samestep --help` must not pay for Hydra, which takes longer than everything else together."""
    heavy = "[name for name in ('hydra', 'omegaconf', 'yaml', 'rich', 'torch') if name in sys.modules]"
    program = f"import sys, samestep.cli.config, samestep.core.config.merging; print({heavy})"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def values(args: list[str], capsys: pytest.CaptureFixture[str], code: int = 0) -> dict[str, str]:
    """What `samestep config` shows of each field of the example, by name."""
    assert main(["config", str(EXAMPLE), *args]) == code
    lines = (re.split("  +", line) for line in capsys.readouterr().out.splitlines())
    return {line[0]: line[2] for line in lines if len(line) > 2}


def test_a_file_a_preset_and_settings_count_as_they_do_for_train(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text("hidden: 77\nlog:\n  every: 3\nlearning_rate: 0.5\n")
    plain = values([], capsys)
    assert (plain["Field"], plain["hidden"]) == ("Default", "32")
    shown = values(["--config", str(file), "--learning_rate", "0.25", "log.level=debug"], capsys)
    assert shown["Field"] == "Value"
    given = {"hidden": "77", "log.every": "3", "learning_rate": "0.25", "log.level": "debug"}
    assert {name: shown[name] for name in given} == given
    assert {name for name in plain if shown[name] != plain[name]} == {"Field", *given}, "and nothing else differs"
    assert values(["--preset", "verify"], capsys)["hidden"] == "4"


@pytest.mark.parametrize(
    ("text", "sentence"),
    [("hiden: 7", "hiden"), ("hidden: many", "hidden must be"), (None, "There is no file")],
)
def test_a_wrong_file_is_refused_as_it_is_by_train(
    text: str | None, sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "mine.yaml"
    if text is not None:
        file.write_text(text)
    sentences = []
    for verb in ("config", "train"):
        assert main([verb, str(EXAMPLE), "--config", str(file)]) == 2
        sentences.append(capsys.readouterr().err)
    assert sentences[0] == sentences[1]
    assert sentence in sentences[0]
