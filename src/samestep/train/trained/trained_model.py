"""Opening a trained model, for `samestep.load`, sampling, evaluation and export."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samestep.checkpoint.loading import verified_manifest
from samestep.checkpoint.manifest import MANIFEST, DamageError, read_manifest
from samestep.checkpoint.weight_files import open_weight_file
from samestep.checkpoint.weight_sources import WeightSource
from samestep.core.config import build
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.models.causal_folder import open_causal_lm
from samestep.models.hub import resolve_model
from samestep.models.hub_download import hub_model
from samestep.models.model_files import weights_in
from samestep.models.sentence_folder import open_encoder
from samestep.parallel.build import build_uninitialized, materialize
from samestep.train.api.recipe import Recipe
from samestep.train.api.recipe_registry import find_recipe, known_recipes
from samestep.train.api.trusted_recipes import require_trusted
from samestep.train.artifacts.array_rows import ArrayRows, open_array_rows
from samestep.train.artifacts.artifact_key import ArtifactKey
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.lora import base_parameters, has_adapters, has_frozen_base
from samestep.train.record.run_record import RunRecord, find_run, run_path
from samestep.train.trained.network_building import BuiltNetwork, TrainedStage, build_network
from samestep.train.trained.published import PEFT, RECORD, SENTENCE_TRANSFORMERS, TRANSFORMERS, read_record
from samestep.train.weights.bases import find_base
from samestep.train.weights.run_checkpoints import MODEL, choose_checkpoint, choose_learner, learners_of
from samestep.train.weights.sources import (
    checkpoint_weights,
    fill,
    is_checkpoint,
    is_run,
    open_weights,
    run_of,
)
from samestep.world.world import World

_PT = ".pt"
TOKENIZER = "tokenizer"
"""The folder of the tokenizer among a stage's artifacts."""


@dataclass(frozen=True)
class Trained:
    """A model on disk: its recipe, its configuration, its weights, and the files that it needs beside them."""

    name: str
    """The recipe's name."""
    recipe: Recipe
    """The recipe that trained it."""
    config: Any
    """The configuration that it was trained with."""
    source: Path
    """The checkpoint, published folder or safetensors file that holds its weights."""
    files: Path
    """The folder of the files that go with it, such as a tokenizer."""
    verified: bool = False
    """Whether every byte of the weights was checked when it was opened."""
    stage: str = ""
    """The stage that trained it."""
    run: RunDir | None = None
    """Its run, if that is there."""
    learner: str | None = None
    """The learner that is meant; None: `model`, or the only one."""
    averaged: bool = True
    """Whether the averaged weights are used, if its run averaged them."""
    form: str = ""
    """Of an exported folder in the form of another library: of which."""
    networks_in_use: dict[Any, nn.Module] | None = None
    """Where networks are kept that were loaded, so that they are not loaded again; None: they are not kept."""

    @property
    def tokenizer(self) -> Path:
        """The folder of its tokenizer, if it has one: a separate folder in a run, else the folder of the model."""
        own = self.files / TOKENIZER
        return own if own.is_dir() else self.files

    def learners(self) -> list[str]:
        """The learners whose weights it has."""
        if is_checkpoint(self.source):
            return list(learners_of(self.source))
        record = read_record(self.source)
        return [record.learner if record and record.learner else MODEL]

    def learner_name(self, learner: str | None = None) -> str:
        """The learner that is meant, which the model must have."""
        return choose_learner(self.learners(), learner or self.learner, str(self.source))

    def weights(self, learner: str | None = None) -> WeightSource:
        """The weights of a learner, left on the disk until they are copied."""
        name = self.learner_name(learner)
        if not is_checkpoint(self.source):
            return open_weights(self.source)
        self.check_intact()
        return checkpoint_weights(self.source, name, averaged=self.averaged, verify=False)

    def weight_files(self) -> dict[str, Path]:
        """Files that are others as soon as the weights are, by their names. Of a checkpoint that is the manifest, which
        has the checksums of its files, and the hash of a base that its adapters stand on."""
        if is_checkpoint(self.source):
            return {MANIFEST: self.source / MANIFEST}
        files = [*weights_in(self.source), self.source / RECORD] if self.source.is_dir() else [self.source]
        return {path.name: path for path in files if path.is_file()}

    def check_intact(self) -> None:
        """Refuse a damaged checkpoint, unless all of it was checked already."""
        if is_checkpoint(self.source) and not self.verified:
            verified_manifest(self.source)

    def read_array_artifact(self, name: str, stage: str, world: World, key: ArtifactKey | None = None) -> ArrayRows:
        """The rows of an array artifact that a stage of its run has left, as `bench.read_array_artifact` gives them.
        Collective."""
        if self.run is None:
            raise UserError(f"Name the run, or a checkpoint in it, instead of {self.source}: what it read is there.")
        return open_array_rows(self.run.artifacts(stage) / name, world, shared=True, key=key)

    def load(self, module: nn.Module, learner: str | None = None) -> None:
        """Fill a module of the right shape with the weights, on its device and in its type."""
        fill(module, self.weights(learner), f"weights of {self.source}")

    def build(
        self, make: Callable[[], nn.Module], device: torch.device | str = "cpu", dtype: torch.dtype | None = None
    ) -> nn.Module:
        """The network that `make` builds, with its weights, ready for use; it is never in memory twice."""
        key = (None, torch.device(device), dtype)
        return self._kept(key, lambda: self._filled(BuiltNetwork(build_uninitialized(make)), None, device, dtype))

    def network(
        self,
        learner: str | None = None,
        device: torch.device | str = "cpu",
        dtype: torch.dtype | str | None = None,
    ) -> nn.Module:
        """The network of a learner as its recipe builds it, with its weights, in evaluation mode."""
        name = self.learner_name(learner)
        return self._kept((name, torch.device(device), dtype), lambda: self._built(name, device, _dtype(dtype)))

    def _kept(self, key: Any, load: Callable[[], nn.Module]) -> nn.Module:
        """A network that is loaded now, unless it was loaded before and kept."""
        kept = {} if self.networks_in_use is None else self.networks_in_use
        if key not in kept:
            kept[key] = load()
        return kept[key]

    def _built(self, name: str, device: torch.device | str, dtype: torch.dtype | None) -> nn.Module:
        if self.form == TRANSFORMERS:
            return open_causal_lm(self.source).network().to(device=device, dtype=dtype).eval()
        if self.form == SENTENCE_TRANSFORMERS:
            return open_encoder(self.source).load().to(device=device, dtype=dtype)
        # `networks` gives plain networks, and only `build` knows their adapters.
        is_adapted = self._base_hash(name) is not None
        recipe = replace(self.recipe, networks=None) if is_adapted else self.recipe
        base = find_base(self.source, name) if is_adapted else None
        stage = TrainedStage(recipe, self.name, self.config, self.stage, self.run, base)
        return self._filled(build_network(stage, name), name, device, dtype)

    def _filled(
        self, built: BuiltNetwork, learner: str | None, device: torch.device | str, dtype: torch.dtype | None
    ) -> nn.Module:
        def fill_module(module: nn.Module) -> None:
            if built.initial is not None:
                built.initial(module)
            self.load(module, learner)

        if not has_frozen_base(built.module):
            module = built.module if dtype is None else built.module.to(dtype)
            return materialize(module, torch.device(device), fill_module).eval()
        module = materialize(built.module, torch.device(device), fill_module)
        self._check_base(module, learner)  # before its type changes, which is part of its hash
        return (module if dtype is None else module.to(dtype)).eval()

    def _base_hash(self, learner: str | None) -> str | None:
        """Of a learner with a frozen base in a checkpoint, the hash of that."""
        about = read_manifest(self.source).about if is_checkpoint(self.source) else {}
        found: str | None = about.get("frozen", {}).get(f"base/{learner}")
        return found

    def _check_base(self, module: nn.Module, learner: str | None) -> None:
        """Refuse another base than the one that the weights in a checkpoint were trained on."""
        known, what = self._base_hash(learner), "adapters" if has_adapters(module) else "weights"
        if known is not None and content_hash(base_parameters(module)) != known:
            raise UserError(
                f"the {what} in {self.source} were trained on another base than the recipe builds now; put back the "
                "model that the run was started with"
            )


def _dtype(dtype: torch.dtype | str | None) -> torch.dtype | None:
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else dtype
    if dtype is not None and not isinstance(found, torch.dtype):
        raise UserError(f"dtype must be a type such as 'bfloat16' or torch.bfloat16, not {dtype!r}")
    return found


def open_trained(
    text: str,
    which: str | int = "last",
    *,
    learner: str | None = None,
    stage: str | None = None,
    recipe: str | None = None,
    averaged: bool = True,
) -> Trained:
    """The trained model that a user named: a run by path or by name, a checkpoint, or a published model, also of the
    Hub.

    Of a run, `which` is `last`, `best` or a step; `stage` says of which stage, if not of the last one. `recipe` stands
    in for the recipe that the model names.
    """
    path = find_published(text, recipe)
    if is_checkpoint(path):
        trained = _open_checkpoint(path, recipe)
    elif is_published(path, recipe):
        trained = _open_published(path, recipe)
    else:
        rundir = find_run(text)
        chosen = choose_checkpoint(rundir, which, learner=learner, stage=stage)
        trained = replace(_open_checkpoint(chosen, recipe), verified=True)
    return replace(trained, learner=learner, averaged=averaged)


def model_path(text: str, recipe: str | None = None) -> Path:
    """The path that a user named: that of a run, by path or by name, of a checkpoint, or of a published model."""
    path = find_published(text, recipe)
    return path if is_checkpoint(path) or is_published(path, recipe) else find_run(text).path


def recipe_of(text: str, recipe: str | None = None) -> tuple[str, Recipe]:
    """The recipe of the trained model that a user named, without opening its weights."""
    path = find_published(text, recipe)
    if is_checkpoint(path):
        trained = _open_checkpoint(path, recipe)
        return trained.name, trained.recipe
    if is_published(path, recipe):
        trained = _open_published(path, recipe)
        return trained.name, trained.recipe
    rundir = find_run(text)
    record = RunRecord.read(rundir)
    assert record is not None
    return recipe or record.recipe, _find_recipe(record.recipe, recipe, rundir.path)


def is_published(path: Path, recipe: str | None = None) -> bool:
    """Whether a path is that of a published model: a folder, a safetensors file, or a .pt file."""
    if not path.is_dir():
        return path.is_file() and path.suffix in (".safetensors", _PT)
    has_config = (path / "config.json").exists() or read_record(path) is not None
    return not is_run(path) and (has_config or recipe is not None)


def find_published(text: str, recipe: str | None = None, world: World | None = None) -> Path:
    """The path of what a user named. A model of the Hub is downloaded, first its small files: one that no recipe knows
    is refused before its weights are. Collective, if a world is given."""
    path = run_path(text, "runs")
    if hub_model(path) is None:
        return Path(path)
    known = _open_published(resolve_model(path, world, weights=False), recipe)
    record = read_record(known.source)
    if record and any(inside != "." for inside in record.models.values()):
        raise UserError(f"Download {text} yourself, and name its folder (hf download): it has folders of its own.")
    return resolve_model(path, world)


def _find_recipe(name: str, given: str | None, folder: Path) -> Recipe:
    """The recipe that the user gives; else the one that `folder` names, if it may be used."""
    if given:
        return find_recipe(given)
    require_trusted(name, folder)
    try:
        return find_recipe(name)
    except UserError as error:
        raise UserError(f"{error}; if the recipe is elsewhere now, say where (--recipe, or recipe=...)") from None


def _open_checkpoint(path: Path, given: str | None) -> Trained:
    """A checkpoint names its recipe and settings; the other files are in its run, or beside it if it was moved."""
    try:
        about = read_manifest(path).about
    except DamageError as damage:
        raise UserError(f"the checkpoint {path} is damaged: {damage}; use another one") from None
    name, stage, settings = (about.get(key) for key in ("recipe", "stage", "config"))
    if not isinstance(name, str) or not isinstance(stage, str) or not isinstance(settings, dict):
        raise UserError(f"the checkpoint {path} does not say what trained it; use another one")
    run = run_of(path)
    recipe = _find_recipe(name, given, run.path if run else path)
    files = run.artifacts(stage) if run else path
    return Trained(given or name, recipe, build(recipe.config, settings), path, files, stage=stage, run=run)


def _open_published(path: Path, given: str | None) -> Trained:
    """The recipe is the one that the user gives, or that the model names; else one that knows such folders."""
    record = read_record(path)
    if record and record.form == PEFT:
        raise UserError(
            f"export again with --adapters merge, or load {path} with peft: it holds adapters without their base"
        )
    name = given or (record and record.recipe)
    for candidate in [name] if name else known_recipes():
        recipe = _find_recipe(candidate, given, path)
        may_know = recipe.read_pretrained is not None and (path.is_dir() or path.suffix == _PT)
        config = recipe.read_pretrained(path) if recipe.read_pretrained and may_know else None
        settings = record.settings_in(path) if record else None
        if config is None and settings is not None:
            config = build(recipe.config, settings)
        if config is not None:
            files = path if path.is_dir() else path.parent
            stage, form = (record.stage, record.form) if record else ("", "")
            return Trained(candidate, recipe, config, path, files, stage=stage, form=form)
    if path.suffix == _PT and path.is_file():
        open_weight_file(path)  # a damaged file is unknown to all, and says so here
    if name:
        raise UserError(f"the recipe {name} does not know the model in {path}; name another one with --recipe")
    raise UserError(
        f"no recipe knows the model in {path}; give a run, a checkpoint, or a published model of a recipe, or name its "
        "recipe with --recipe (models of other libraries are for settings of training, such as model_name)"
    )
