"""The pictures of docs/results, by matplotlib."""

from collections.abc import Sequence
from typing import Any

import matplotlib as mpl
from results_json import FOLDER

mpl.use("agg")
from matplotlib import pyplot as plt

mpl.rcParams.update(
    {"font.size": 9, "axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True}
)
OURS, OTHERS = "#1f77b4", "#8c8c8c"
Bar = tuple[str, float, Sequence[float], bool]
"""Name, value, interval, and whether it is samestep's."""


def bars(axis: Any, values: Sequence[Bar], label: str) -> None:
    """Horizontal bars with intervals, the first on top."""
    for place, (_, value, (low, high), ours) in enumerate(values):
        axis.barh(place, value, color=OURS if ours else OTHERS, height=0.65)
        axis.plot([low, high], [place, place], color="black", linewidth=1.2)
        axis.text(max(high, 0) + 0.01 * max(row[1] for row in values), place, f" {value:.3f}", va="center", fontsize=8)
    axis.set_yticks(range(len(values)), [name for name, *_ in values])
    axis.invert_yaxis()
    axis.set_xlabel(label)
    axis.margins(x=0.12)


def save(figure: Any, name: str) -> str:
    """As `name`.png, the same bytes each time; its name."""
    path = FOLDER / f"{name}.png"
    figure.savefig(path, dpi=100, metadata={"Software": None})
    plt.close(figure)
    return path.name


def lens(results: dict[str, Any]) -> str:
    """FVE by stage beside baselines, and the curve of validation."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.2), width_ratios=(1.15, 1))
    stages = (("warm start", "warm_start"), ("encoder alone", "encoder"), ("rewards", "grpo"))
    rows: list[Bar] = [
        (f"lens, {name}", found["fve"], found["fve_interval"], True)
        for name, stage in stages
        for found in [results["test"][stage]["sampled"]]
    ]
    linear, others = results["test"]["grpo"]["linear_lens"], results["baselines"]
    rows += [
        (name, others[key]["fve"], others[key]["fve_interval"], False)
        for name, key in (
            ("last 8 tokens (control)", "context 8"),
            ("last 4 tokens (control)", "context 4"),
            ("last token (control)", "context 1"),
            ("tuned lens", "tuned lens"),
        )
    ]
    rows += [("linear lens", linear["fve"], linear["fve_interval"], False)]
    rows += [("Patchscopes", others["patchscopes"]["fve"], others["patchscopes"]["fve_interval"], False)]
    bars(left, rows, "FVE of the test part, one draw")
    warm, encoder = results["warm_start"], results["encoder"]
    after = warm[-1][0]
    right.plot(*zip(*warm, strict=True), color=OTHERS, label="warm start")
    right.plot([after + step for step, _ in encoder], [fve for _, fve in encoder], color="black", label="encoder alone")
    begun = after + encoder[-1][0]
    for (name, trial), colour in zip(results["grpo"].items(), ("#9ecae1", OURS), strict=False):
        curve = trial["validation"]
        points = [begun + step for step, _ in curve], [fve for _, fve in curve]
        right.plot(*points, color=colour, marker="o", markersize=3, label=f"rewards, {name}")
    right.set_ylim(0.5, 0.9)
    right.set_xlabel("steps, one stage after the other")
    right.set_ylabel("FVE of validation")
    right.legend(frameon=False, loc="lower right")
    return save(figure, "lens")


def distill(results: dict[str, Any]) -> str:
    """nDCG@10 of all, with intervals."""
    figure, axis = plt.subplots(figsize=(7, 2.6))
    rows: list[Bar] = [
        (name, found["test"], found["interval"], name == "samestep") for name, found in results["ndcg@10"].items()
    ]
    bars(axis, rows, "nDCG@10 of the test part")
    axis.axvline(results["ndcg@10"]["teacher"]["test"], color="black", linewidth=0.7, linestyle=":")
    return save(figure, "distill")


def mdlm(results: dict[str, Any]) -> str:
    """Bits per byte of validation against epochs."""
    figure, axis = plt.subplots(figsize=(7, 3.2))
    greys = iter(("#4c4c4c", "#757575", "#9e9e9e", "#c7c7c7"))
    for name, curve in results["runs"].items():
        colour = OURS if name == "diffusion" else next(greys)
        axis.plot([row[1] for row in curve], [row[2] for row in curve], color=colour, label=name)
        best = min(curve, key=lambda row: row[2])
        axis.plot(best[1], best[2], "o", color=colour, markersize=4)
    axis.set_xscale("log")
    axis.set_ylim(1.7, 3.0)
    axis.set_xticks([1, 3, 10, 30, 100, 200], ["1", "3", "10", "30", "100", "200"])
    axis.minorticks_off()
    axis.set_xlabel("epochs")
    axis.set_ylabel("bits per byte of validation")
    axis.legend(frameon=False)
    return save(figure, "mdlm")


def gan(results: dict[str, Any]) -> str:
    """Quality against diversity on validation: a line by temperature for each generator and seed."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    for number, seed in enumerate(results["seeds"]):
        for who, colour in (("supervised", OTHERS), ("adversarial", OURS)):
            points = seed["validation"]["curves"][who]
            across, up = [row["distinct_2"] for row in points], [row["win_rate"] for row in points]
            axis.plot(across, up, color=colour, marker="o", markersize=3, label=None if number else who)
            if number == 0:
                for row in points:
                    at = (row["distinct_2"], row["win_rate"])
                    axis.annotate(f"{row['temperature']:g}", at, (4, -9), textcoords="offset points", fontsize=7)
    people = results["seeds"][0]["validation"]["people"]["distinct_2"]
    axis.axvline(people, color="black", linewidth=0.7, linestyle=":", label="people")
    axis.axhline(0.5, color="black", linewidth=0.7)
    axis.set_xlabel("diversity: distinct-2 of texts of validation")
    axis.set_ylabel("wins against the person's text")
    axis.legend(frameon=False, loc="upper left")
    return save(figure, "gan")
