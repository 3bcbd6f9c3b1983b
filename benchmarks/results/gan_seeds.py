"""gan.py with several seeds on one device, and with settings that it tries first: the result of docs/results/gan.md.

    python benchmarks/results/gan_seeds.py --passages passages.jsonl.gz --model SmolLM2-135M-Instruct --out gan

All seeds, at the same time, train a supervised generator and a judge; then for each of TRIALS an adversarial generator,
which is compared with the supervised one on the validation part. What comes out best there, over all seeds, is compared
on the test part. `result.json` in the folder has the trials, the seeds, and the win rates of all seeds: prompts are
drawn again, with the texts of all seeds. A call after one that was cut off, or that ended before the test (`--until
validation`), goes on from what is there.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
from gan import KEPT, SIZES
from independent_judge import bootstrap
from runs import say, write_results

HERE = Path(__file__).resolve().parent
Results = list[dict[str, Any]]
"""Of all seeds."""
TRIALS = {f"entropy {bonus}": [f"objective.entropy_coef={bonus}"] for bonus in ("0.02", "0.05")}
"""Without a bonus, entropy falls as fast as rewards rise."""


class Seeds:
    """gan.py as processes, one for each seed and trial."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options, self._began = options, time.time()

    @property
    def minutes(self) -> float:
        """That have passed."""
        return (time.time() - self._began) / 60

    def begin(self) -> None:
        """The supervised generators and judges."""
        given = ["--until", "judge", "--minutes", self._left() / 2]
        self._wait([self._gan(self._folder(seed), seed, *given) for seed in self._options.seeds])

    def compare(self, trials: Mapping[str, Sequence[str]], part: str) -> dict[str, Results]:
        """The adversarial generators of some trials on a part, by trial, where all seeds came that far."""
        for name, settings in trials.items():
            processes = []
            for seed in self._options.seeds:
                begun, out = self._folder(seed), self._folder(seed, name)
                given = ["--supervised", begun / "supervised", "--judge", begun / "judge", "--until", part]
                given += ["--steps", self._options.steps] if self._options.steps else []
                if not (out / f"{part}.done").exists():
                    processes.append(self._gan(out, seed, *given, "--minutes", self._left(), *settings))
            self._wait(processes)
        found: dict[str, Results] = {}
        for name in trials:
            outs = [self._folder(seed, name) for seed in self._options.seeds]
            if all((out / f"{part}.done").exists() for out in outs):
                found[name] = [json.loads((out / "result.json").read_text()) for out in outs]
        if not found:
            sys.exit(f"no trial came to the {part} part; see the logs in {self._options.out}")
        return found

    def _left(self) -> float:
        return float(self._options.minutes - self.minutes)

    def _folder(self, seed: int, trial: str = "") -> Path:
        return Path(self._options.out, f"seed {seed} {trial}".strip().replace(" ", "-"))

    def _gan(self, out: Path, seed: int, *arguments: Any) -> subprocess.Popen[bytes]:
        """gan.py, whose output goes to a file beside its folder."""
        options = self._options
        given = ["--passages", options.passages, "--model", options.model, "--size", options.size]
        command = [sys.executable, HERE / "gan.py", *given, "--out", out, "--seed", seed, *arguments]
        with Path(f"{out}.log").open("ab") as file:
            return subprocess.Popen([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT)

    def _wait(self, processes: Sequence[subprocess.Popen[bytes]]) -> None:
        for process in processes:
            if code := process.wait():
                say(f"a process ended with {code}; see the logs in {self._options.out}")


def pooled(results: Results, part: str) -> dict[str, Any]:
    """Of all seeds. Those have the same prompts in the test, which are drawn again; whole documents too."""
    parts = [result[part] for result in results]
    found: dict[str, Any] = {"kept": kept(parts)}
    for name in ("win_rate", "control"):
        wins = [one["by_prompt"][name] for one in parts]
        if part == "test":
            documents = parts[0]["by_prompt"]["documents"]
            found |= {"documents": len(set(documents)), f"{name}_by_document": bootstrap(np.array(wins), documents)}
        found[name] = bootstrap(np.array(wins) if part == "test" else np.concatenate(wins))
    return found


def kept(parts: Results) -> dict[str, Any]:
    """Means over seeds of the adversarial generator: variety as a share of the supervised one's, and nats more."""
    own, other = ([one["variety"][who] for one in parts] for who in ("adversarial", "supervised"))
    distinct, bleu = (
        fmean(row[name] for row in own) / fmean(row[name] for row in other) for name in ("distinct_2", "self_bleu")
    )
    nats = fmean(one["nats"]["adversarial"] - one["nats"]["supervised"] for one in parts)
    is_kept = max(1 - distinct, bleu - 1) <= KEPT["variety"] and nats <= KEPT["nats"]
    return {"distinct_2": distinct, "self_bleu": bleu, "nats": nats, "is_kept": is_kept, "wanted": KEPT}


def best(trials: Mapping[str, Mapping[str, Any]]) -> str:
    """The one that wins most often of those that keep variety and likelihood, or of all if none does."""
    return max(trials, key=lambda name: (trials[name]["kept"]["is_kept"], trials[name]["win_rate"][0]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trials", nargs="+", choices=TRIALS, default=list(TRIALS))
    parser.add_argument("--minutes", type=float, default=20, help="for all of it")
    parser.add_argument("--steps", type=int, help="of the adversarial runs, at most")
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--until", choices=["validation", "test"], default="test", help="where to stop")
    options = parser.parse_args()
    options.out = options.out.resolve()
    path = options.out / "result.json"
    before = json.loads(path.read_text())["minutes"] if path.exists() else 0.0  # of an earlier call
    options.out.mkdir(parents=True, exist_ok=True)
    seeds = Seeds(options)
    seeds.begin()
    trials = {}
    for name, results in seeds.compare({name: TRIALS[name] for name in options.trials}, "validation").items():
        trials[name] = pooled(results, "validation") | {"settings": TRIALS[name], "training": results[0]["training"]}
        trials[name]["chosen"] = [result["chosen"] for result in results]
        say(f"{name}: {trials[name]['win_rate']} on validation, kept: {trials[name]['kept']}")
    found: dict[str, Any] = {"trials": trials, "chosen": best(trials), "minutes": round(before + seeds.minutes, 1)}
    write_results(path, found)
    if options.until == "test":
        (results,) = seeds.compare({found["chosen"]: TRIALS[found["chosen"]]}, "test").values()
        found |= {"pooled": pooled(results, "test"), "seeds": results, "minutes": round(before + seeds.minutes, 1)}
        write_results(path, found)
        say("win rate {win_rate}, supervised against itself {control}, kept: {kept}".format(**found["pooled"]))


if __name__ == "__main__":
    main()
