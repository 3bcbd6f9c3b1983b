"""Whether all ranks see one disk, and rank 0's state on all ranks when they do not."""

import secrets
import socket
import time
from collections.abc import Mapping
from pathlib import Path

import torch
import torch.distributed as dist

from samestep.checkpoint.agree import settle
from samestep.checkpoint.manifest import checkpoint_folders
from samestep.core.errors import UserError
from samestep.world.world import World


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

    settle(world, f"writing to {folder}", put)
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


def spread_text(world: World, text: str) -> str:
    """Rank 0's text, on every rank."""
    if world.control is None:
        return text
    data = bytearray(text.encode())
    size = torch.tensor([len(data)])
    dist.broadcast(size, src=0, group=world.control)
    data = data if world.is_main else bytearray(int(size))
    dist.broadcast(torch.frombuffer(data, dtype=torch.uint8), src=0, group=world.control)
    return data.decode()


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
