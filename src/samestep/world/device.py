"""Which device this rank computes on, which backend carries its collectives, and how long these may take."""

import os
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from samestep.core.errors import UserError
from samestep.world.rank_discovery import RankInfo

BACKENDS = ("auto", "nccl", "gloo", "xccl", "ccl", "xpu", "mpi")
NVIDIA_DRIVER = Path("/proc/driver/nvidia")
"""It is there where the driver of NVIDIA cards is loaded."""
_PREFERRED = {"cuda": "nccl", "xpu": "xccl", "cpu": "gloo"}
_AVAILABLE: dict[str, Callable[[], bool]] = {
    "gloo": dist.is_gloo_available,
    "nccl": dist.is_nccl_available,
    "xccl": dist.is_xccl_available,
    "mpi": dist.is_mpi_available,
    "ccl": lambda: _has_ccl_bindings(),
}


def choose_device(wanted: str, rank_info: RankInfo) -> torch.device:
    """The device of this rank: the wanted kind, or cuda, xpu, cpu by availability. Ranks never share a card unasked."""
    kinds = {"cuda": torch.cuda, "xpu": torch.xpu}
    if wanted == "auto":
        wanted = next((kind for kind, module in kinds.items() if module.is_available()), "cpu")
    if wanted == "cpu":
        return torch.device("cpu")
    kind, _, index = wanted.partition(":")
    if kind not in kinds:
        raise UserError(f"device {wanted!r} is not known; choose auto, cpu, cuda, cuda:N or xpu")
    if not kinds[kind].is_available():
        raise UserError(f"device {kind!r} is not available on this machine; choose device=cpu or device=auto")
    count = kinds[kind].device_count()
    if index:  # one named card: several ranks may share it, because the user asked for just that
        if not index.isdigit() or int(index) >= count:
            raise UserError(f"device {wanted!r} does not exist: this machine has {count} {kind} device(s)")
        return torch.device(kind, int(index))
    if count == 1:  # the only card, or the one that the launcher makes visible to this rank: see `card_id`
        return torch.device(kind, 0)
    if rank_info.local_rank >= count:
        raise too_few_devices(rank_info, kind, count)
    return torch.device(kind, rank_info.local_rank)


def why_no_gpu(wanted: str) -> str:
    """Why a machine with the driver of NVIDIA cards trains on the CPU; empty if it has none, or if that is wanted."""
    if wanted == "cpu" or not NVIDIA_DRIVER.exists():
        return ""
    if not torch.version.cuda:
        return f"there is a GPU driver, but torch {torch.__version__} is built without CUDA: install one that is"
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible} hides the GPUs"
    return "there is a GPU driver, but torch reaches no GPU: look at nvidia-smi and samestep doctor"


def card_id(device: torch.device) -> str:
    """An id that no other card of this machine has, however a launcher renumbers them."""
    properties = getattr(torch, device.type).get_device_properties(device)
    return str(getattr(properties, "uuid", None) or device)


def claim_card(device: torch.device, rank_info: RankInfo, store: Any) -> None:
    """No two ranks on one card, unless it was asked for by its number: each would be slow, or out of memory."""
    if store.add(f"samestep/card/{socket.gethostname()}/{card_id(device)}", 1) > 1:
        raise too_few_devices(rank_info, device.type, getattr(torch, device.type).device_count())


def too_few_devices(rank_info: RankInfo, kind: str, count: int) -> UserError:
    """The error where ranks would have to share a card."""
    return UserError(
        f"{rank_info.local_size} ranks on this machine but only {count} {kind} device(s): "
        f"start at most {count} per machine, or use distributed.device=cpu"
    )


def choose_backend(wanted: str, device: torch.device) -> str:
    """The backend for `device`: the wanted one, or the device's own. One that is not available is refused, but for ccl
    on an xpu: where its bindings are missing, torch's own xccl is taken (see `notes`)."""
    available = [name for name, check in _AVAILABLE.items() if check()]
    backend = _PREFERRED[device.type] if wanted == "auto" else wanted
    if backend == "xpu":
        backend = "xccl" if "xccl" in available else "ccl"
    if backend == "ccl" and "ccl" not in available and "xccl" in available and device.type == "xpu":
        backend = "xccl"
    if backend not in available:
        raise UserError(f"backend {wanted!r} is not available here; available: auto, {', '.join(sorted(available))}")
    if backend == "nccl" and device.type != "cuda":
        raise UserError(f"backend 'nccl' needs a cuda device, not {device.type}; available: auto, gloo")
    return backend


def notes(wanted: str, chosen: str, device: torch.device, rank_info: RankInfo) -> list[str]:
    """What to say of a backend that is not the one that was named, and of tiles of Intel GPUs that nobody uses."""
    found = []
    if wanted == "ccl" and chosen != wanted:
        found.append("oneccl_bindings_for_pytorch is not installed, so the backend is torch's own xccl in place of ccl")
    if device.type == "xpu" and 1 < rank_info.local_size < torch.xpu.device_count():
        found.append(
            f"{rank_info.local_size} ranks use as many of the {torch.xpu.device_count()} xpu devices of this machine; "
            "if these are tiles, ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE gives each rank a whole GPU"
        )
    return found


def _has_ccl_bindings() -> bool:
    """oneCCL's bindings register the backend when imported."""
    import importlib.util

    if importlib.util.find_spec("oneccl_bindings_for_pytorch") is None:
        return False
    importlib.import_module("oneccl_bindings_for_pytorch")
    return True


def set_current(device: torch.device) -> torch.device:
    """Make `device` the current one, so that nothing is put on card 0 by accident."""
    if device.type != "cpu":
        getattr(torch, device.type).set_device(device)
    return device


def backend_spec(backend: str, device: torch.device) -> str:
    """CPU tensors always use gloo, beside the device's own backend."""
    return backend if backend in ("gloo", "mpi") else f"cpu:gloo,{device.type}:{backend}"


def group_timeout(configured: float) -> float:
    """The process group's timeout in seconds: NCCL_TIMEOUT, which users set though neither NCCL nor torch reads it."""
    text = os.environ.get("NCCL_TIMEOUT")
    try:
        seconds = configured if not text else float(text)
    except ValueError:
        raise UserError(f"NCCL_TIMEOUT={text!r} is not a number of seconds") from None
    if seconds <= 0:
        raise UserError(f"the process-group timeout must be positive, not {seconds:g} seconds")
    return seconds
