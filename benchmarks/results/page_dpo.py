"""The page of dpo, made from docs/results/dpo.json."""

from typing import Any

from page_proteins import proteins
from written_page import about, between, table


def dpo(results: dict[str, Any]) -> str:
    found = results["seeds"][0]
    before, after, pairs = found["before"], found["samestep"], found["pairs"]
    names = (
        ("words a sentence", "words_a_sentence"),
        ("distinct-2", "distinct_2"),
        ("Self-BLEU", "self_bleu"),
        ("nats a token by the model before", "nats_of_its_texts"),
    )
    rows = [("held-out accuracy", "0.5", between(after["accuracy"][0], after["accuracy"][1:]))]
    rows += [(name, *(_cell(model[key]) for model in (before, after))) for name, key in names]
    return f"""# dpo: short sentences, learned from pairs of real text

**Asked:** does SmolLM2-135M-Instruct learn a preference that is stated as a rule, from pairs of real text, and does it
then write so?

**Answer:** yes. Of {pairs["test"]} held-out pairs it prefers the chosen text in
**{between(after["accuracy"][0], after["accuracy"][1:])}**, where always the shorter text would be right in
{found["shorter_is_chosen"]:.3f}; and what it writes for prompts that were not trained on has
**{after["words_a_sentence"][0]:.1f} words a sentence** instead of {before["words_a_sentence"][0]:.1f}. This costs
variety: distinct-2 falls from {before["distinct_2"]:.3f} to {after["distinct_2"]:.3f}.

{table(("", "before", "after"), rows)}
## Data and measure
Pairs from Debian's English manuals, both texts of one page: the one with shorter sentences is chosen
({found["chosen_words_a_sentence"]:.1f} words a sentence against {found["rejected_words_a_sentence"]:.1f}); nobody was
asked, and no model wrote them. {pairs["train"]:,} pairs for training, {pairs["validation"]} for validation,
{pairs["test"]} for the test, by page. Right is a pair whose chosen text gained more on the model before training than
the rejected one. Measured by transformers alone, once. Words a sentence is the score that is independent of training:
it is counted in the texts. {found["steps"]} steps of {found["batch"]} pairs, learning rate {found["rate"]:g},
{found["precision"]}.

{about({**results, "device": found["device"]})}
{proteins(results.get("proteins", {}))}
## What is missing
Texts: one seed is measured on the test part. **TRL with the same data and steps: not measured here**; that samestep's
losses are TRL's step for step, and its speed, is in [RESULTS.md](../../benchmarks/RESULTS.md). Next:
`--trainers samestep trl`, three seeds, and a weaker push (fewer steps, a larger beta) for less loss of variety.

Proteins: whether a sequence that has gained folds, or is more soluble, was not measured: nothing here predicts
structures. The rule native makes the native sequences themselves less likely, as DPO does when it only widens the
margin; `objective.sft_coef` holds against that. More steps were not tried for the rule
surface, which validation (one pair a chain) does not show clearly in all seeds. No side chains and no partners; chains
of one length class, one temperature, one rate and beta.
"""


def _cell(value: Any) -> str:
    return between(value[0], value[1:], 1) if isinstance(value, list) else f"{value:.3f}"
