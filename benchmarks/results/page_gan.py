"""The page of gan, made from docs/results/gan.json."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any

from written_page import about, between, quoted, table, with_interval

GENERATORS = ("supervised", "adversarial")


def gan(results: dict[str, Any]) -> str:
    seeds, pooled = results["seeds"], results["pooled"]
    parts, tests = seeds[0]["parts"], [seed["test"] for seed in seeds]
    return f"""# gan: does a generator that learned against a judge write better than the one it began as?

**Asked:** SmolLM2 learns people's texts (supervised), and goes on against a judge (adversarial). Does a judge that
trained with neither take the adversarial generator's text for the person's more often, each at the temperature that is
best for it, at the same variety?

{_answer(results)}

![Quality against diversity by temperature](gan.png)

{table(("seed", "temperatures", "win rate", "supervised against itself", "steps"), [_row(seed) for seed in seeds])}
All seeds, drawn by document ({pooled["documents"]:,}) instead of by prompt:
{with_interval(pooled["win_rate_by_document"])}, supervised against itself
{with_interval(pooled["control_by_document"])}.

{table(("test part, mean of seeds", *GENERATORS, "people"), _measured(tests))}
**Kept:** {_kept(pooled["kept"])}.

## Which settings
All seeds trained with each, and the validation part chose: the win rate against the supervised generator, of those that
keep variety and likelihood there, if any do. KL, entropy and the judge's accuracy are those of the first seed.

{table(("", "win rate on validation", "kept", "temperatures", "KL", "entropy", "judge's accuracy"), _trials(results))}
**Training** of what was chosen, by seed:

{table(("seed", "steps", "KL", "entropy", "judge's accuracy", "judge saturated"), _training(seeds))}
## Data and measure
Passages of Debian's English manuals; a prompt is the title of a page and the beginning of a passage, up to
{seeds[0]["tokens"]} tokens continue it. {parts["train"]:,} passages for training, {parts["judge"]:,} for the judges
that measure, {parts["validation"]:,} for validation, {parts["test"]:,} for the test, whole pages in one part. The
judge that measures is the first half of SmolLM2's layers and one output; it learns people's texts against an equal mix
of both generators' texts for prompts that neither saw, gives each text one number, and so knows no order of two. For
the curves of validation another one learned texts of all temperatures; for win rates a new one learned those that were
chosen. Each generator writes two texts a prompt, each with noise of its own. Intervals draw prompts again, with the
texts of all seeds. Variety is of one text a prompt. Nats are what a token of people's texts costs.

{about(results)}
{results.get("note", "")}

## Texts that nobody picked
The first prompts of the test part, seed {seeds[0]["seed"]}.

{_samples(seeds[0]["samples"][:3])}"""


def row_of_gan(results: dict[str, Any]) -> tuple[str, ...]:
    """Of the table of docs/results.md."""
    if not results:
        return ("gan", "no result yet", "-", "-", "-")
    won = results["pooled"]["win_rate"]
    reached = "yes" if won[1] > 0.5 and results["pooled"]["kept"]["is_kept"] else "no"
    return ("[gan](results/gan.md)", f"**{with_interval(won)}**", "0.5", reached, f"{results['minutes']:.0f}")


def asked_of_gan(results: dict[str, Any]) -> str:
    if not results:
        return "- **gan**: does adversarial training beat the supervised generator? No result yet."
    return """- **gan** (`benchmarks/results/gan_seeds.py`): does adversarial training beat the supervised generator?
  How often a judge that trained with neither takes the adversarial one's text for the person's rather than the
  supervised one's; 0.5 is no difference."""


def _answer(results: dict[str, Any]) -> str:
    pooled, count = results["pooled"], len(results["seeds"])
    rate, low, high = pooled["win_rate"]
    said = "yes" if low > 0.5 else "no, it is worse" if high < 0.5 else "not measurably"
    whole = f"Of {results['seeds'][0]['test']['prompts']:,} prompts of the test part"
    return f"""**Answer:** {said}. {whole} it wins **{between(rate, (low, high))}** against the supervised generator,
over {count} seed{"s" if count > 1 else ""}; the supervised one against itself, with other noise, has
{with_interval(pooled["control"])}."""


def _row(seed: Mapping[str, Any]) -> tuple[str, ...]:
    chosen, test = seed["chosen"], seed["test"]
    at = ", ".join(f"{chosen[who]:g}" for who in GENERATORS)
    return (
        str(seed["seed"]),
        at,
        with_interval(test["win_rate"]),
        with_interval(test["control"]),
        str(seed["training"][-1]["step"]),
    )


def _measured(tests: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """By generator and for people."""
    won = [f"{fmean(test['against_people'][who][0] for test in tests):.3f}" for who in GENERATORS]
    rows = [("wins against the person's text", *won, "-")]
    for name, key, digits in (("distinct-2", "distinct_2", 3), ("Self-BLEU", "self_bleu", 3), ("words", "words", 1)):
        values = (fmean(test["variety"][who][key] for test in tests) for who in (*GENERATORS, "people"))
        rows.append((name, *(f"{value:.{digits}f}" for value in values)))
    nats = (fmean(test["nats"][who] for test in tests) for who in GENERATORS)
    return [*rows, ("nats a token of people's texts", *(f"{value:.3f}" for value in nats), "-")]


def _kept(kept: Mapping[str, Any]) -> str:
    return (
        f"{'yes' if kept['is_kept'] else 'no'}; distinct-2 {kept['distinct_2'] - 1:+.1%} and Self-BLEU "
        f"{kept['self_bleu'] - 1:+.1%} (wanted: not worse by more than {kept['wanted']['variety']:.0%}), "
        f"people's texts {kept['nats']:+.3f} nats a token (at most {kept['wanted']['nats']})"
    )


def _trials(results: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows = []
    for name, trial in results["trials"].items():
        last = trial["training"][-1]
        shown = f"**{name}**" if name == results["chosen"] else name
        kept = "yes" if trial["kept"]["is_kept"] else "no"
        at = ", ".join(f"{chosen['adversarial']:g}" for chosen in trial["chosen"])
        rows.append((shown, with_interval(trial["win_rate"]), kept, at, *_state(last)))
    return rows


def _training(seeds: Sequence[Mapping[str, Any]]) -> list[tuple[str, ...]]:
    """How it went, from the first logged step to the last one."""
    rows = []
    for seed in seeds:
        first, last = seed["training"][0], seed["training"][-1]
        moved = (f"{old} to {new}" for old, new in zip(_state(first), _state(last), strict=True))
        rows.append((str(seed["seed"]), str(last["step"]), *moved, f"{last['judge_saturated']:.2f}"))
    return rows


def _state(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A generator that was paused has no KL and no entropy."""
    names = (("generator/kl", 3), ("generator/entropy", 2), ("judge_accuracy", 2))
    return tuple(f"{row[name]:.{digits}f}" if name in row else "-" for name, digits in names)


def _samples(samples: Sequence[Mapping[str, str]]) -> str:
    lines = []
    for sample in samples:
        lines.append(f"- {quoted(sample['prompt'])}")
        lines += [f"- {who}: {quoted(sample[who])}" for who in ("people", *GENERATORS)]
    return "\n".join(lines) + "\n"
