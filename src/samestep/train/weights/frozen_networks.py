"""The frozen networks of a stage, and the frozen bases of its learners: built, and compared at every resume."""

import copy
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep.checkpoint.across_ranks import broadcast_tensors
from samestep.core.errors import UserError
from samestep.parallel.build import FillFunction, build_uninitialized
from samestep.parallel.compiling import compile_calls
from samestep.parallel.precision import COMPUTE_DTYPES
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.frozen import (
    FirstAdapters,
    Frozen,
    fill_from,
    place_frozen,
    read_copy,
    ready_frozen,
    write_copy,
)
from samestep.train.learner.initialization import build_fresh
from samestep.train.learner.learner import Learner
from samestep.train.learner.lora import base_parameters, base_state, brings_its_base
from samestep.train.record.first_launch import StageInfo
from samestep.train.record.run_record import run_path
from samestep.train.weights.first_weights import FirstWeights
from samestep.train.weights.learner_network import WEIGHT_TYPES, as_network
from samestep.train.weights.run_checkpoints import MODEL
from samestep.train.weights.sources import NamedWeights, SourceFill

Given = nn.Module | Callable[[], nn.Module]
"""A network, or the function that builds it."""


class FrozenNetworks:
    """What a stage uses and does not train. The content of each is recorded by its first launch, by hash."""

    def __init__(
        self, stage: StageInfo, first_weights: FirstWeights, before_compiling: Callable[[str], None] = lambda what: None
    ) -> None:
        """`before_compiling` is called whenever one of them is going to be compiled now."""
        self._stage, self._first_weights, self._before_compiling = stage, first_weights, before_compiling
        self._config, self._world, self._first_launch = stage.config, stage.world, stage.first_launch
        self._folder = stage.rundir.artifacts(stage.name)
        self._given: dict[str, Given] = {}
        self._begins_at_base: dict[str, bool] = {}
        self._compute = COMPUTE_DTYPES.get(self._config.distributed.mixed_precision)
        self._names: list[str] = []
        self._modules: dict[str, nn.Module] = {}
        self._compiles = bool(self._config.compile)
        self.hashes: dict[str, str] = {}
        """The hashes of all content that is in no checkpoint, for its manifest."""

    def add_learner(self, learner: Learner, given: Given, begins_at_base: bool, trained_on: Mapping[str, str]) -> None:
        """A learner was made of `given`. If it has a frozen base, that is recorded or compared, and stored where it
        cannot be read again. `trained_on` are the hashes of the run that its first weights come from."""
        self._given[learner.name], self._begins_at_base[learner.name] = given, begins_at_base
        if learner.has_frozen_base:
            what = "adapters" if learner.has_adapters else "weights"
            key, bases = f"base/{learner.name}", self._first_weights.bases
            self._check(f"the base of learner {learner.name!r}", key, base_parameters(learner.module))
            if bases.is_copied(learner.name) and not self._stage.resumed:
                write_copy(bases.copy_of(learner.name), base_state(learner.module), self._world)
            if trained_on.get(key, self.hashes[key]) != self.hashes[key]:
                raise UserError(
                    f"learner {learner.name!r} begins with {what} that were trained on another base, or on this one "
                    "in another type; build the base that they were trained on"
                )

    def build(
        self,
        network: Given | Learner,
        *,
        name: str,
        source: str | Path | None,
        sharded: bool,
        dtype: str | None,
    ) -> Frozen:
        """A frozen network; see `Bench.frozen`."""
        self._refuse_invalid(network, name, sharded, dtype)
        place = partial(self._place, sharded=sharded, dtype=dtype)
        if isinstance(network, Learner):
            if source is not None:
                raise UserError(f"frozen network {name!r} is a copy of learner {network.name!r}; leave out its source")
            return self._of_learner(network, name, place, as_it_is=not sharded and dtype is None)
        network = as_network(f"bench.frozen {name!r}", network)
        fill: FillFunction | None = None
        if source is not None:
            found = run_path(str(source), self._config.out)
            fill = self._source_fill(Path(found) if isinstance(source, Path) else found, name)
        if isinstance(network, nn.Module):
            module = network
        elif fill is not None:
            module = build_uninitialized(network)
        else:
            module, fill = build_fresh(network, self._config.seed, name)
        if fill is not None and source is not None and brings_its_base(module):
            raise UserError(
                f"frozen network {name!r} has a frozen base of its own, which no file brings back; fill the network "
                "before you give it to bench.frozen, and leave out its source"
            )
        module = place(module, fill)
        self._check(f"the frozen network {name!r}", f"frozen/{name}", module.state_dict())
        return self._ready(name, module)

    def _source_fill(self, source: str | Path, name: str) -> FillFunction:
        """What fills a network from a run, a checkpoint, a file or a model of the Hub: of a run `model`, the learner of
        that name, or the only one."""
        named = NamedWeights(source, self._world, self._stage.is_shared)
        return named.fill_for(named.learner_like(MODEL if not named.is_file and MODEL in named.learners else name))

    def _refuse_invalid(self, network: Given | Learner, name: str, sharded: bool, dtype: str | None) -> None:
        trained = [learner for learner, given in self._given.items() if given is network]
        if trained and isinstance(network, nn.Module):
            raise UserError(
                f"frozen network {name!r} is the same network that learner {trained[0]!r} trains; give bench.frozen "
                "that learner for a copy of its first weights"
            )
        if name in self._names:
            raise UserError(f"two frozen networks are called {name!r}; give one of them another name=...")
        self._names.append(name)
        if dtype not in (None, *WEIGHT_TYPES):
            known = ", ".join(WEIGHT_TYPES)
            raise UserError(f"the dtype of frozen network {name!r} must be one of {known}, not {dtype!r}")
        if sharded and not self._stage.is_shared:
            raise UserError(
                f"frozen network {name!r} cannot be sharded, because not all ranks see the run directory; set out=... "
                "to a folder on a shared disk, or leave out shard=True"
            )

    def compile(self) -> None:
        """Compile the networks when they are called, also those that are still to be made."""
        for name, module in self._modules.items():
            compile_calls(module, f"frozen network {name!r}", partial(self._before_compiling, "the model"))
        self._modules, self._compiles = {}, True

    def _ready(self, name: str, module: nn.Module) -> Frozen:
        self._modules[name] = module
        if self._compiles:
            self.compile()
        kernel = None if self._config.attention == "auto" else self._config.attention
        return ready_frozen(name, module, self._world, self._compute, kernel, self.hashes[f"frozen/{name}"])

    def _place(self, module: nn.Module, fill: FillFunction | None, *, sharded: bool, dtype: str | None) -> nn.Module:
        """On the device, in its type; float64 is for proofs, which need all of the arithmetic in it."""
        wanted = "float64" if self._config.distributed.dtype == "float64" else dtype
        if wanted is not None:
            module = module.to(WEIGHT_TYPES[wanted])
        return place_frozen(module, self._world, fill, sharded, self._compute)

    def _of_learner(self, learner: Learner, name: str, place: Callable[..., nn.Module], as_it_is: bool) -> Frozen:
        if brings_its_base(learner.module):
            raise UserError(
                f"learner {learner.name!r} has a frozen base of its own, so its network cannot be copied as frozen "
                f"network {name!r}; give bench.frozen a function that builds what you need"
            )
        if learner.has_updated:
            raise UserError(
                f"frozen network {name!r} is a copy of the first weights of learner {learner.name!r}, which has been "
                "trained since; make it where the stage is built"
            )
        what, key = f"the frozen copy {name!r} of learner {learner.name!r}", f"frozen/{name}"
        path = self._folder / f"frozen_{name}.safetensors"
        if learner.has_adapters:
            if not as_it_is:
                raise UserError(f"{what} uses the learner's own network; leave out its shard and dtype")
            if self._begins_at_base[learner.name]:
                return Frozen(name, learner.adapters_off, learner.weights_hash)
            first = FirstAdapters(learner)
            if self._stage.resumed:
                self._read(path, first.tensors)
            else:
                write_copy(path, first.tensors, self._world)
            self._check(what, key, first.tensors)
            return Frozen(name, first.in_use, lambda: f"{learner.weights_hash()} {self.hashes[key]}")
        is_copied = self._first_launch.fix(
            f"copied/{name}", lambda: not self._first_weights.can_read_again(learner.name)
        )
        module = place(self._like(learner, name), self._first_fill(learner, what, path if is_copied else None))
        if is_copied and not self._stage.resumed:
            write_copy(path, module.state_dict(), self._world)
        self._check(what, key, module.state_dict())
        return self._ready(name, module)

    def _first_fill(self, learner: Learner, what: str, path: Path | None) -> FillFunction:
        """What fills a network with a learner's first weights; `path` is their copy, if there is to be one."""
        if not self._stage.resumed:
            return fill_from(learner)
        if path is None:
            return self._first_weights.read_again(learner.name, what)
        return SourceFill(self._open(path), path, self._world, self._stage.is_shared)

    def _open(self, path: Path) -> Any:
        return read_copy(path) if self._stage.is_shared or self._world.is_main else None

    def _read(self, path: Path, tensors: Mapping[str, Tensor]) -> None:
        source = self._open(path)
        if source is not None:
            source.fill(tensors)
        if not self._stage.is_shared:
            broadcast_tensors(self._world, tensors)

    def _like(self, learner: Learner, name: str) -> nn.Module:
        """A network of the same kind and type as a learner's; its values do not matter."""
        given = self._given[learner.name]
        if not isinstance(given, nn.Module):
            with torch.random.fork_rng(devices=[]):
                module = build_uninitialized(given)
        elif len(learner.replicated_parameters()) < len(list(learner.parameters())):
            raise UserError(
                f"frozen network {name!r} needs a second network like that of learner {learner.name!r}, and a sharded "
                "one cannot be copied; give bench.learner a function that builds it (bench.learner(lambda: Net()))"
            )
        else:
            module = copy.deepcopy(given)
        return module.to(next(learner.parameters()).dtype)

    def _check(self, what: str, key: str, tensors: Mapping[str, Tensor]) -> None:
        """Record a hash, or compare it with the recorded one. Collective; all ranks refuse or none does."""
        found = self._world.gather(content_hash(tensors))  # a rank may have read another file
        fix = self._first_launch
        # Without a checkpoint nothing has been trained with an earlier one.
        known = self.hashes[key] = fix.fix(key, lambda: found[0]) if self._stage.resumed else fix.change(key, found[0])
        other = next((rank for rank, value in enumerate(found) if value != known), None)
        if other is not None:
            raise UserError(
                f"{what} is not the one that this run was started with (on rank {other} its weights have the hash "
                f"{found[other][:12]} instead of {known[:12]}); restore it, or start a new run"
            )
