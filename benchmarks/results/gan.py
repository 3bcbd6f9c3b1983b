"""Does a generator that learned against a judge write better than the supervised one it began as? One seed a call.

    python benchmarks/results/make_passages.py debs passages.jsonl.gz
    python benchmarks/results/gan.py --passages passages.jsonl.gz --model SmolLM2-135M-Instruct --out gan-0 --seed 0

(gan_seeds.py does it for several seeds, with settings that it tries on the validation part.)

What it does, within --minutes: SmolLM2 learns people's texts (the supervised generator), a judge learns alone to tell
them from this generator's, then both learn against each other (the adversarial generator); a run each. Those that
--out has are not trained again, and `--supervised RUN` and `--judge RUN` name some of another folder. Both generators
continue passages that neither saw. For each of them the temperature that is best on the validation part is taken: by a
judge that trained with neither, on texts of all temperatures. Then a new judge of that kind learns texts at these two
temperatures, and compares them on the test part, which is used once (`--until validation`: on the validation part; a
second call goes on from there). Beside it stands a control: the supervised generator against itself, with other noise,
whose interval must contain 0.5. Every text is written with noise of its own: with the same noise two generators that
hardly differ write copies, and a comparison of them is one of rounding errors. `result.json` in the folder has
everything. Further arguments are settings of the recipe (`objective.kl_coef=0.05`).
"""

import argparse
import gzip
import itertools
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from independent_judge import IndependentJudge, Texts, bootstrap, win_shares
from runs import metrics, without_template, write_records, write_results

import samestep
from samestep import CausalConfig, World, open_language_model
from samestep.models.log_probs import completion_log_probs
from samestep.recipes.gan.data import Domain
from samestep.recipes.gan.evaluation import text_metrics

HERE = Path(__file__).resolve().parent
TEMPERATURES = (0.6, 0.7, 0.8, 0.9, 1.0)
KEPT = {"variety": 0.05, "nats": 0.05}
"""How far the adversarial generator may fall behind: a share of distinct-2 and Self-BLEU, and nats that a token of
people's texts costs more."""
SAMPLES = 2
"""Texts of each generator for each prompt of the test."""
BOTH: dict[str, Any] = {
    "schedule": "constant",
    "warmup_steps": 10,
    "weight_decay": 0.0,
    "data.validation_fraction": 0.05,
    "checkpoint.every_steps": 0,
    "checkpoint.every_epochs": 0,
    "checkpoint.keep_last": 1,
    "checkpoint.background": False,
    "compile": False,
    "log.every": 4,
    "log.samples": 0,
    "log.tensorboard": False,
}
SUPERVISED = {**BOTH, "mle_epochs": 2, "mle_learning_rate": 7e-5, "until": "mle"}
ADVERSARIAL: dict[str, Any] = {
    **BOTH,
    "mle_epochs": 0,
    "writing.rows_at_once": 256,
    "judging.max_prompt_tokens": 48,
    "objective.kind": "grpo",
    "objective.kl_coef": 0.1,
    "objective.entropy_coef": 0.02,
    "reward": "log_odds",
    "learning_rate": 1e-5,
    "judge_learning_rate": 3e-5,
    "judge_every": 4,
    "generator_pauses_below": 0.6,
    "judge_pauses_above": 0.9,
    "replay.keep": 2,
    "replay.every": 40,
    "replay.share": 0.25,
    "validate_every": 0,
    "benchmark.size": 0,
    "activation_checkpointing": "full",
}
JUDGE = {
    **ADVERSARIAL,
    "objective.kl_coef": 0.0,
    "judge_learning_rate": 5e-5,
    "judge_every": 1,
    "generator_pauses_below": 0.99,  # always
    "judge_pauses_above": 1.0,
    "replay.keep": 0,
}
"""The judge alone learns first, by many small updates."""
for _name in ("replay.every", "replay.share"):
    del JUDGE[_name]
RUNS = {"supervised": SUPERVISED, "judge": JUDGE, "adversarial": ADVERSARIAL}


@dataclass(frozen=True)
class Size:
    """How much is trained and judged."""

    train: int
    judge: int
    validation: int
    test: int
    judge_steps: int
    steps: int
    reserve: float
    """Minutes that are kept for the comparison."""
    prompts: int = 32
    completions: int = 8
    tokens: int = 64


SIZES = {
    "full": Size(8000, 2400, 400, 1000, 120, 40, 2.0),
    "smoke": Size(640, 256, 64, 96, 12, 12, 1.0),
    "tiny": Size(64, 48, 16, 24, 4, 4, 0.5, prompts=8, completions=2, tokens=8),
}


@dataclass(frozen=True)
class Passage:
    """A prompt, and what a person wrote next."""

    prompt: str
    human: str
    row: dict[str, str]

    @property
    def document(self) -> str:
        return self.row["document"]


def read_parts(file: Path, domain: Domain, size: Size, seed: int) -> dict[str, list[Passage]]:
    """Passages by part, as many as are wanted, chosen by the seed; those of the test are always the same."""
    parts: dict[str, list[Passage]] = {}
    with gzip.open(file, "rt") as lines:
        for row in map(json.loads, lines):
            parts.setdefault(row["part"], []).append(Passage(domain.prompt(row), row[domain.human_field], row))
    chosen = {}
    for number, (name, passages) in enumerate(sorted(parts.items())):
        order = np.random.default_rng(1000 * number + (0 if name == "test" else seed)).permutation(len(passages))
        chosen[name] = [passages[i] for i in order[: getattr(size, name)]]
    return chosen


def train(args: argparse.Namespace, size: Size, began: float, name: str) -> Path:
    """One of the three runs, with what is left of the time, if it is not there."""
    run = Path(args.out, name)
    if (args.out / f"{name}.done").exists():
        return run
    shutil.rmtree(run, ignore_errors=True)
    left = 60 * (args.minutes - size.reserve) - (time.time() - began)
    settings = {**RUNS[name], "writing.max_new_tokens": size.tokens}
    rows = {"supervised": 2 * size.prompts, "judge": size.prompts // 2, "adversarial": size.prompts}[name]
    at_once = rows // 2 if name == "adversarial" else rows  # three seeds share a card
    settings |= {"global_batch_size": rows, "batch_size": at_once}
    if name != "supervised":
        settings |= {"judging.max_tokens": size.tokens, "generator.init_from": args.supervised}
    if name == "judge":
        settings |= {"objective.group_size": 2, "max_steps": size.judge_steps}
    if name == "adversarial":
        settings |= {"objective.group_size": size.completions, "max_steps": args.steps or size.steps}
        settings |= {"judge.init_from": args.judge}
    settings |= {"seed": args.seed, "max_time": f"{max(20, int(left))}s", "out": args.out, "name": name}
    settings |= {"model_name": args.out / "model", "data.path": args.out / "train.jsonl"}
    words = [f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in settings.items()]
    own = [setting for setting in args.settings if name == "adversarial" or setting.startswith("writing.")]
    command = [sys.executable, "-m", "samestep", "train", str(HERE / "continuations.py"), *words, *own]
    done = subprocess.run(command).returncode
    if done not in (0, 75):  # 75: stopped by max_time
        sys.exit(f"training ended with {done}; see {run}")
    (args.out / f"{name}.done").touch()
    return run


class Writer:
    """A trained generator."""

    def __init__(self, run: Path, stage: str) -> None:
        recipe = str(HERE / "continuations.py")
        self._device = "cuda" if torch.cuda.is_available() else "cpu"
        which = "best" if stage == "mle" else "last"
        self._model = samestep.load(run, which, "generator", self._device, stage=stage, recipe=recipe)
        self.limit: int = self._model.config.writing.max_new_tokens

    def __call__(self, passages: Sequence[Passage], temperature: float, noise: int, samples: int = 1) -> list[str]:
        """The texts, `samples` for each prompt after each other. The noise is keyed by `noise` and a prompt's place."""
        options = {"temperature": temperature, "samples": samples, "seed": noise, "batch_size": 1024}
        return self._model.generate([passage.prompt for passage in passages], **options)

    @torch.no_grad()
    def nats(self, passages: Sequence[Passage], folder: Path, rows: int = 64) -> float:
        """Nats for a token of what people wrote, up to the limit."""
        player = open_language_model(str(folder), World.single(self._device), shape=CausalConfig())
        network, total, count = self._model.network, 0.0, 0
        for start in range(0, len(passages), rows):
            some = passages[start : start + rows]
            prompt = padded([player.prompt(each.prompt) for each in some], player.pad, self._device)
            human = padded([player.encode(each.human)[: self.limit] for each in some], player.pad, self._device)
            found = completion_log_probs(network, *prompt, *human).log_probs
            total -= torch.where(human[1], found, 0.0).sum().item()
            count += int(human[1].sum())
        return total / count


def padded(rows: Sequence[Sequence[int]], pad: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens padded in front, and where there is one."""
    width = max(map(len, rows))
    tokens = torch.tensor([[pad] * (width - len(row)) + list(row) for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return tokens, torch.arange(width, device=device) >= width - lengths[:, None]


class Comparison:
    """Both generators beside people, on passages that neither saw."""

    def __init__(
        self, args: argparse.Namespace, adversarial: Path, parts: dict[str, list[Passage]], result: dict[str, Any]
    ) -> None:
        self._args, self._parts, self.result = args, parts, result
        self._writers = {
            "supervised": Writer(args.supervised, "mle"),
            "adversarial": Writer(adversarial, "gan"),
        }
        first = 100_000 * args.seed + (50_000 if "chosen" in result else 0)
        self._noise = itertools.count(first)
        self._limit = self._writers["supervised"].limit
        player = open_language_model(str(args.out / "model"), World.single("cpu"), shape=CausalConfig())
        self._cut = lambda text: player.decode(player.encode(text)[: self._limit])
        self._device = "cuda" if torch.cuda.is_available() else "cpu"

    def run(self, part: str) -> None:
        """Both generators on a part, at the temperatures that are best on the validation part. What is known is in the
        result after each step, and is not found again."""
        if "chosen" not in self.result:
            self._curves()
            self._choose()
        self._compare(part)

    def _people(self, part: str) -> Texts:
        return [(each.prompt, self._cut(each.human)) for each in self._parts[part]]

    def _texts(self, who: str, part: str, temperature: float, samples: int = 1) -> Texts:
        passages = self._parts[part]
        written = self._writers[who](passages, temperature, next(self._noise), samples)
        prompts = [each.prompt for each in passages for _ in range(samples)]
        return list(zip(prompts, written, strict=True))

    def _judge(self, groups: Sequence[Texts], number: int) -> IndependentJudge:
        judge = IndependentJudge(self._args.out / "model", self._device, self._limit, 10 * self._args.seed + number)
        self.result.setdefault("judge_told", []).append(judge.train(groups))
        return judge

    def _curves(self) -> None:
        """Quality and diversity by temperature, on validation, by a judge of texts of all temperatures."""
        mixed = []
        for who in self._writers:
            mixed.append(self._mixed(who))
            self._say(f"{who}: texts for the judge of the validation part")
        judge = self._judge([self._people("judge"), *mixed], 1)
        points = [(who, temperature) for who in self._writers for temperature in TEMPERATURES]
        groups = [self._texts(who, "validation", temperature) for who, temperature in points]
        people, *scores = judge.scores([self._people("validation"), *groups])
        curves: dict[str, list[dict[str, float]]] = {}
        for (who, temperature), texts, own in zip(points, groups, scores, strict=True):
            rate, low, high = bootstrap(win_shares(own[:, None], people[:, None]))
            found = {"temperature": temperature, "win_rate": rate, "low": low, "high": high}
            curves.setdefault(who, []).append(
                {**found, "score": float(own.mean() - people.mean()), **self._variety(texts)}
            )
        self.result["validation"] = {
            "curves": curves,
            "people": self._variety(self._people("validation")),
            "nats": self._nats("validation"),
        }
        self._say("curves are done")

    def _mixed(self, who: str) -> Texts:
        """A text for each prompt of the judge's part, at all temperatures in turn."""
        passages = self._parts["judge"]
        texts = [("", "")] * len(passages)
        for number, temperature in enumerate(TEMPERATURES):
            some = passages[number :: len(TEMPERATURES)]
            prompts = [each.prompt for each in some]
            written = self._writers[who](some, temperature, next(self._noise))
            texts[number :: len(TEMPERATURES)] = zip(prompts, written, strict=True)
        return texts

    def _variety(self, texts: Texts) -> dict[str, float]:
        found = text_metrics([text for _, text in texts])
        return {name: found[name] for name in ("distinct_2", "self_bleu", "words")}

    def _nats(self, part: str) -> dict[str, float]:
        folder = self._args.out / "model"
        return {who: writer.nats(self._parts[part], folder) for who, writer in self._writers.items()}

    def _choose(self) -> None:
        """The supervised generator's best temperature, and the other's best among those at which its texts vary as
        much (KEPT), or else the one that comes nearest to that."""
        curves = self.result["validation"]["curves"]
        best = max(curves["supervised"], key=lambda point: point["win_rate"])

        def lack(point: dict[str, float]) -> float:
            distinct = best["distinct_2"] * (1 - KEPT["variety"]) - point["distinct_2"]
            return max(0.0, distinct, point["self_bleu"] - best["self_bleu"] * (1 + KEPT["variety"]))

        own = max(curves["adversarial"], key=lambda point: (-lack(point), point["win_rate"]))
        self.result["chosen"] = {"supervised": best["temperature"], "adversarial": own["temperature"]}

    def _compare(self, part: str) -> None:
        """The win rate, by a new judge, which learned texts of both at these temperatures."""
        chosen: dict[str, float] = self.result["chosen"]
        number = {"validation": 2, "test": 3}[part]
        written = [self._texts(who, "judge", temperature) for who, temperature in chosen.items()]
        judge = self._judge([self._people("judge"), *written], number)
        texts = {who: self._texts(who, part, t, SAMPLES) for who, t in chosen.items()}
        texts["control"] = self._texts("supervised", part, chosen["supervised"], SAMPLES)
        people, *found = judge.scores([self._people(part), *texts.values()])
        scores = {who: own.reshape(-1, SAMPLES) for who, own in zip(texts, found, strict=True)}
        wins, control = (win_shares(scores[who], scores["supervised"]) for who in ("adversarial", "control"))
        passages = self._parts[part]
        self.result[part] = self.result.get(part, {}) | {
            "prompts": len(wins),
            "win_rate": bootstrap(wins),
            "control": bootstrap(control),
            "by_prompt": {
                "documents": [each.document for each in passages],
                "win_rate": wins.tolist(),
                "control": control.tolist(),
            },
            "against_people": {who: bootstrap(win_shares(own, people[:, None])) for who, own in scores.items()},
            "variety": {who: self._variety(own[::SAMPLES]) for who, own in texts.items()}
            | {"people": self._variety(self._people(part))},
            "nats": self._nats(part),
        }
        self.result["samples"] = [
            {
                "prompt": each.prompt,
                "people": self._cut(each.human),
                **{who: own[SAMPLES * i][1] for who, own in texts.items()},
            }
            for i, each in enumerate(passages[:6])
        ]
        told = "{part}: win rate {win_rate}, supervised against itself {control}"
        self._say(told.format(part=part, **self.result[part]))

    def _say(self, text: str) -> None:
        self.result["seconds"] = time.time() - self.result["began"]
        write_results(self._args.out / "result.json", self.result)
        print(f"[gan seed {self._args.seed}, {self.result['seconds']:.0f} s] {text}", flush=True)


def main() -> None:
    """One seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passages", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=14)
    parser.add_argument("--size", choices=SIZES, default="full")
    parser.add_argument("--supervised", type=Path, help="a run of another folder, not to be trained here")
    parser.add_argument("--judge", type=Path, help="likewise")
    parser.add_argument("--steps", type=int, help="of the adversarial run")
    parser.add_argument("--until", choices=["judge", "validation", "test"], default="test", help="where to stop")
    parser.add_argument("settings", nargs="*")
    args = parser.parse_args()
    from continuations import CONTINUATIONS

    began, size = time.time(), SIZES[args.size]
    args.out = args.out.resolve()
    without_template(args.model, args.out / "model")
    parts = read_parts(args.passages, CONTINUATIONS, size, args.seed)
    rows = [{name: each.row[name] for name in CONTINUATIONS.columns} for each in parts["train"]]
    write_records(args.out / "train.jsonl", rows)
    result = {"began": began, "seed": args.seed, "tokens": size.tokens, "settings": args.settings}
    result |= {"parts": {name: len(passages) for name, passages in parts.items()}}
    args.supervised = args.supervised or train(args, size, began, "supervised")
    args.judge = args.judge or train(args, size, began, "judge")
    if args.until == "judge":
        return
    adversarial = train(args, size, began, "adversarial")
    result["training"] = metrics(adversarial, "gan", "judge_accuracy")
    if (args.out / "validation.done").exists():
        result = {**json.loads((args.out / "result.json").read_text()), "began": began}
    Comparison(args, adversarial, parts, result).run(args.until)
    (args.out / f"{args.until}.done").touch()


if __name__ == "__main__":
    main()
