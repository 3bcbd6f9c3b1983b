"""What ranks do together around a checkpoint: see one disk or not, verify it by shares, pass on what one alone sees."""

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
from samestep.core.records import Json
from samestep.world.world import World


def share_out(sizes: Mapping[str, int], parts: int) -> list[list[str]]:
    """Names in `parts` lists of about equal size: the largest first, each to whoever has least so far."""
    shares: list[list[str]] = [[] for _ in range(parts)]
    loads = [0] * parts
    for name in sorted(sizes, key=lambda name: (-sizes[name], name)):
        least = loads.index(min(loads))
        shares[least].append(name)
        loads[least] += sizes[name] + 1  # so that names of no size are spread too
    return shares


def shared_probe(folder: Path, world: World, patience: float = 2.0) -> bool:
    """Whether a file that rank 0 puts into `folder` is there for every rank; all ranks get the same answer.

    `patience` is how many seconds the file may take to show: network disks take their time.
    """
    token = folder / f".probe_{world.share(secrets.token_hex(8))}"

    def put() -> None:
        if world.is_main:
            try:
                folder.mkdir(parents=True, exist_ok=True)
                token.touch()
            except OSError as error:
                raise UserError(f"cannot write to {folder} ({error.strerror}); choose a folder that you own") from error

    world.run_on_all_ranks(f"writing to {folder}", put)
    answers = world.gather(_appears(token, patience))
    if world.is_main:
        token.unlink(missing_ok=True)
    return all(answers)


def refuse_newer_elsewhere(folder: Path, world: World) -> None:
    """Without a shared disk only rank 0's checkpoints count: refuse to go on without newer ones of another node.

    `folder` holds those of every stage.
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


def _appears(path: Path, patience: float) -> bool:
    end = time.monotonic() + patience
    while not path.exists():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def spread_tensors(world: World, tensors: Mapping[str, torch.Tensor]) -> None:
    """Give every rank the tensors of rank 0, in place. They travel as bytes over the CPU: any type, from any device."""
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


def verified(candidate: Checkpoint, world: World, shared: bool) -> Checkpoint:
    """The candidate, either verified or with its damage, the same on every rank. Collective.

    What another rank finds damaged rank 0 reads again: a disk that one machine cannot read well is no damage.
    """
    if candidate.manifest is None:
        return candidate
    sizes = {name: record.size for name, record in candidate.manifest.files.items()}
    shares = share_out(sizes, world.size if shared else 1)
    mine = shares[world.rank] if world.rank < len(shares) else []
    claims = world.run_on_all_ranks(f"verifying {candidate.path}", lambda: _damages(candidate, mine))
    suspects = {name for claim in claims for name in claim}

    def confirm() -> Json:
        own = claims[0]
        rest = _damages(candidate, suspects - set(own)) if world.is_main else {}
        return {**own, **rest}

    found = world.run_on_all_ranks(f"verifying {candidate.path}", confirm)[0] if suspects else {}
    damage = found[min(found)] if found else None
    return replace(candidate, damage=damage, verified=damage is None)


def _damages(candidate: Checkpoint, names: Iterable[str]) -> dict[str, Json]:
    """What is wrong with some files of a checkpoint, by name."""
    assert candidate.manifest is not None
    files = candidate.manifest.files
    names = sorted(names)
    # hashing leaves the interpreter free, so that several files are read side by side
    with ThreadPoolExecutor(max_workers=8) as pool:
        damages = pool.map(lambda name: damage_of(candidate.path / name, files[name]), names)
        return {name: damage for name, damage in zip(names, damages) if damage}
