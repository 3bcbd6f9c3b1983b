"""Choice of device and backend."""

import pytest
import torch
from torch import cuda

from samestep.core.errors import UserError
from samestep.world.device import choose_backend, choose_device
from samestep.world.rank_discovery import RankInfo

CPU = torch.device("cpu")


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


def test_nccl_never_runs_on_the_cpu() -> None:
    with pytest.raises(UserError, match="nccl"):
        choose_backend("nccl", CPU)
