"""Configs for the tests of composing."""

from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True)
class Distributed:
    device: str = "class"
    backend: str = "class"
    timeout: float = 1.0
    mixed_precision: Literal["auto", "none", "bf16", "fp16"] = "none"
    strategy: Literal["ddp", "fsdp"] = "ddp"


@dataclass(frozen=True)
class Teacher:
    path: str = "t"
    layers: int = 1


@dataclass(frozen=True)
class Toy:
    preset: str = "default"
    name: str = "run"
    lr: float = 0.1
    steps: int = 1
    flag: bool = False
    mix: dict[str, float] = field(default_factory=lambda: {"wiki": 1.0})
    files: list[str] = field(default_factory=list)
    distributed: Distributed = Distributed()
    teacher: Teacher | None = None


@dataclass(frozen=True)
class Small:
    """A config without a distributed section and without a preset field."""

    x: int = 1
    text: str = ""
    mix: dict[str, float] = field(default_factory=lambda: {"wiki": 1.0})
