"""Keyed dropout: which modules it replaces, what its masks depend on, and what it refuses."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import samestep
from samestep.core.errors import UserError
from samestep.data.loading import Batch
from samestep.train.learner.dropout import KeyedDropout, keyed_dropout, share_key
from samestep.world.world import World
from toys import Points, default_dtype, feed_of, learner_of

IDS = torch.tensor([[0, 5], [0, 9], [1, 5], [3, 2]])


class Quiet(nn.Dropout):
    """A library's name for torch's dropout."""


class Doubled(nn.Dropout):
    """A library's dropout that works in another way."""

    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class Library(nn.Module):
    """All kinds of dropout, one of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.1), nn.Sequential(Quiet(0.2), nn.Dropout1d(0.3)))
        self.image = nn.ModuleList([nn.Dropout2d(0.4), nn.Dropout3d(0.5, inplace=True)])
        self.first = self.second = nn.Dropout(0.6)
        self.again = self.body[0]
        self.others = nn.ModuleList([nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1), Doubled(0.1)])


@contextmanager
def at(
    module: nn.Module, ids: Tensor = IDS, step: int = 0, update: int = 0, seed: int = 0, name: str = "model"
) -> Iterator[nn.Module]:
    """Inside an update, at the given place of a run."""
    key = share_key(module, name, seed)
    assert key is not None
    for _ in range(update):
        with key.updating(step):
            pass
    with key.updating(step):
        key.set_batch({"ids": ids})
        yield module


def mask(x: Tensor | None = None, p: float = 0.5, ids: Tensor = IDS, **place: Any) -> Tensor:
    with at(keyed_dropout(nn.Dropout(p)), ids, **place) as module:
        return module(torch.ones(4, 50, 3) if x is None else x)


def test_every_dropout_of_torch_is_replaced_in_place() -> None:
    network = Library()
    names = list(network.state_dict())
    assert samestep.keyed_dropout(network) is network
    keyed = {name: part for name, part in network.named_modules() if isinstance(part, KeyedDropout)}
    assert {name: (part.p, part.channels, part.inplace) for name, part in keyed.items()} == {
        "body.1": (0.1, False, False),
        "body.2.0": (0.2, False, False),
        "body.2.1": (0.3, True, False),
        "image.0": (0.4, True, False),
        "image.1": (0.5, True, True),
        "first": (0.6, False, False),
        "second": (0.6, False, False),
    }
    assert [part.name for part in keyed.values()] == list(keyed)
    assert network.again is network.body[0]
    assert [type(part) for part in network.others] == [nn.AlphaDropout, nn.FeatureAlphaDropout, Doubled]
    assert list(network.state_dict()) == names
    assert keyed_dropout(network).get_submodule("first") is keyed["first"], "what is keyed already stays"


def test_it_keeps_the_mode_of_what_it_replaces() -> None:
    network = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5).eval())
    assert [part.training for part in keyed_dropout(network)] == [True, False]  # type: ignore[attr-defined]


def test_the_share_of_zeros_and_the_scale_of_the_rest() -> None:
    dropped = mask(torch.ones(4, 10_000), p=0.3)
    assert dropped.unique().tolist() == pytest.approx([0, 1 / 0.7])
    assert float((dropped == 0).double().mean()) == pytest.approx(0.3, abs=0.01)
    assert float(mask(torch.full((4, 5), torch.inf), p=1.0).abs().max()) == 0


def test_evaluation_and_zero_probability_change_nothing() -> None:
    x = torch.randn(4, 3)
    module = keyed_dropout(nn.Dropout(0.5)).eval()
    assert module(x) is x
    assert keyed_dropout(nn.Dropout(0.0))(x) is x


def test_the_mask_is_a_function_of_the_sample_and_its_place_in_the_run() -> None:
    reference = mask()
    assert torch.equal(mask(), reference)
    for rows in ([0], [3, 1], [2, 2, 0]):  # whatever rows share the micro-batch
        assert torch.equal(mask(torch.ones(len(rows), 50, 3), ids=IDS[rows]), reference[rows])
    assert torch.equal(mask(torch.ones(4, 70, 3))[:, :50], reference), "padding leaves the mask of what was there"
    others = [mask(step=1), mask(update=1), mask(seed=1), mask(name="other"), mask(ids=IDS + 1)]
    others += [mask(step=1, update=1), reference[[1, 2, 3, 0]]]
    for number, other in enumerate(others):
        for earlier in [reference, *others[:number]]:
            agree = float((other == earlier).double().mean())
            assert 0.4 < agree < 0.6, (number, agree)


def test_modules_have_masks_of_their_own() -> None:
    with at(keyed_dropout(Library())) as network:
        first, second = (network.get_submodule(name)(torch.ones(4, 500)) for name in ("first", "second"))
    assert not torch.equal(first, second)


def test_names_do_not_depend_on_wrappers() -> None:
    network = keyed_dropout(nn.Sequential(nn.Dropout(0.5)))
    with at(network):
        plain = network(torch.ones(4, 50))
    wrapped = nn.Module()
    wrapped._orig_mod = nn.Module()
    wrapped._orig_mod._checkpoint_wrapped_module = network
    with at(wrapped):
        assert torch.equal(network(torch.ones(4, 50)), plain)


def test_whole_channels_are_dropped() -> None:
    x = torch.randn(4, 40, 5, 6).abs() + 1
    x[0, :, 0, 0] = torch.inf
    with at(keyed_dropout(nn.Dropout2d(0.3))) as network:
        out = network(x)
    dropped = (out == 0).flatten(2)
    assert torch.equal(dropped.all(2), dropped.any(2))
    assert 0.1 < float(dropped.double().mean()) < 0.5
    torch.testing.assert_close(out[out != 0], x[out != 0] / 0.7)


def test_in_place_changes_what_it_was_given() -> None:
    start = torch.ones(4, 50, requires_grad=True)
    h = start * 2
    with at(keyed_dropout(nn.Dropout(0.5, inplace=True))) as network:
        assert network(h) is h
    assert torch.equal(h, 2 * mask(torch.ones(4, 50)))
    h.sum().backward()
    assert torch.equal(start.grad, h)


class Text(nn.Module):
    """`flat` merges rows and positions before its dropout, `first` puts positions first."""

    def __init__(self, shape: str) -> None:
        super().__init__()
        self.shape, self.inner = shape, nn.ModuleDict({"drop": nn.Dropout(0.5)})
        self.linear = nn.Linear(1, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.linear(x[..., None])  # [rows, positions, 2]
        h = h.flatten(0, 1) if self.shape == "flat" else h.transpose(0, 1)
        return self.inner["drop"](h).sum()[None].expand(len(x))


def loss(module: nn.Module, batch: Batch) -> Mapping[str, Tensor]:
    return {"sum": module(batch["x"])}


@pytest.mark.parametrize(("shape", "seen"), [("flat", r"\(12, 2\)"), ("first", r"\(4, 3, 2\)")])
def test_an_activation_without_a_dimension_of_rows_is_refused(shape: str, seen: str) -> None:
    with default_dtype(torch.float64):
        learner = learner_of(keyed_dropout(Text(shape)), World.single(), "lone")
        micro_batches = feed_of(Points(3), World.single(), 3, 3, steps=1)[0]
        sentence = rf"dropout 'inner.drop' got an activation of shape {seen} in a micro-batch of 3 rows.*batch first"
        with pytest.raises(UserError, match=sentence):
            learner.update(micro_batches, loss)


def test_training_mode_outside_of_an_update_is_refused() -> None:
    network = keyed_dropout(nn.Sequential(nn.Linear(4, 2), nn.Dropout(0.5)))
    x = torch.ones(3, 4)
    with pytest.raises(UserError, match=r"dropout '1' belongs to no learner .* after keyed_dropout"):
        network(x)
    learner = learner_of(network, World.single(), "lone")
    for _ in range(2):  # before an update, and after it
        with pytest.raises(UserError, match=r"dropout '1' is used in training mode outside of its learner's update"):
            network(x)
        with learner.inference() as module:
            assert module(x).shape == (3, 2)
        with default_dtype(torch.float32):
            learner.update(feed_of(Points(8), World.single(), 8, 3, steps=1)[0], lambda m, b: {"s": m(b["x"]).sum(1)})
