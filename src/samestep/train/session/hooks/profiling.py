"""Traces of some steps by torch.profiler, and their slowest operations, as files in the run directory. Nothing is here
when `profile` is empty."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from samestep.core.errors import UserError
from samestep.core.json_files import Json, write_json
from samestep.core.rundir import operations_path
from samestep.core.safe_files import temporary_folder
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import Metrics
from samestep.train.record.config import Config
from samestep.train.record.progress import Progress, Tick
from samestep.train.session.hooks.slowest_operations import printed_operations, slowest_operations
from samestep.world.world import World

logger = logging.getLogger(__name__)


class Profile:
    """Profiles the steps from `first` to `last`, counted from 1, with all that happens between them."""

    def __init__(self, first: int, last: int, folder: Path, progress: Progress, world: World, screen: Screen) -> None:
        self._first, self._last = first, last
        self._path = folder / f"steps_{first}-{last}_rank_{world.rank}.json"
        self._progress, self._screen = progress, screen
        self._rank, self._device = world.rank, world.device.type
        self._profiler: Any = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Around the loop: writes what there is when the loop ends."""
        try:
            yield
        finally:
            self._write()

    def after_step(self, tick: Tick, metrics: Metrics, last: bool) -> None:
        """Begin before the first step to profile, end after the last."""
        if self._progress.step >= self._last:
            self._write()
        elif self._profiler is None:
            self.start_if_due()

    def start_if_due(self) -> None:
        """Begin if the next step is to be profiled."""
        if self._first - 1 <= self._progress.step < self._last:
            kinds = torch.profiler.ProfilerActivity
            device = {"cuda": [kinds.CUDA], "xpu": [kinds.XPU]}.get(self._device, [])
            self._profiler = torch.profiler.profile(activities=[kinds.CPU, *device])
            self._profiler.start()

    def _write(self) -> None:
        profiler, self._profiler = self._profiler, None
        if profiler is None:
            return
        profiler.stop()
        try:
            with temporary_folder(self._path) as folder:
                profiler.export_chrome_trace(str(folder / self._path.name))
                os.replace(folder / self._path.name, self._path)
            operations = self._write_operations(profiler)
        except (OSError, RuntimeError) as error:  # no reason to end a run
            logger.warning("the profile %s could not be written: %s", self._path, error)
            return
        steps = f"{self._first:,} to {self._last:,}"
        self._screen.print(printed_operations(operations, self._device, steps))
        self._screen.print(
            f"profile: {self._path} (open it in https://ui.perfetto.dev or chrome://tracing; `samestep report` has the "
            f"{len(operations)} slowest operations)"
        )

    def _write_operations(self, profiler: Any) -> list[dict[str, Json]]:
        found = slowest_operations(profiler.key_averages(), self._device)
        about = {"first": self._first, "last": self._last, "rank": self._rank, "device": self._device}
        write_json(operations_path(self._path), {**about, "operations": found})
        return found


def make_profile(
    config: Config, world: World, folder: Path, progress: Progress, length: int, screen: Screen
) -> Profile | None:
    """The hook that a configuration asks for on this rank, with the folder of the stage's traces; None: nothing."""
    if not config.profile:
        return None
    first, last = profiled_steps(config.profile)
    if first > length:
        screen.print(f"profile={config.profile}: there is nothing to profile, because the stage has {length:,} steps")
    if first > length or not (world.is_main or config.profile_all_ranks):
        return None
    return Profile(first, last, folder, progress, world, screen)


def profiled_steps(text: str) -> tuple[int, int]:
    """The first and the last step that a setting such as `20-25` names."""
    match = re.fullmatch(r"(\d+)-(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(f"profile={text} is not a range of steps; write the first and the last, such as profile=20-25")
    return int(match[1]), int(match[2])
