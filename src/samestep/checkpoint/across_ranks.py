"""What ranks do together around a checkpoint: find out whether they share a disk, verify files, broadcast tensors."""

import secrets
import socket
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import torch
import torch.distributed as dist

from samestep.checkpoint.files import damage_of
from samestep.checkpoint.manifest import Checkpoint, checkpoint_folders
from samestep.core.errors import UserError
from samestep.core.json_files import Json
from samestep.world.world import World


def split_by_size(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Names in `parts` lists of about equal size: the largest first, each into the list that is smallest so far."""
    lists: list[list[str]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        smallest = loads.index(min(loads))
        lists[smallest].append(name)
        loads[smallest] += sizes[name] + 1  # so that names of size 0 are distributed too
    return lists


def is_disk_shared(folder: Path, world: World, timeout: float = 2.0) -> bool:
    """Whether a file that rank 0 creates in `folder` appears on every rank; all ranks get the same answer.

    `timeout`: how many seconds the file may take to appear; network disks can be slow.
    """
    token = folder / f".probe_{world.share(secrets.token_hex(8))}"

    def create() -> None:
        if world.is_main:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                token.touch()
            except OSError as error:
                raise UserError(f"cannot write to {folder} ({error.strerror}); choose a folder that you own") from error

    world.run_on_all_ranks(f"writing to {folder}", create)
    answers = world.gather(_wait_until_exists(token, timeout))
    if world.is_main:
        token.unlink(missing_ok=True)
    return all(answers)


def refuse_newer_on_other_hosts(folder: Path, world: World) -> None:
    """Without a shared disk only rank 0's checkpoints are used: raise UserError if another host has a newer one.

    `folder` holds the checkpoints of every stage.
    """
    stages = [path for path in sorted(folder.iterdir()) if path.is_dir()] if folder.is_dir() else []
    own = {path.name: max(checkpoint_folders(path), default=0) for path in stages}
    (first, known), *others = world.gather([socket.gethostname(), own])
    for host, found in others:
        for stage, step in found.items():
            if step > known.get(stage, 0):
                raise UserError(
                    f"rank 0 runs on {first}, but {host} has a newer checkpoint (step {step} of stage {stage!r}) in "
                    f"{folder} and no disk is shared: start with {host} as the first node, copy the run directory from "
                    f"{host} to {first}, or choose another name with name=..."
                )


def _wait_until_exists(path: Path, timeout: float) -> bool:
    end = time.monotonic() + timeout
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def broadcast_tensors(world: World, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy rank 0's tensors to every rank, in place. They are sent as bytes from the CPU: any type, any device."""
    if world.control is None:
        return
    shapes = {name: [list(tensors[name].shape), str(tensors[name].dtype)] for name in sorted(tensors)}
    assert world.share(shapes) == shapes, "all ranks must have the same tensors"
    for name in shapes:
        tensor = tensors[name].detach()
        if tensor.numel() == 0:
            continue
        if world.is_main:
            data = tensor.cpu().contiguous().reshape(-1).view(torch.uint8)
        else:
            data = torch.empty(tensor.numel() * tensor.element_size(), dtype=torch.uint8)
        dist.broadcast(data, src=0, group=world.control)
        if not world.is_main:
            tensor.copy_(data.view(tensor.dtype).reshape(tensor.shape))


def verify_together(candidate: Checkpoint, world: World, shared: bool) -> Checkpoint:
    """The candidate, either verified or with its damage, the same on every rank. Collective.

    Each rank reads a part of the files. Rank 0 reads again what another rank finds damaged, and its result counts: the
    checkpoint is not damaged just because one machine cannot read the disk.
    """
    if candidate.manifest is None:
        return candidate
    sizes = {name: record.size for name, record in candidate.manifest.files.items()}
    parts = split_by_size(sizes, world.size if shared else 1)
    mine = parts[world.rank] if world.rank < len(parts) else []
    reports = world.run_on_all_ranks(f"verifying {candidate.path}", lambda: _find_damage(candidate, mine))
    suspects = {name for report in reports for name in report}

    def confirm() -> Json:
        own = reports[0]
        others = _find_damage(candidate, suspects - set(own)) if world.is_main else {}
        return {**own, **others}

    found = world.run_on_all_ranks(f"verifying {candidate.path}", confirm)[0] if suspects else {}
    damage = found[min(found)] if found else None
    return replace(candidate, damage=damage, verified=damage is None)


def _find_damage(candidate: Checkpoint, names: Iterable[str]) -> dict[str, Json]:
    """What is wrong with some files of a checkpoint, by name."""
    assert candidate.manifest is not None
    files = candidate.manifest.files
    names = sorted(names)
    # hashing releases the GIL, so several files are read in parallel
    with ThreadPoolExecutor(max_workers=8) as pool:
        damages = pool.map(lambda name: damage_of(candidate.path / name, files[name]), names)
        return {name: damage for name, damage in zip(names, damages) if damage}
