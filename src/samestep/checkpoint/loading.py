"""Loading a checkpoint into a state on any number of ranks, and reading its tensors in a single process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from samestep.checkpoint.across_ranks import broadcast_tensors
from samestep.checkpoint.manifest import RANKS, STATE, Checkpoint, DamageError, Manifest, full_check, read_manifest
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.state import PreparesLoad, RankStateful, Stateful, merge_state, split_state, unescape_key
from samestep.checkpoint.tensors import check_tensors, fill_tensors
from samestep.core.errors import UserError
from samestep.core.json_files import Json, parse_json
from samestep.world.world import World


@dataclass(frozen=True)
class _Content:
    """What is read of a checkpoint before its tensors."""

    metadata: Metadata
    state: str
    ranks: str


def load_state(checkpoint: Checkpoint, state: Mapping[str, Stateful], world: World, shared: bool) -> None:
    """Fill the tensors of `state` in place and load the state of every part. Collective."""
    path, doing = checkpoint.path, f"loading the checkpoint {checkpoint.path}"
    content: _Content | None = None
    tensors: dict[str, torch.Tensor] = {}

    def read() -> None:
        nonlocal content
        if shared or world.is_main:
            manifest = checkpoint.manifest if checkpoint.verified or not world.is_main else verified_manifest(path)
            content = _read_content(path, manifest)
            _check_parts(path, content, state)

    def check() -> None:
        if content is not None:
            check_tensors(path, content.metadata, tensors)

    def fill() -> None:
        if content is not None:
            fill_tensors(path, content.metadata, tensors)

    world.run_on_all_ranks(doing, read)
    texts = [content.state, content.ranks] if content else ["", ""]
    saved, ranks = (parse_json(text if shared else world.share(text)) for text in texts)
    for name, part in state.items():
        if isinstance(part, PreparesLoad):
            part.prepare_load(saved[name])
    live = {name: part.state_dict() for name, part in state.items()}
    tensors |= split_state(live)[1]
    world.run_on_all_ranks(doing, check)
    world.run_on_all_ranks(doing, fill)
    if not shared:
        broadcast_tensors(world, tensors)
    _load_parts(state, merge_state(live, saved, tensors), ranks)


def read_tensors(path: Path, prefix: str, *, verify: bool = True) -> dict[str, torch.Tensor]:
    """The full tensors under `prefix` of a checkpoint, on the CPU, by their names without the prefix.

    With the prefix `learner/model`, the names of a model's weights are those of its own state dict.
    """
    metadata = _read_content(path, verified_manifest(path) if verify else read_manifest(path)).metadata
    start = f"{prefix}/"
    tensors: dict[str, torch.Tensor] = {}
    for name, entry in metadata.state_dict_metadata.items():
        assert isinstance(entry, TensorStorageMetadata)
        if name.startswith(start):
            tensors[name] = torch.empty(entry.size, dtype=entry.properties.dtype)
    if not tensors:
        groups = sorted({name.rpartition("/")[0] for name in metadata.state_dict_metadata})
        raise UserError(f"the checkpoint {path} has no tensors under {prefix!r}; it has some under {', '.join(groups)}")
    fill_tensors(path, metadata, tensors)
    return {unescape_key(name.removeprefix(start)): tensor for name, tensor in tensors.items()}


def verified_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint after every byte of it was checked; raises UserError if it is damaged."""
    try:
        manifest = full_check(path).manifest
    except DamageError as damage:
        raise UserError(f"the checkpoint {path} is damaged: {damage}; use another one") from None
    assert manifest is not None
    return manifest


def _read_content(path: Path, manifest: Manifest | None) -> _Content:
    assert manifest is not None, "a checkpoint without a manifest is damaged"
    metadata = read_metadata(path, manifest.files)
    return _Content(metadata, (path / STATE).read_text(), (path / RANKS).read_text())


def _check_parts(path: Path, content: _Content, state: Mapping[str, Stateful]) -> None:
    saved, with_ranks = set(parse_json(content.state)), set(parse_json(content.ranks)[0])
    wanted, with_ranks_now = set(state), {name for name, part in state.items() if isinstance(part, RankStateful)}
    problems = [f"it has no {name!r}" for name in sorted(wanted - saved)]
    problems += [f"it has {name!r}, which is not asked for" for name in sorted(saved - wanted)]
    problems += [f"it has no rank state of {name!r}" for name in sorted(with_ranks_now - with_ranks)]
    if problems:
        raise UserError(
            f"the checkpoint {path} is of another model: {problems[0]}; "
            "load it with the recipe and options it was saved with"
        )


def _load_parts(state: Mapping[str, Stateful], loaded: Mapping[str, Any], ranks: Sequence[Mapping[str, Json]]) -> None:
    for name, part in state.items():
        part.load_state_dict(loaded[name])
        if isinstance(part, RankStateful):
            part.load_rank_state([saved[name] for saved in ranks])
