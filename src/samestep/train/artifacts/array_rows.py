"""The rows of an array artifact, for the feeds of later stages."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.train.artifacts.array_format import LAYOUT, ArrayField, ArrayLayout, array_path, damage_of
from samestep.train.artifacts.artifact_key import ArtifactKey
from samestep.world.world import World


class ArrayRows:
    """Rows by index, each a dict of tensors. The files are memory-mapped: only the rows that are asked for are read."""

    def __init__(self, folder: Path) -> None:
        """`folder` holds a finished artifact (see `open_array_rows`)."""
        layout = ArrayLayout.read(folder)
        assert layout is not None, f"{folder} holds no array artifact"
        self.fields: dict[str, ArrayField] = layout.fields
        """The shape and type of each field."""
        self._folder, self._rows = folder, layout.rows
        # As plain arrays: indexing a memmap object is slower.
        self._arrays = {name: np.load(array_path(folder, name), mmap_mode="r").view(np.ndarray) for name in self.fields}

    def __len__(self) -> int:
        return self._rows

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        if not -self._rows <= index < self._rows:
            raise IndexError(index)  # ends a `for` loop over the rows
        return {name: value[0] for name, value in self.rows(np.asarray([index])).items()}

    def rows(self, indices: np.ndarray | Sequence[int]) -> dict[str, Tensor]:
        """A batch: every field of these rows, in this order, as copies in memory."""
        chosen = np.asarray(indices)
        batch = {name: torch.from_numpy(array[chosen]) for name, array in self._arrays.items()}
        return {name: value.view(self.fields[name].torch_dtype) for name, value in batch.items()}

    @property
    def inputs(self) -> Mapping[str, Json]:
        """The values of its key: what the rows were computed with."""
        key = ArtifactKey.read(self._folder)
        return key.values if key else {}

    def origins(self) -> list[Path]:
        """What a resume compares: the small file with the digests of the large ones."""
        return [self._folder / LAYOUT]


def open_array_rows(folder: Path, world: World, shared: bool, key: ArtifactKey | None = None) -> ArrayRows:
    """The rows of a finished artifact, on all ranks; refuses one that is missing or damaged, or was computed from
    something else than `key` says. Collective."""

    def check() -> None:
        if world.is_main and not (folder / LAYOUT).exists():
            known = sorted(path.parent.name for path in folder.parent.glob(f"[!.]*/{LAYOUT}"))
            listed = f"there are {', '.join(known)}" if known else "there is none"
            raise UserError(
                f"stage {folder.parent.name!r} has left no array artifact {folder.name!r}; {listed} in {folder.parent}"
            )
        if world.is_main and key is not None:
            key.refuse_other(folder)
        if world.is_main and (damage := damage_of(folder, world.activity.made_progress)):
            raise UserError(
                f"the array artifact {folder} is damaged: {damage}; restore the folder from a copy, or start a new run"
            )

    require_shared(folder, world, shared)
    world.run_on_all_ranks(f"reading {folder}", check)
    return ArrayRows(folder)


def require_shared(folder: Path, world: World, shared: bool) -> None:
    """Refuse array artifacts where ranks do not see the same run directory."""
    if not shared and world.size > 1:
        raise UserError(
            f"all ranks write and read the rows of the array artifact {folder}, but they do not all see that folder; "
            "set out=... to a folder on a shared disk, or run this stage on one machine"
        )
