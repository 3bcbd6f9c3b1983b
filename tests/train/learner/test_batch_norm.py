"""Global batch norm: which modules it replaces, its gradient, and what it refuses."""

import copy
import pickle

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import gradcheck

import samestep
from samestep.core.errors import UserError
from samestep.data.loading import Batch
from samestep.train.learner.batch_norm import BatchNorms, GlobalBatchNorm, global_batch_norm
from samestep.world.world import World
from toys import Points, default_dtype, feed_of, learner_of, made


class Library(nn.Module):
    """All kinds of batch norm, one of them in two places."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, eps=0.1, momentum=None))
        self.image = nn.ModuleList([nn.BatchNorm2d(3, affine=False), nn.BatchNorm3d(2).eval(), nn.SyncBatchNorm(5)])
        self.first = self.second = nn.BatchNorm1d(6)
        self.others = nn.ModuleList([nn.InstanceNorm1d(3), nn.GroupNorm(1, 3)])


def batch_of(rows: int, fillers: int = 0) -> Batch:
    return {"live": torch.arange(rows + fillers) < rows}


def loss(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"sum": module(batch["x"]).sum(1)}


def test_every_batch_norm_of_torch_is_replaced_and_keeps_its_state() -> None:
    network = Library()
    before = {name: value.clone() for name, value in network.state_dict().items()}
    assert samestep.global_batch_norm(network, rows=4) is network
    found = {name: part for name, part in network.named_modules() if isinstance(part, GlobalBatchNorm)}
    assert {name: (part.eps, part.momentum, part.affine, part.rows) for name, part in found.items()} == {
        "body.1": (0.1, None, True, 4),
        "image.0": (1e-5, 0.1, False, 4),
        "image.1": (1e-5, 0.1, True, 4),
        "image.2": (1e-5, 0.1, True, 4),
        "first": (1e-5, 0.1, True, 4),
    }
    assert network.first is network.second
    assert [part.training for part in found.values()] == [True, True, False, True, True]
    assert list(network.state_dict()) == list(before)
    assert all(torch.equal(value, before[name]) for name, value in network.state_dict().items())
    assert isinstance(global_batch_norm(nn.BatchNorm2d(3)), GlobalBatchNorm)


@pytest.mark.parametrize("rows", [None, 3])
@pytest.mark.parametrize("shape", [(7, 2), (7, 2, 3), (7, 2, 2, 2)])
def test_its_gradient(rows: int | None, shape: tuple[int, ...]) -> None:
    """Of 5 rows that count; the others are normalised and count for nothing."""
    plain = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d}[len(shape)](2)
    norm = global_batch_norm(plain.double(), rows)
    norms = BatchNorms(norm, "model", World.single())

    def apply(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with norms.calling(batch_of(5, 2), 7):
            return torch.func.functional_call(norm, {"weight": weight, "bias": bias}, x)[:5]

    random = torch.Generator().manual_seed(1)
    inputs = [torch.randn(*size, generator=random, dtype=torch.float64) for size in (shape, (2,), (2,))]
    assert gradcheck(apply, [value.requires_grad_() for value in inputs])


def test_filler_rows_change_nothing_even_if_not_finite() -> None:
    norm = global_batch_norm(nn.BatchNorm1d(4).double())
    norms, x = BatchNorms(norm, "model", World.single()), Points(6).x.requires_grad_()
    with norms.calling(batch_of(6), 6):
        wanted = norm(x)
    wanted.square().sum().backward()
    gradient, x.grad = x.grad, None
    assert gradient is not None
    filler = torch.full((2, 4), torch.nan, dtype=torch.float64)
    with norms.calling(batch_of(6, 2), 8):
        found = norm(torch.cat([x, filler]))
    torch.where(batch_of(6, 2)["live"][:, None], found.square(), 0.0).sum().backward()
    assert torch.equal(found[:6], wanted)
    torch.testing.assert_close(x.grad, gradient)


def test_a_group_of_one_value_gives_the_bias_and_no_variance() -> None:
    norm = made(lambda: global_batch_norm(nn.BatchNorm1d(4).double(), rows=2))
    assert isinstance(norm, GlobalBatchNorm)
    norms, x = BatchNorms(norm, "model", World.single()), Points(3).x
    with norms.calling(batch_of(3), 3):
        torch.testing.assert_close(norm(x)[2], norm.bias, rtol=0, atol=1e-12)
    norms.restart()
    with norms.calling(batch_of(1), 1):
        norm(x[:1])
    norms.apply(torch.zeros(()))
    torch.testing.assert_close(norm.running_mean, 0.1 * x[0])
    assert torch.equal(norm.running_var, torch.ones(4, dtype=torch.float64))


def test_low_precision_is_normalised_in_float32() -> None:
    norm, x = global_batch_norm(nn.BatchNorm1d(4)), (100 + Points(64).x).to(torch.bfloat16).requires_grad_()
    norms = BatchNorms(norm, "model", World.single())
    with norms.calling(batch_of(64), 64):
        found = norm(x)
    found.sum().backward()
    assert x.grad is not None
    assert [found.dtype, x.grad.dtype] == [torch.bfloat16] * 2
    torch.testing.assert_close(found.float(), nn.BatchNorm1d(4)(x.float()), rtol=1e-2, atol=1e-2)


def test_copies_belong_to_no_learner() -> None:
    norm = global_batch_norm(nn.BatchNorm1d(4))
    norms = BatchNorms(norm, "model", World.single())
    with norms.calling(batch_of(3), 3):
        for other in (copy.deepcopy(norm), pickle.loads(pickle.dumps(norm))):
            with pytest.raises(UserError, match="belongs to no learner"):
                other(torch.ones(3, 4))
            assert other.eval()(torch.ones(3, 4)).shape == (3, 4)


def test_training_mode_outside_of_an_update_is_refused() -> None:
    network, x = global_batch_norm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2))), torch.ones(3, 4)
    with pytest.raises(UserError, match=r"batch norm '1' belongs to no learner .* after global_batch_norm"):
        network(x)
    learner = learner_of(network, World.single(), "lone")
    for _ in range(2):  # before an update, and after it
        with pytest.raises(UserError, match=r"batch norm '1' is used in training mode outside of its learner's update"):
            network(x)
        learner.update(feed_of(Points(8), World.single(), 8, 8, steps=1)[0], loss)


class Flat(nn.Module):
    """Merges rows and positions before its norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(1, 2), nn.BatchNorm1d(2)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.linear(x[..., None]).flatten(0, 1)).view(len(x), -1)


def test_an_input_without_a_dimension_of_rows_is_refused() -> None:
    with default_dtype(torch.float64):
        learner = learner_of(global_batch_norm(Flat()), World.single(), "lone")
        with pytest.raises(UserError, match=r"'norm' got an input of shape \(12, 2\) in a micro-batch of 3 rows"):
            learner.update(feed_of(Points(3), World.single(), 3, 3, steps=1)[0], loss)


def test_what_cannot_be_the_same_is_refused() -> None:
    for rows in (0, 1, 2.5, True):
        with pytest.raises(UserError, match=r"rows of global_batch_norm is .*; give a whole number from 2 up"):
            global_batch_norm(nn.BatchNorm1d(2), rows)  # type: ignore[arg-type]
    with pytest.raises(UserError, match=r"batch norm '0' has no running statistics.*track_running_stats=True"):
        global_batch_norm(nn.Sequential(nn.BatchNorm1d(2, track_running_stats=False)))
    with pytest.raises(UserError, match=r"nn.SyncBatchNorm in '1'.*use samestep.global_batch_norm\(model\)"):
        learner_of(nn.Sequential(nn.Linear(1, 2), nn.SyncBatchNorm(2)), World.single(), "lone")
    mixed = nn.Sequential(global_batch_norm(nn.BatchNorm1d(2)), global_batch_norm(nn.BatchNorm1d(2), 4))
    with pytest.raises(UserError, match=r"several sizes, rows=None in '0' and rows=4 in '1'; call global_batch_norm"):
        learner_of(mixed, World.single(), "lone")
    norm = global_batch_norm(nn.BatchNorm2d(2).eval())
    with pytest.raises(UserError, match=r"input of shape \(3, 2\), and needs 4 dimensions"):
        norm(torch.ones(3, 2))


def test_micro_batches_that_cut_a_group_are_refused() -> None:
    network = global_batch_norm(nn.Sequential(nn.Linear(4, 2), nn.BatchNorm1d(2)).double(), rows=4)
    learner = learner_of(network, World.single(), "lone")
    with default_dtype(torch.float64):
        feed = feed_of(Points(8), World.single(), 8, 3, steps=1)
        with pytest.raises(
            UserError, match=r"has the rows 0 to 1 of the .* cuts a group; call feed.keep_together\(4\)"
        ):
            learner.update(feed[0], loss)
        with pytest.raises(UserError, match=r"feed.keep_together\(4\) comes after the first step of the feed"):
            feed.keep_together(4)
        feed = feed_of(Points(8), World.single(), 8, 3, steps=1)
        feed.keep_together(4)
        with pytest.raises(UserError, match=r"at most 3 rows cannot hold the 4 rows .* set batch_size to at least 4"):
            _ = feed[0]


def test_another_size_of_groups_than_at_the_first_launch_is_refused() -> None:
    fixed = {"batch_norm_rows/model": 8}
    with pytest.raises(UserError, match=r"started with global_batch_norm\(model, rows=8\) and now has rows=4"):
        BatchNorms(global_batch_norm(nn.BatchNorm1d(2), 4), "model", World.single(), lambda what, decide: fixed[what])
