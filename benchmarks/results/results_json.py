"""What runs wrote, as the small JSON files of docs/results: without machine paths, and without what no page shows.

    python benchmarks/results/results_json.py --lens OUT/lens.json --distill OUT/distill.json --mdlm OUT/mdlm.json \\
        --gan OUT/result.json --dpo OUT_0/result.json OUT_1/result.json --proteins OUT/result.json
"""

import argparse
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from independent_judge import bootstrap

FOLDER = Path(__file__).resolve().parents[2] / "docs" / "results"
BY_HAND = ("minutes", "by_log", "note")
"""What a page says and the script had not written."""
TRAINING = ("step", "judge_accuracy", "judge_saturated", "generator/kl", "generator/entropy")
"""Of gan's training."""
TRAINERS = ("samestep", "trl")
"""Of dpo."""
ABOUT = ("date", "device", "torch", "command")
DIGITS = 5
"""Significant digits that are kept."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("lens", "distill", "mdlm"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--gan", type=Path)
    parser.add_argument("--dpo", type=Path, nargs="*", default=[], help="the results of each seed")
    parser.add_argument("--proteins", type=Path, help="the part of dpo's page that is about proteins")
    options = parser.parse_args()
    for name in ("lens", "distill", "mdlm"):
        if path := getattr(options, name):
            write(name, json.loads(path.read_text()))
    if options.gan:
        write("gan", of_gan(json.loads(options.gan.read_text())))
    if options.dpo:
        write("dpo", read("dpo") | of_dpo([json.loads(path.read_text()) for path in options.dpo]))
    if options.proteins:
        write("dpo", read("dpo") | {"proteins": json.loads(options.proteins.read_text())})


def read(name: str) -> dict[str, Any]:
    """The results of a recipe, or nothing."""
    path = FOLDER / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else {}


def write(name: str, results: dict[str, Any]) -> None:
    """What a page is made of; what was added by hand stays."""
    kept = {key: value for key, value in read(name).items() if key in BY_HAND}
    FOLDER.mkdir(parents=True, exist_ok=True)
    text = json.dumps({**_shown(results), **kept}, indent=1, ensure_ascii=False)
    numbers = re.sub(r"\[\s+([^\[\]{}\"]*?)\s+\]", lambda found: f"[{' '.join(found[1].split())}]", text)
    (FOLDER / f"{name}.json").write_text(numbers + "\n")


def _shown(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown(item) for item in value]
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    return re.sub(r"(?<!\S)/\S+/", "", value) if isinstance(value, str) and value.startswith("python ") else value


def of_gan(result: dict[str, Any]) -> dict[str, Any]:
    """Without what no page shows: of training the first and the last row stay."""
    for seed in result["seeds"]:
        for name in (*ABOUT, "began"):
            del seed[name]
        for part in ("validation", "test"):
            del seed[part]["by_prompt"]
    for trained in (*result["seeds"], *result["trials"].values()):
        rows = trained["training"]
        trained["training"] = [{name: row[name] for name in TRAINING if name in row} for row in (rows[0], rows[-1])]
    return result


def of_dpo(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The seeds without what no page shows, and what holds of all of them: pairs and prompts are drawn again."""
    pooled: dict[str, Any] = {}
    for who in ("before", *TRAINERS):
        if all(who in result for result in results):
            pooled[who] = {
                name: bootstrap(np.array([result[who]["by_row"][name] for result in results]))
                for name in ("accuracy", "words_a_sentence")
            }
    if pooled.keys() >= set(TRAINERS):
        own, other = (np.array([result[trainer]["by_row"]["accuracy"] for result in results]) for trainer in TRAINERS)
        pooled["accuracy_less_trl"] = bootstrap(own - other)
        losses = (np.array([result[trainer]["losses"] for result in results]) for trainer in TRAINERS)
        pooled["loss_apart"] = float(np.abs(np.subtract(*losses)).max())
    for result in results:
        for value in result.values():
            if isinstance(value, dict):
                value.pop("losses", None), value.pop("by_row", None)
    about, *_ = [{name: result.pop(name) for name in ABOUT} for result in results]
    minutes = max(result.pop("minutes") for result in results)  # they run at the same time
    return {**about, "minutes": minutes, "seeds": list(results), "pooled": pooled}


if __name__ == "__main__":
    main()
