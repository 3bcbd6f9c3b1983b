"""Choice of device and backend."""

from pathlib import Path

import pytest
import torch
from torch import cuda

from samestep.core.errors import UserError
from samestep.world import device
from samestep.world.device import choose_backend, choose_device, notes, why_no_gpu
from samestep.world.rank_discovery import RankInfo

CPU, XPU = torch.device("cpu"), torch.device("xpu")


def rank_info(local_rank: int = 0, local_size: int = 1) -> RankInfo:
    return RankInfo("torchrun", local_rank, local_size, local_rank, local_size)


@pytest.fixture
def two_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "is_available", lambda: True)
    monkeypatch.setattr(cuda, "device_count", lambda: 2)


def test_auto_without_a_card_is_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    assert choose_device("auto", rank_info()) == CPU


@pytest.mark.usefixtures("two_cards")
def test_auto_takes_the_card_of_the_local_rank() -> None:
    assert choose_device("auto", rank_info(1, 2)) == torch.device("cuda", 1)


@pytest.mark.usefixtures("two_cards")
def test_more_ranks_than_cards_is_refused_with_the_numbers() -> None:
    with pytest.raises(UserError, match=r"3 ranks .* only 2 cuda"):
        choose_device("auto", rank_info(2, 3))


@pytest.mark.usefixtures("two_cards")
def test_ranks_share_a_card_only_when_it_is_named() -> None:
    assert choose_device("cuda:0", rank_info(2, 3)) == torch.device("cuda", 0)
    with pytest.raises(UserError, match="has 2 cuda"):
        choose_device("cuda:2", rank_info())


@pytest.mark.parametrize("wanted", ["xpu", "tpu", "cuda:x"])
def test_a_device_that_is_not_there_is_refused(wanted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.xpu, "is_available", lambda: False)
    monkeypatch.setattr(cuda, "is_available", lambda: wanted.startswith("cuda"))
    monkeypatch.setattr(cuda, "device_count", lambda: 1)
    with pytest.raises(UserError):
        choose_device(wanted, rank_info())


def test_auto_backend_follows_the_device() -> None:
    assert choose_backend("auto", CPU) == "gloo"


def test_an_unavailable_backend_names_what_is_available() -> None:
    with pytest.raises(UserError, match=r"'ccl' is not available.*auto, .*gloo"):
        choose_backend("ccl", CPU)


def has(monkeypatch: pytest.MonkeyPatch, *backends: str) -> None:
    """This machine has exactly these backends."""
    for name in device._AVAILABLE:
        monkeypatch.setitem(device._AVAILABLE, name, lambda name=name: name in backends)


@pytest.mark.parametrize(
    ("there", "wanted", "chosen", "said"),
    [
        (["gloo", "ccl", "xccl"], "ccl", "ccl", ""),
        (["gloo", "ccl"], "ccl", "ccl", ""),
        (["gloo", "xccl"], "ccl", "xccl", "oneccl_bindings_for_pytorch is not installed"),
        (["gloo", "xccl"], "xpu", "xccl", ""),
        (["gloo", "ccl"], "xpu", "ccl", ""),
        (["gloo", "xccl"], "auto", "xccl", ""),
    ],
)
def test_the_backend_of_an_xpu(
    there: list[str], wanted: str, chosen: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, *there)
    assert choose_backend(wanted, XPU) == chosen
    found = notes(wanted, chosen, XPU, rank_info())
    assert len(found) == bool(said) and all(note.startswith(said) for note in found)


@pytest.mark.parametrize(("ranks", "devices", "said"), [(12, 12, 0), (6, 12, 1), (6, 6, 0), (1, 12, 0)])
def test_tiles_that_nobody_uses_are_mentioned(
    ranks: int, devices: int, said: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.xpu, "device_count", lambda: devices)
    found = notes("auto", "xccl", XPU, rank_info(0, ranks))
    assert len(found) == said and all("ZE_FLAT_DEVICE_HIERARCHY=COMPOSITE" in note for note in found)


@pytest.mark.parametrize(
    ("there", "wanted", "on"), [(["gloo"], "ccl", XPU), (["gloo", "xccl"], "ccl", CPU), (["gloo", "xccl"], "nccl", XPU)]
)
def test_no_other_backend_takes_the_place_of_the_named_one(
    there: list[str], wanted: str, on: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    has(monkeypatch, *there)
    with pytest.raises(UserError, match=f"{wanted!r} is not available"):
        choose_backend(wanted, on)


def test_nccl_never_runs_on_the_cpu() -> None:
    with pytest.raises(UserError, match="nccl"):
        choose_backend("nccl", CPU)


@pytest.mark.parametrize(
    ("wanted", "driver", "built_for", "visible", "why"),
    [
        ("auto", False, None, None, ""),
        ("cpu", True, None, None, ""),
        ("auto", True, None, None, "is built without CUDA"),
        ("auto", True, "12.8", "", "CUDA_VISIBLE_DEVICES= hides the GPUs"),
        ("auto", True, "12.8", "0", "torch reaches no GPU: look at nvidia-smi"),
    ],
)
def test_why_a_machine_with_a_gpu_trains_on_the_cpu(
    wanted: str,
    driver: bool,
    built_for: str | None,
    visible: str | None,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(device, "NVIDIA_DRIVER", tmp_path if driver else tmp_path / "none")
    monkeypatch.setattr(torch.version, "cuda", built_for)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    found = why_no_gpu(wanted)
    assert why in found if why else not found
