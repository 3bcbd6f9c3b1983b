"""A learner that begins with weights from a file: built without memory, each rank filled with what it holds."""

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from samestep.checkpoint.safetensor_files import SafetensorsFiles, write_safetensors
from samestep.checkpoint.store import Store
from samestep.checkpoint.weight_sources import InMemoryWeights, Slices, copy_into
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.parallel.build import build_uninitialized
from samestep.parallel.wrap import full_tensor, local, wrap
from samestep.train.api.bench import Bench
from samestep.train.learner.learner import Learner
from samestep.train.logging.console import Screen
from samestep.train.record.config import Config, Distributed
from samestep.train.weights.run_checkpoints import LEARNERS, learner_parts
from samestep.train.weights.sources import fill, find_weights
from samestep.world.world import World
from toys import made, run_on_ranks

SHAPE = TransformerConfig(d_model=16, n_layers=2, n_heads=2, n_kv_heads=1, mlp_hidden_size=24, vocab_size=37)


def network() -> Transformer:
    return Transformer(SHAPE)


def wanted() -> dict[str, Tensor]:
    return made(network, seed=7).state_dict()


def learner(world: World, folder: Path, strategy: str, init_from: Path | None, make: object = network) -> Learner:
    config = Config(init_from=str(init_from) if init_from else None, distributed=Distributed(strategy=strategy))  # type: ignore[arg-type]
    bench = Bench(world, config, RunDir(folder / "run"), "fit", Screen(False))
    torch.manual_seed(3)
    return bench.learner(make, rate=lambda update: 0.1)  # type: ignore[arg-type]


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    """The same weights in every form: published in shards, as one file, as .pt, as a checkpoint."""
    published = {f"model.{name}": tensor for name, tensor in wanted().items()}
    for name, limit in (("shards", 5000), ("single", 10**9)):
        (tmp_path / name).mkdir()
        write_safetensors(tmp_path / name, InMemoryWeights(published), list(published), torch.float32, limit)
    assert len(list((tmp_path / "shards").iterdir())) > 3
    torch.save({"model_state_dict": published, "epoch": 1}, tmp_path / "w.pt")
    alone = World.single()
    state = {"model": learner(alone, tmp_path, "ddp", tmp_path / "w.pt")}
    Store(tmp_path, alone).save(1, state, {LEARNERS: learner_parts(state)})
    return tmp_path


FORMS = ("shards", "single", "single/model.safetensors", "w.pt", "step_00000001")


def on_ranks(folder: Path) -> None:
    world = World.join(device="cpu", timeout=60)
    for strategy in ("ddp", "fsdp"):
        for form in FORMS:
            for make in (network, network()):
                found = learner(world, folder, strategy, folder / form, make).weights()
                for name, tensor in wanted().items():
                    assert torch.equal(full_tensor(found[name]), tensor), f"{strategy} {form} {name}"
        given = learner(world, folder, strategy, None, made(network, 3)).weights()
        for name, tensor in made(network, 3).state_dict().items():
            assert torch.equal(full_tensor(given[name]), tensor), (
                "without a file, a network that is given stays as it is"
            )
    world.leave()


@pytest.mark.parametrize("nproc", [1, 2, 3])
def test_every_form_fills_every_rank(sources: Path, nproc: int) -> None:
    run_on_ranks(on_ranks, nproc, sources, logs=sources / "logs")


def test_every_form_fills_a_lone_process(sources: Path) -> None:
    for form in FORMS:
        found = learner(World.single(), sources, "ddp", sources / form).weights()
        assert all(torch.equal(found[name], tensor) for name, tensor in wanted().items())
        assert find_weights(sources / form).keys() in (found.keys(), {f"model.{name}" for name in found})


class Counting:
    """Weights that count how many of their numbers were read."""

    def __init__(self, layout: Mapping[str, Tensor]) -> None:
        self.layout, self.read = layout, 0

    def fill(self, targets: Mapping[str, Tensor]) -> None:
        for name, target in targets.items():

            def part_of(part: Slices | None, name: str = name) -> Tensor:
                found = self.layout[name][part] if part else self.layout[name]
                self.read += found.numel()
                return found

            copy_into(target, part_of)


def reads_its_own_part(folder: Path) -> None:
    world = World.join(device="cpu", timeout=60)
    source = Counting(wanted())
    parallel = wrap(build_uninitialized(network), world, "fsdp", None, lambda module: fill(module, source, "weights"))
    held = sum(local(parameter).numel() for parameter in parallel.inner.parameters())
    assert source.read == held
    assert sum(world.gather(held)) == sum(tensor.numel() for tensor in wanted().values())
    world.leave()


def test_a_shard_reads_no_more_than_it_holds(tmp_path: Path) -> None:
    run_on_ranks(reads_its_own_part, 3, tmp_path, logs=tmp_path / "logs")


class Remembering(nn.Module):
    """Has a part that no file holds."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(2))
        self.register_buffer("scale", torch.full((2,), 3.0), persistent=False)


def test_only_what_a_file_can_fill_is_built_without_memory() -> None:
    assert all(parameter.is_meta for parameter in build_uninitialized(network).parameters())
    kept = build_uninitialized(Remembering)
    assert torch.equal(kept.get_buffer("scale"), torch.full((2,), 3.0))
    assert not any(parameter.is_meta for parameter in kept.parameters())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"model.transformer.ln_f.weight": None}, "1 missing, namely model.transformer.ln_f.weight"),
        (
            {"model.transformer.odd.weight": torch.ones(1)},
            "1 unknown to the model, namely model.transformer.odd.weight",
        ),
        ({"lm_head.weight": torch.ones(1)}, "1 unknown to the model, namely lm_head.weight"),
        (
            {"model.transformer.ff_out.weight": torch.ones(36, 16)},
            r"1 of another shape, namely model.transformer.ff_out.weight \(36, 16\) instead of \(37, 16\)",
        ),
    ],
)
def test_a_missing_extra_or_misshapen_key_is_named(tmp_path: Path, change: dict, sentence: str) -> None:
    published = {f"model.{name}": tensor for name, tensor in wanted().items()} | change
    published = {name: tensor for name, tensor in published.items() if tensor is not None}
    write_safetensors(tmp_path, InMemoryWeights(published), list(published), torch.float32, 5000)
    with pytest.raises(UserError, match=f"the weights of {tmp_path} do not fit the model .{sentence}"):
        learner(World.single(), tmp_path, "ddp", tmp_path)


LARGE = TransformerConfig(d_model=512, n_layers=12, n_heads=8, mlp_hidden_size=2048, vocab_size=4096)

MEASURE = """
import json, sys
import torch
from pathlib import Path
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.train.weights.sources import fill, open_weights
from samestep.parallel.build import build_uninitialized, materialize

def peak():
    lines = dict(line.split(":", 1) for line in open("/proc/self/status"))
    return int(lines["VmHWM"].split()[0]) * 1024

folder, shape = Path(sys.argv[1]), TransformerConfig(**json.loads(sys.argv[2]))
materialize(build_uninitialized(lambda: Transformer(TransformerConfig())), torch.device("cpu"), lambda module: None)
before = peak()

def ones(module):
    for parameter in module.parameters():
        parameter.data.fill_(1.0)

weights = open_weights(folder)
how = ones if sys.argv[3] == "made" else lambda module: fill(module, weights, "weights")
module = materialize(build_uninitialized(lambda: Transformer(shape)), torch.device("cpu"), how)
print(peak() - before, module.transformer.ln_f.weight.sum().item())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_loading_holds_one_copy(tmp_path: Path) -> None:
    blank = build_uninitialized(lambda: Transformer(LARGE)).state_dict()
    ones = {f"model.{name}": torch.ones(()).expand(like.shape) for name, like in blank.items()}
    write_safetensors(tmp_path, InMemoryWeights(ones), list(ones), torch.float32, 60_000_000)
    size = sum(like.numel() for like in SafetensorsFiles(tmp_path).layout.values()) * 4
    assert size > 200e6
    shape = {name: getattr(LARGE, name) for name in ("d_model", "n_layers", "n_heads", "mlp_hidden_size", "vocab_size")}
    grown = {}
    for how in (
        "made",
        "loaded",
    ):  # a kernel may round each tensor up to large pages, so the network itself is measured
        args = [sys.executable, "-c", MEASURE, str(tmp_path), json.dumps(shape), how]
        done = subprocess.run(args, capture_output=True, text=True, timeout=100, check=True)
        grown[how], total = (float(number) for number in done.stdout.split())
        assert total == LARGE.d_model
    assert grown["made"] > 0.95 * size
    assert grown["loaded"] < 1.2 * grown["made"], f"{grown['loaded'] / grown['made']:.2f} copies"


def test_a_run_begins_with_other_settings_of_arithmetic(sources: Path) -> None:
    config = replace(Config(init_from=str(sources / "shards")), distributed=Distributed(dtype="float64"))
    bench = Bench(World.single(), config, RunDir(sources / "run"), "fit", Screen(False))
    found = bench.learner(network, rate=lambda update: 0.1).weights()
    assert all(torch.equal(found[name], tensor.double()) for name, tensor in wanted().items())
