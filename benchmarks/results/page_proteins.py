"""What the page of dpo says of proteins, made from docs/results/dpo.json."""

from collections.abc import Sequence
from typing import Any

from written_page import about, between, table

COUNTED = (
    ("native recovery of samples", "recovery", 3),
    ("hydrophobic letters on the surface", "surface_share", 3),
    ("hydrophobic letters inside", "hydrophobic_inside", 3),
    ("distance from the native composition", "composition_distance", 3),
    ("nats a residue by the published weights", "cost", 3),
    ("identity of two samples", "identity_of_samples", 3),
    ("score of the native sequence", "native_score", 3),
)
SHOWN = {
    "before": "before",
    "native": "after, rule native",
    "native-sft": "after, native with SFT",
    "surface": "after, rule surface",
    "published": "published program",
    "published, soluble weights": "its soluble weights",
}
TRAINED = {"native": "rule native", "native-sft": "native with SFT", "surface": "rule surface"}


def proteins(results: dict[str, Any]) -> str:
    """A section; nothing where nothing was measured."""
    if not results:
        return "## Proteins\nNo result yet on chains that were not trained on.\n"
    data, test, settings = results["data"], results["test"], results["settings"]
    seeds = len(settings["seeds"])
    chains = data["chains"]
    counted = [row for row in COUNTED if row[1] in test["native"]]
    others = ["native", "native-sft"], ["surface"], ["published", "published, soluble weights"]
    tables = [_counted(test, counted, ["before", *some]) for some in others]
    return f"""## Proteins
**Asked:** does ProteinMPNN (`v_48_020`) learn from pairs for some real chains what holds for others, and
what do recovery and score of its samples become, beside the published program?

{_answer(test)}

{_compared(results)}
{tables[0]}
{tables[1]}
{tables[2]}
Native sequences have {_found(test["native sequences"]["surface_share"])} hydrophobic letters on the surface.

**Rules.** *native*: the sequence of the structure is preferred to each of two that the published weights sample for it
at temperature {settings["pairs_at"]["native"]:g}. *surface*: of two sequences that the published weights sample at
temperature {settings["pairs_at"]["surface"]:g}, the one with the smaller share of ILMFVWY on the surface is preferred
(of four sequences the lowest to the highest, and the two between); a residue is on the surface if at most 16 others
have their C-beta within 10 Å of its own.

**Chains.** {sum(chains.values())} real chains of {settings["shortest"]} to {settings["longest"]} residues from the
source packages {", ".join(data["packages"])}, each alone, without what it was bound to; of chains that are alike
(BLOSUM62 score of the global alignment above 0, or two common runs of five letters) one is kept. {chains["train"]} are
for training, {chains["validation"]} for validation, {chains["test"]} for the test. Pairs:
{_pairs(data, "native")} by the rule native, {_pairs(data, "surface")} by the rule surface (training, validation, test;
validation and the measure use one a chain). The published weights were trained on most of the PDB, so on many of
these chains or their relatives: "not trained on" is meant of the pairs.

**Training.** {seeds} seeds of each, {_measured(test)} measured on the test part; {settings["steps"]} steps of
{settings["batch"]} pairs at learning rate {settings["rate"]:g}, beta 0.1; validation chose the step. *native with SFT*
has the same pairs, `objective.sft_coef={settings["trained"]["native-sft"][1]["objective.sft_coef"]}` and a learning
rate of {settings["trained"]["native-sft"][1]["learning_rate"]:g}, chosen on the validation part (beside 1 at 1e-4, 20
at 3e-5 and 5 at 2e-5) after the rule native alone had been measured on the test part.

**Measure.** Each on the test part once. Pairs and scores by the
published network with the weights that a run left, over {settings["orders"]} decoding order, the same for all
models; a pair is right if the preferred sequence gained more on the weights before training than the other. Samples:
{settings["samples"]} a chain and seed, at temperature {settings["temperature"]:g}, by `samestep sample`; by the
published program itself, in its own process, for its two columns. Score is nats a residue, lower is likelier.
Distance of composition: half of the sum of differences of the 20 shares, by chain. Values are means over seeds,
intervals are over chains, a change, after less before, is paired by chain and seed.

{about(results)}
{results.get("note", "")}
"""


def row_of_proteins(results: dict[str, Any]) -> list[tuple[str, ...]]:
    """A row of the table of all results, where there is one: what the rule is about, and how it was before."""
    if not results:
        return []
    name, test = "surface_share", results["test"]
    found = f"**{_found(test['surface'][name])}**", _found(test["before"][name])
    return [("[proteins](results/dpo.md#proteins)", *found, _reached(test), f"{results['minutes']:.0f}")]


def asked_of_proteins(results: dict[str, Any]) -> str:
    """What that row is about."""
    if not results:
        return "- **dpo, proteins**: does preference training help on chains that no pair was for? No result yet."
    test = results["test"]
    return f"""- **dpo, proteins** (`benchmarks/results/dpo_proteins.py`): does ProteinMPNN learn from pairs for some
  real chains what holds for others? The share of hydrophobic letters on the surface of its samples; the baseline is the
  network before, and the published program has {_found(test["published"]["surface_share"])}, with its soluble weights
  {_found(test["published, soluble weights"]["surface_share"])}. Native recovery, with pairs that prefer the native
  sequence: {_found(test["native"]["recovery"])}, with SFT beside {_found(test["native-sft"]["recovery"])}, before
  {_found(test["before"]["recovery"])}. On two CPU cores."""


def _reached(test: dict[str, Any]) -> str:
    """Each of the two rules: whether its number moved as it should, by the paired interval."""
    is_native = test["native-sft"]["less_before"]["recovery"]["interval"][0] > 0
    is_surface = test["surface"]["less_before"]["surface_share"]["interval"][1] < 0
    words = {True: "yes", False: "no"}
    return f"{words[is_surface]}; recovery: {words[is_native]}"


def _compared(results: dict[str, Any]) -> str:
    """What was trained, side by side."""
    test = results["test"]
    rows = [
        ("held-out pairs right", *(_found(test[name]["accuracy"]) for name in TRAINED)),
        ("by seed", *(_seeds(test[name]["accuracy"]) for name in TRAINED)),
        ("pairs right in validation, by seed", *(_validated(results, name) for name in TRAINED)),
        (
            "the published network's own preference",
            *(_found(test[name]["log_prob_prefers"]) for name in TRAINED),
        ),
    ]
    for what, key in (
        ("recovery", "recovery"),
        ("the surface share", "surface_share"),
        ("composition distance", "composition_distance"),
        ("the native sequence's score", "native_score"),
    ):
        rows.append((f"change of {what}", *(_less(test, name, key) for name in TRAINED)))
    rows.append(("step that validation chose, by seed", *(_steps(results, name) for name in TRAINED)))
    return table(("", *TRAINED.values()), rows)


def _counted(test: dict[str, Any], counted: Sequence[tuple[str, str, int]], models: Sequence[str]) -> str:
    """A table of what was counted for these."""
    rows = [(name, *(_cell(test[model].get(key), digits) for model in models)) for name, key, digits in counted]
    return table(("", *(SHOWN[model] for model in models)), rows)


def _answer(test: dict[str, Any]) -> str:
    """What the figures say, in words that follow from them."""
    parts = []
    for rule, key, what in (
        ("native", "recovery", "Recovery of its samples"),
        ("native-sft", "recovery", "Recovery"),
        ("surface", "surface_share", "The share of hydrophobic letters on the surface of its samples"),
    ):
        accuracy, less = test[rule]["accuracy"], test[rule]["less_before"][key]
        low, high = less["interval"]
        moved = "does not change measurably" if low <= 0 <= high else ("falls" if less["mean"] < 0 else "rises")
        where = (
            "with SFT beside, it has" if rule == "native-sft" else f"of the held-out pairs of the rule *{rule}* it has"
        )
        parts.append(
            f"{where} **{_found(accuracy)}** right. {what} {moved}: "
            f"{_found(test['before'][key])} before, **{_found(test[rule][key])}** after"
        )
    less = test["surface"]["less_before"]["recovery"]
    cost = f"Its recovery changes by {_found(less)}. Seeds that were measured: {_measured(test)}."
    return f"**Answer:** {'. '.join(part[0].upper() + part[1:] for part in parts)}. {cost}"


def _found(value: dict[str, Any], digits: int = 3) -> str:
    return between(value["mean"], value["interval"], digits)


def _cell(value: dict[str, Any] | None, digits: int) -> str:
    return "-" if value is None else _found(value, digits)


def _less(test: dict[str, Any], trained: str, name: str) -> str:
    return _found(test[trained]["less_before"][name])


def _seeds(value: dict[str, Any]) -> str:
    return ", ".join(f"{seed:.3f}" for seed in value["seeds"])


def _validated(results: dict[str, Any], rule: str) -> str:
    """The accuracy at the step that was chosen."""
    runs = [run for name, run in results["runs"].items() if name.rpartition(" ")[0] == rule]
    return ", ".join(f"{right:.3f}" for run in runs for step, _, right in run["validation"] if step == run["best_step"])


def _measured(test: dict[str, Any]) -> int:
    """Of how many seeds there are figures of the test part."""
    return len(test["native"]["recovery"]["seeds"])


def _steps(results: dict[str, Any], rule: str) -> str:
    return ", ".join(str(run["best_step"]) for name, run in results["runs"].items() if name.rpartition(" ")[0] == rule)


def _pairs(data: dict[str, Any], rule: str) -> str:
    return ", ".join(str(count) for count in data["pairs"][rule].values())
