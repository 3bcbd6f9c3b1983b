"""gan.py with several seeds on one device, and with settings that it tries first: the result of docs/results/gan.md.

    python benchmarks/results/gan_seeds.py --passages passages.jsonl.gz --model SmolLM2-135M-Instruct --out gan

All seeds train a supervised generator and a judge, at the same time. The first of them then tries the adversarial run
with each of TRIALS for a few steps, up to the validation part. With the settings that come out best there, all seeds
train their adversarial generator with what is left of --minutes, and compare it with the supervised one on the test
part. `result.json` in the folder has the trials, the seeds, and the win rate of all seeds: prompts are drawn again,
with the texts of all seeds. A call after one that was cut off goes on from the runs that are there.
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
TRIALS = {f"rate-{rate}": [f"learning_rate={rate}"] for rate in ("5e-6", "1e-5", "2e-5")}


def gan(options: argparse.Namespace, out: Path, seed: int, *arguments: Any) -> subprocess.Popen[bytes]:
    """gan.py as a process, whose output goes to a file beside its folder."""
    given = ["--passages", options.passages, "--model", options.model, "--size", options.size]
    command = [sys.executable, HERE / "gan.py", *given, "--out", out, "--seed", seed, *arguments]
    with out.with_suffix(".log").open("ab") as file:
        return subprocess.Popen([str(part) for part in command], stdout=file, stderr=subprocess.STDOUT)


def wait(processes: Mapping[str, subprocess.Popen[bytes]]) -> None:
    """Until all have ended; says which have failed."""
    for name, process in processes.items():
        if code := process.wait():
            say(f"{name} ended with {code}; see its log")


def left(options: argparse.Namespace) -> float:
    """Minutes."""
    return float(options.minutes - (time.time() - options.began) / 60)


def folder(options: argparse.Namespace, seed: int) -> Path:
    return Path(options.out, f"seed-{seed}")


def begin(options: argparse.Namespace) -> None:
    """The supervised generators and judges of all seeds."""
    given = ["--until", "judge", "--minutes", left(options) / 2]
    wait({f"seed {seed}": gan(options, folder(options, seed), seed, *given) for seed in options.seeds})


def try_all(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What the validation part says of each trial."""
    seed, processes = options.seeds[0], {}
    begun = ["--supervised", folder(options, seed) / "supervised", "--judge", folder(options, seed) / "judge"]
    given = [*begun, "--steps", options.trial_steps, "--until", "validation", "--minutes", left(options) / 2]
    for name, settings in TRIALS.items():
        out = Path(options.out, name)
        if not (out / "done").exists():
            processes[name] = gan(options, out, seed, *given, *settings)
    wait(processes)
    found = {}
    for name, settings in TRIALS.items():
        out = Path(options.out, name)
        if (out / "done").exists():
            result = json.loads((out / "result.json").read_text())
            found[name] = {"settings": settings} | {key: result[key] for key in ("ahead", "is_eligible", "chosen")}
            found[name] |= {"nats": result["validation"]["nats"], "training": result["training"]}
            say(f"{name}: {result['ahead']:+.4f} on validation, eligible: {result['is_eligible']}")
    return found


def best(trials: Mapping[str, Mapping[str, Any]]) -> str:
    """The one that is furthest ahead of those that keep variety and likelihood, or of all if none does."""
    return max(trials, key=lambda name: (trials[name]["is_eligible"], trials[name]["ahead"]))


def compare(options: argparse.Namespace, settings: Sequence[str]) -> list[dict[str, Any]]:
    """The results of all seeds."""
    seeds = [seed for seed in options.seeds if not (folder(options, seed) / "done").exists()]
    given = ["--minutes", left(options), *settings]
    processes = {f"seed {seed}": gan(options, folder(options, seed), seed, *given) for seed in seeds}
    wait(processes)
    done = [folder(options, seed) for seed in options.seeds if (folder(options, seed) / "done").exists()]
    return [json.loads((out / "result.json").read_text()) for out in done]


def pooled(results: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Of all seeds: they have the same prompts, so those are drawn again; whole documents too."""
    parts = [result["test"]["by_prompt"] for result in results]
    documents, found = parts[0]["documents"], {"documents": len(set(parts[0]["documents"]))}
    for name in ("win_rate", "control"):
        wins = np.array([part[name] for part in parts])
        found |= {name: bootstrap(wins), f"{name}_by_document": bootstrap(wins, documents)}
    return {**found, "kept": kept([result["test"] for result in results])}


def kept(tests: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Means over seeds of the adversarial generator: variety as a share of the supervised one's, and nats more."""
    own, other = ([test["variety"][who] for test in tests] for who in ("adversarial", "supervised"))
    distinct, bleu = (
        fmean(row[name] for row in own) / fmean(row[name] for row in other) for name in ("distinct_2", "self_bleu")
    )
    nats = fmean(test["nats"]["adversarial"] - test["nats"]["supervised"] for test in tests)
    is_kept = max(1 - distinct, bleu - 1) <= KEPT["variety"] and nats <= KEPT["nats"]
    return {"distinct_2": distinct, "self_bleu": bleu, "nats": nats, "is_kept": is_kept, "wanted": KEPT}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=24)
    parser.add_argument("--trial-steps", type=int, default=40)
    parser.add_argument("--size", choices=SIZES, default="full")
    options = parser.parse_args()
    options.began, options.out = time.time(), options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    begin(options)
    trials = try_all(options)
    if not trials:
        sys.exit(f"no trial reached the validation part; see the logs in {options.out}")
    chosen = best(trials)
    say(f"chosen: {chosen}")
    found = {"trials": trials, "chosen": chosen}
    write_results(options.out / "result.json", found)
    results = compare(options, trials[chosen]["settings"])
    if not results:
        sys.exit(f"no seed reached the test part; see the logs in {options.out}")
    minutes = (time.time() - options.began) / 60
    found |= {"pooled": pooled(results), "seeds": results, "minutes": round(minutes, 1)}
    write_results(options.out / "result.json", found)
    say("win rate {win_rate}, supervised against itself {control}".format(**found["pooled"]))


if __name__ == "__main__":
    main()
