"""Two copies of two data-parallel shares on four real processes make the run that one process makes.

Ranks 0 and 1 take the first share and ranks 2 and 3 the second, as two model-parallel groups would. Gradients are
averaged over ranks 0 and 2, and over ranks 1 and 3; sums over all ranks count each share once.
"""

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from samestep.checkpoint.manifest import read_manifest
from samestep.checkpoint.metadata import read_metadata
from samestep.checkpoint.store import Store
from samestep.core.json_files import JsonLines
from samestep.core.rundir import RunDir
from samestep.data.feed import MicroBatches
from samestep.data.loading import Batch
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.wrap import local
from samestep.train.api.bench import Bench
from samestep.train.api.fit import evaluate
from samestep.train.learner.ema import Average
from samestep.train.learner.evidence import EvidenceRecorder
from samestep.train.learner.learner import Learner
from samestep.train.logging.console import Screen
from samestep.train.logging.metrics import MetricAccumulator, Metrics
from samestep.train.record.config import Config, Distributed
from samestep.world.world import DataParallel, World
from toys import (
    Net,
    Points,
    close,
    default_dtype,
    feed_of,
    learner_of,
    made,
    moments_of,
    rate,
    run_on_ranks,
    same_everywhere,
    weights_of,
)

STEPS = 5
SPLITS = [(23, 8, 2), (10, 7, 1), (9, 4, 3), (5, 1, 1)]
"""Rows, global batch, rows of a micro-batch; a batch of one row leaves a share without any."""

pytestmark = pytest.mark.timeout(900)
Case = Callable[[World, str, Path], None]


MIX = {"tokens": 1.0, "pairs": 1.0}


def two_terms(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    out = module(batch["x"], batch["tokens"])
    error = (out - batch["y"]).square().sum(1)
    return {"tokens": error * batch["tokens"], "pairs": torch.tanh(out.sum(1)) * batch["pairs"]}


def both(batch: Batch) -> dict[str, Tensor]:
    return {"tokens": batch["tokens"], "pairs": batch["pairs"]}


def embed(module: nn.Module, batch: Batch) -> dict[str, Tensor]:
    return {"out": module(batch["x"], batch["tokens"]), "pairs": batch["pairs"]}


def couple(rows: Mapping[str, Tensor], own: slice) -> dict[str, Tensor]:
    scores = rows["out"][own] @ rows["out"].T
    return {"match": scores.logsumexp(1), "pairs": rows["out"][own].square().sum(1) * rows["pairs"][own]}


def compared(world: World, strategy: str, update: Callable[[Learner, MicroBatches], Metrics]) -> None:
    """Updates, metrics, moments and validation are those of one process."""
    for size, batch, micro in SPLITS:
        rows, sides = Points(size), (world, World.single())
        learners = [learner_of(made(Net), side, strategy) for side in sides]
        feeds = [feed_of(rows, side, batch, micro, STEPS, count=both) for side in sides]
        once = [feed_of(Points(11), side, batch, micro, -(-11 // batch), count=both) for side in sides]
        accumulators = [MetricAccumulator(side) for side in sides]
        for step in range(STEPS):
            for learner, feed, accumulator in zip(learners, feeds, accumulators):
                accumulator.add(update(learner, feed[step]))
            ours, alone = (accumulator.read() for accumulator in accumulators)
            assert ours == pytest.approx(alone, rel=1e-10), step
            assert ("loss" in ours) == ("grad_norm" in ours)
        close(weights_of(learners[0]), learners[1].weights())
        close(moments_of(learners[0]), moments_of(learners[1]))
        same_everywhere(world, weights_of(learners[0]).values())
        ours, alone = (evaluate(learner, feed, two_terms) for learner, feed in zip(learners, once))
        assert ours == pytest.approx(alone, rel=1e-10)
        assert world.gather(ours) == [ours] * world.size


def updates_are_those_of_one_process(world: World, strategy: str, folder: Path) -> None:
    compared(
        world,
        strategy,
        lambda learner, micro_batches: learner.update(micro_batches, two_terms, {"tokens": 1.0, "pairs": -0.3}),
    )


def coupled_updates_are_those_of_one_process(world: World, strategy: str, folder: Path) -> None:
    compared(
        world,
        strategy,
        lambda learner, micro_batches: learner.update_coupled(micro_batches, embed, couple, {"pairs": 0.2}),
    )


def a_loss_scale_cancels_out(world: World, strategy: str, folder: Path) -> None:
    """fp16 takes the sum over the shares after the backward pass, by another line."""
    with default_dtype(torch.float32):
        norms, moments = [], []
        for side in (world, World.single()):
            learner = learner_of(made(Net), side, strategy, mixed_precision="fp16")
            learner._scale.scale.fill_(2.0**8)  # type: ignore[union-attr]
            accumulator = MetricAccumulator(side)
            accumulator.add(learner.update(feed_of(Points(16), side, 8, 2, 1, count=both)[0], two_terms, MIX))
            norms.append(accumulator.read()["grad_norm"])
            moments.append(
                torch.cat([value.flatten() for name, value in moments_of(learner).items() if "_avg" in name])
            )
        assert norms[0] == pytest.approx(norms[1], rel=0.01)
        assert (moments[0] - moments[1]).norm() < 0.01 * moments[1].norm()


def state_is_cut_over_the_shares_and_saved_once(world: World, strategy: str, folder: Path) -> None:
    learner = learner_of(made(Net), world, strategy)
    learner.update(feed_of(Points(16), world, 8, 2, 1, count=both)[0], two_terms, MIX)
    held = world.gather(sum(local(p).numel() for p in learner.parameters()))
    total = sum(p.numel() for p in made(Net).parameters())
    assert held[0] + held[2] == held[1] + held[3] == (total if strategy == "fsdp" else 2 * total)

    path = Store(folder, world).save(1, {"model": learner}, {})
    entries = read_metadata(path, read_manifest(path).files).storage_data.values()
    written = sum(file.stat().st_size for file in path.glob("*.distcp"))
    assert written == sum(entry.length for entry in entries), "a part that two ranks hold is written by one of them"
    for side in (world, World.single()):
        again = learner_of(made(Net, seed=2), side, strategy)
        store = Store(folder, side)
        found = store.newest()
        assert found is not None
        store.load(found, {"model": again})
        close(weights_of(again), weights_of(learner), tolerance=0)
        close(moments_of(again), moments_of(learner), tolerance=0)
    weights = world.share({name: value.tolist() for name, value in learner.weights(full=True).items()})
    again.load_weights({name: torch.tensor(value) for name, value in weights.items()})
    close(weights_of(again), weights_of(learner), tolerance=0)


def parts_of_the_model_do_not_mix(world: World, strategy: str, folder: Path) -> None:
    """The ranks of a model-parallel group hold other weights, as tensor parallelism will have them."""
    ends = []
    for side in (world, World.single()):
        learner = learner_of(made(Net, seed=1 + world.rank % 2), side, strategy)
        for micro_batches in feed_of(Points(16), side, 8, 2, 3, count=both):
            learner.update(micro_batches, two_terms, MIX)
        ends.append(weights_of(learner))
    close(*ends)


def averaged_weights_follow(world: World, strategy: str, folder: Path) -> None:
    ends = []
    for side in (world, World.single()):
        learner = learner_of(made(Net), side, strategy)
        average, feed = Average(learner, 0.9), feed_of(Points(16), side, 8, 2, 3, count=both)
        for micro_batches in feed:
            learner.update(micro_batches, two_terms, MIX)
            average.update()
        ends.append(average.state_dict()["model"])
    close(*ends)


def first_weights_are_those_of_one_process(world: World, strategy: str, folder: Path) -> None:
    shape = TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=24, vocab_size=37)
    found = []
    for side in (world, World.single()):
        config = Config(distributed=Distributed(strategy=strategy))  # type: ignore[arg-type]
        bench = Bench(side, config, RunDir(folder / "run"), "fit", Screen(False))
        found.append(weights_of(bench.learner(lambda: Transformer(shape), rate=rate)))
    close(*found, tolerance=0)


def the_plan_counts_shares(world: World, strategy: str, folder: Path) -> None:
    bench = Bench(world, Config(batch_size=4, accumulation=3), RunDir(folder / "run"), "fit", Screen(False))
    assert bench.stage_plan.global_batch == 4 * 3 * 2
    assert bench.evaluation_feed(Points(30)).order.batch == 4 * 3 * 2, "a dump has the same steps at any world size"


def evidence_has_every_row_once(world: World, strategy: str, folder: Path) -> None:
    path = folder / f"evidence_{world.rank}"
    learner = learner_of(made(Net), world, strategy, recorder=EvidenceRecorder(path, "fit", world.dp_counted))
    micro_batches = feed_of(Points(16), world, 8, 2, 1, count=both)[0]
    learner.update(micro_batches, two_terms, MIX)
    learner.update_coupled(micro_batches, embed, couple, {"match": 1.0, "pairs": 1.0})
    evaluate(learner, feed_of(Points(11), world, 8, 2, 2), two_terms)
    recorded = world.gather([line["ids"] for line in JsonLines(path)])
    for line, size in enumerate((8, 8, 11)):
        ids = [tuple(sample) for rank in recorded for sample in rank[line]]
        assert len(ids) == len(set(ids)) == size
    hashes = world.gather([line.get("hash") for line in JsonLines(path)])
    assert hashes == [hashes[0]] * world.size


CASES: list[Case] = [
    updates_are_those_of_one_process,
    coupled_updates_are_those_of_one_process,
    a_loss_scale_cancels_out,
    state_is_cut_over_the_shares_and_saved_once,
    parts_of_the_model_do_not_mix,
    averaged_weights_follow,
    first_weights_are_those_of_one_process,
    the_plan_counts_shares,
    evidence_has_every_row_once,
]


def on_ranks(case: Case, strategy: str, folder: Path) -> None:
    torch.set_default_dtype(torch.float64)
    world = World.join(device="cpu", timeout=60)
    groups = [world.open_group("data parallel", ranks) for ranks in ([0, 2], [1, 3])]
    world.data_parallel = DataParallel.over(groups[world.rank % 2], counted=world.rank % 2 == 0)
    assert (world.dp_rank, world.dp_size) == (world.rank // 2, 2)
    case(world, strategy, folder)
    world.leave()


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.__name__)
def test_on_four_ranks(tmp_path: Path, case: Case, strategy: str) -> None:
    run_on_ranks(on_ranks, 4, case, strategy, tmp_path, logs=tmp_path / "logs")
