"""The learner and the feed on a CUDA device: same results, low precision, and no waiting for the device."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from samestep.core.errors import RunFailed
from samestep.data.feed import Feed
from samestep.data.order import Shuffled
from samestep.train.learner.learner import Learner
from samestep.train.learner.optimizer import OptimSettings
from samestep.train.logging.metrics import MetricAccumulator
from samestep.world.world import World
from toys import (
    SETTINGS,
    ByHand,
    Net,
    Points,
    close,
    default_dtype,
    error,
    feed_of,
    in_order,
    learner_of,
    made,
    rate,
    weights_of,
)

pytestmark = pytest.mark.gpu


def on_gpu(precision: str = "none", module: nn.Module | None = None) -> Learner:
    # A large epsilon: Adam would otherwise blow the rounding of a gradient near zero up to a full step.
    settings = OptimSettings(SETTINGS.betas, 0.01, SETTINGS.weight_decay, SETTINGS.clip)
    learner = learner_of(
        module or made(Net), World.single("cuda"), "lone", mixed_precision=precision, settings=settings
    )
    if learner._scale:
        learner._scale.scale.fill_(2.0**8)  # its usual start would overflow here, and skip the first steps
    return learner


def test_float64_is_what_the_cpu_computes_by_hand() -> None:
    with default_dtype(torch.float64):
        rows, order = Points(23), Shuffled(23, 8, seed=3)
        hand, learner = ByHand(made(Net)), learner_of(made(Net), World.single("cuda"), "lone")
        feed = feed_of(rows, World.single("cuda"), 8, 2, steps=6)
        for step in range(6):
            hand.update(error(hand.module, rows.rows(order.ids(step)[:, 1]))["error"].mean(), rate(step))
            learner.update(feed[step], error)
        close({n: v.cpu() for n, v in weights_of(learner).items()}, hand.module.state_dict(), tolerance=1e-9)


def trained(precision: str, module: nn.Module | None = None) -> tuple[Learner, Tensor, list[float]]:
    learner = on_gpu(precision, module)
    feed, accumulator, losses = (
        feed_of(Points(64), World.single("cuda"), 16, 4, steps=20),
        MetricAccumulator(World.single("cuda")),
        [],
    )
    for step in range(20):
        accumulator.add(learner.update(feed[step], error))
        losses.append(accumulator.read().get("loss", float("nan")))
    learner.check_finite()
    return learner, torch.cat([value.flatten() for value in weights_of(learner).values()]), losses


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_low_precision_follows_float32(precision: str) -> None:
    _, exact, _ = trained("none")
    learner, weights, losses = trained(precision)
    begun = torch.cat([value.flatten() for value in made(Net).state_dict().values()]).cuda()
    assert all(p.dtype == torch.float32 for p in learner.parameters())
    assert all(loss == loss for loss in losses), "no step was skipped"
    assert 0 < (weights - exact).norm() < 0.05 * (exact - begun).norm()


def test_compiled_by_inductor() -> None:
    _, _, plain = trained("none")
    module = made(Net)
    module.compile()
    learner, _, compiled = trained("none", module)
    assert sorted(learner.weights()) == sorted(made(Net).state_dict())
    assert compiled == pytest.approx(plain, rel=1e-3)


@contextmanager
def no_waiting() -> Iterator[None]:
    """Whatever makes the host wait for the device is an error."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("precision", ["none", "bf16", "fp16"])
def test_a_step_never_waits_for_the_device(precision: str, workers: int) -> None:
    world = World.single("cuda")
    learner = on_gpu(precision)
    feed = Feed(Points(256), Shuffled(256, 16, seed=3), world, micro_rows=4, length=16, workers=workers)
    accumulator = MetricAccumulator(world)
    for step in range(4):  # the first steps load kernels and pin memory
        accumulator.add(learner.update(feed[step], error))
    with no_waiting():
        for step in range(4, 14):
            accumulator.add(learner.update(feed[step], error))
        with learner.inference() as module:
            micro_batches = feed[14]
            module(micro_batches.batches[0]["x"], micro_batches.batches[0]["tokens"])
    assert accumulator.read()["loss"] > 0


def test_waiting_would_be_noticed() -> None:
    with no_waiting(), pytest.raises(RuntimeError, match="synchroniz"):
        torch.ones(1, device="cuda").item()


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_arrive_whole(workers: int) -> None:
    """Copied on a stream of their own while the device is busy, they must not be read too early or reused too soon."""
    rows, order = Points(4096), Shuffled(4096, 1024, seed=3)
    feed = Feed(rows, order, World.single("cuda"), micro_rows=256, length=12, workers=workers)
    busy = torch.randn(2048, 2048, device="cuda")
    sums = []
    for step in range(12):
        for _ in range(20):
            busy = torch.tanh(busy @ busy)
        micro_batches = feed[step]
        assert all(value.is_cuda for batch in micro_batches.batches for value in batch.values())
        sums.append(torch.cat([batch["x"] for batch in micro_batches.batches]).double().sum(0))
    for step, total in enumerate(sums):
        wanted = rows.x[order.ids(step)[:, 1]].float().double().sum(0)
        torch.testing.assert_close(total.cpu(), wanted, rtol=1e-9, atol=1e-9)


def test_a_bad_step_is_skipped_and_many_end_the_run() -> None:
    rows = Points(24)
    rows.x[4:8] = rows.x[12:24] = float("nan")
    learner = learner_of(made(Net), World.single("cuda"), "lone", max_bad_steps=2)
    feed = feed_of(rows, World.single("cuda"), 4, 1, steps=6, order=in_order(rows, 4))
    for step in range(4):
        before = weights_of(learner)
        learner.update(feed[step], error)
        same = all(torch.equal(value, before[name]) for name, value in weights_of(learner).items())
        assert same == (step in (1, 3))
    learner.update(feed[4], error)
    with pytest.raises(RunFailed, match="2 steps in a row, the last at step 5"):
        learner.check_finite()
