"""`samestep evaluate RUN`: the metrics of validation, on records that the run held back.

These are its test records (`data.test_fraction`), which nothing was chosen by; a run without them has those for
validation. The reference is the network that the run began with, built again; its hash is compared with that of then.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samestep import Trained, UserError, World
from samestep.core.config.bounds import Count
from samestep.core.config.checked import CheckedConfig
from samestep.data.fingerprint import recorded_file_difference
from samestep.data.order import VALIDATION_EPOCH
from samestep.data.split import PART_NOTES
from samestep.parallel.build import materialize
from samestep.parallel.precision import autocast, cast_for_good
from samestep.recipes.dpo.config import DpoConfig
from samestep.recipes.dpo.families import Family, PairRows, padding
from samestep.recipes.dpo.objective import PairLogProbs, PairScores, pair_terms
from samestep.recipes.dpo.stages import open_family
from samestep.recipes.dpo.task import POLICY, REFERENCE, with_loss
from samestep.train.learner.content_hash import content_hash
from samestep.train.learner.initialization import build_fresh
from samestep.train.record.config import named_source
from samestep.train.record.fixed_values import DATA, read_fixed
from samestep.train.record.run_record import run_path
from samestep.train.trained.batch_inference import compute_dtype, compute_rows, network_of
from samestep.train.trained.held_out import TEST, VALIDATION, run_with_its_data
from samestep.train.weights.sources import NamedWeights

_CHOSEN, _REJECTED = "chosen", "rejected"
_OTHER, _WEIGHT = "other/", "weight/"
"""What the names of further sums of a row, and of what these are divided by, begin with."""


@dataclass(frozen=True)
class EvaluationOptions(CheckedConfig):
    """How to evaluate."""

    batch_size: Count = 8
    """Pairs at once on a device."""


def evaluate(trained: Trained, options: EvaluationOptions, world: World) -> dict[str, Any]:
    """Metrics of the test records, or of those for validation, on every rank."""
    _check_records(trained, world)
    config: DpoConfig = trained.config
    family = open_family(config, world)
    pairs = family.pairs()
    part, rows = (TEST, pairs.test) if len(pairs.test) else (VALIDATION, pairs.validation)
    scoring = _Scoring(family, rows, world, options.batch_size)
    policy, compute = network_of(trained, POLICY, world.device)
    found = scoring(policy, compute)
    del policy  # only one of the two is in memory
    before = scoring(_reference(trained, family, world), compute)
    scores = PairScores(
        PairLogProbs(found[_CHOSEN], found[_REJECTED]),
        found[f"{_CHOSEN}_size"],
        found[f"{_REJECTED}_size"],
        {name.removeprefix(_OTHER): value for name, value in found.items() if name.startswith(_OTHER)},
    )
    terms = pair_terms(config.objective, scores, PairLogProbs(before[_CHOSEN], before[_REJECTED]))
    means = {
        name: float(values.double().sum() / found.get(_WEIGHT + name, torch.ones(len(rows))).double().sum())
        for name, values in terms.items()
    }
    notes = [PART_NOTES[part], *(sentence for sentence in pairs.about[1:] if f"pairs for {part}," in sentence)]
    return {"part": part, "pairs": len(rows), **with_loss(config.objective, means), "notes": notes}


@dataclass(frozen=True)
class _Scoring:
    """What a network says of rows."""

    family: Family
    rows: PairRows
    world: World
    batch_size: int

    def __call__(self, network: nn.Module, compute: torch.dtype | None) -> dict[str, Tensor]:
        """Log-probabilities of both sequences of each row, and what else is summed over its tokens."""
        collate = padding(self.family, self.world)

        def score(numbers: list[int]) -> dict[str, Tensor]:
            made = collate([self.rows[number] for number in numbers])
            batch = {name: values.to(self.world.device) for name, values in made.items()}
            epochs = [[VALIDATION_EPOCH, number] for number in numbers]  # decoding orders as in validation
            batch["ids"] = torch.tensor(epochs, device=self.world.device)
            with autocast(self.world.device, compute):
                scores = self.family.scores(network, batch)
            return {
                _CHOSEN: scores.log_probs.chosen,
                _REJECTED: scores.log_probs.rejected,
                f"{_CHOSEN}_size": scores.chosen_size,
                f"{_REJECTED}_size": scores.rejected_size,
                **{_OTHER + name: values for name, values in scores.others.items()},
                **{_WEIGHT + name: values for name, values in self.family.count(batch).items()},
            }

        return compute_rows(self.rows.lengths, self.batch_size, self.world, score)


def _check_records(trained: Trained, world: World) -> None:
    """Refuse files and settings other than those of the run: which records were held back follows from them."""
    run = run_with_its_data(trained)
    feeds = [feed for each in read_fixed(run).get(trained.stage, {}).get(DATA, {}).values() for feed in each]
    for file in (file for feed in feeds for file in feed.get("files", ()) if Path(file.get("path", "")).is_file()):
        if difference := recorded_file_difference(file, Path(file["path"]), world.activity.made_progress):
            raise UserError(f"Bring back the data that {trained.source} was trained with: {difference}.")


def _reference(trained: Trained, family: Family, world: World) -> nn.Module:
    """The network that the run began with; refused if it is another one now."""
    config: DpoConfig = trained.config
    assert trained.run is not None
    module, fill = build_fresh(family.network, config.seed, POLICY)
    if source := named_source(config) or family.first_weights:
        fill = NamedWeights(run_path(source, config.out), world).fill_for(POLICY)
        if fill.holds_adapters:
            raise UserError(f"Evaluate a run that did not begin with adapters: {source} has some, and no network.")
    network = materialize(module, world.device, fill).eval()
    if config.distributed.dtype == "float64":
        network = network.double()
    stage, key = (
        (REFERENCE, f"frozen/{POLICY}") if config.reference == "cached" else (trained.stage, "frozen/reference")
    )
    known = read_fixed(trained.run).get(stage, {}).get(key)
    if known is not None and content_hash(network.state_dict()) != known:
        raise UserError(f"Put back the weights that {trained.run.path} began with; they are others now.")
    cast_for_good(network, compute_dtype(config, world.device))
    return network
