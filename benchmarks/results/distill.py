"""A real teacher into a student of a third of its layers, on retrieval over passages that nothing was trained on.

    python benchmarks/results/distill.py --docs english_docs.jsonl.xz --teacher MINILM --out OUT      # a GPU
    python benchmarks/results/distill.py --docs english_docs.jsonl.xz --teacher MINILM --out OUT --size small
    ... --smoke                                                                     # a few steps of everything

Headings of manuals are queries, what stands under them are passages. Documents are split: those of the test are in no
training text. The student is the teacher with two of its six layers, and learns the teacher's vectors of all training
texts, then which passage answers which query: `samestep train distill`. Beside it sentence-transformers (`old_fit`, its
trainer without the package datasets; its MSELoss and MultipleNegativesRankingLoss) with the same student, texts, batch
and number of steps, at several learning rates, of which validation chooses. The test part is measured once, by one
function for all, and intervals are over its queries.
"""

import argparse
import hashlib
import json
import random
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parent))
from runs import finish, interval, metrics, ratio_interval, read_documents, say, start, write_records, write_results

LAYERS = (1, 4)
"""Of the teacher's six, which the student begins with."""
LONGEST, SHORTEST = 1000, 40
"""Characters of a passage."""
SIZES: dict[str, dict[str, Any]] = {
    "gpu": {"documents": None, "test": 2000, "validation": 400, "batch": 256, "epochs": (4, 2), "rates": (5e-4, 1e-4)},
    "small": {"documents": 500, "test": 200, "validation": 60, "batch": 64, "epochs": (2, 1), "rates": (5e-4, 1e-4)},
}
TRIALS = {"same rates": (1.0, 1.0), "its default rate": (2e-5, 2e-5)}
"""Learning rates of sentence-transformers in both phases: as samestep's, and its default."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--docs", type=Path, required=True)
    parser.add_argument("--teacher", type=Path, required=True, help="a folder of sentence-transformers")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--size", choices=SIZES, default="gpu")
    parser.add_argument("--minutes", type=float, default=12.0, help="for samestep's training, at most")
    parser.add_argument("--trials", nargs="*", default=list(TRIALS), choices=TRIALS)
    parser.add_argument("--smoke", action="store_true", help="a few steps of everything")
    options = parser.parse_args()
    size = {**SIZES[options.size]}
    if options.smoke:
        size |= {"documents": 120, "test": 50, "validation": 20, "batch": 64, "epochs": (1, 1)}
    data = Data(options.docs, options.out, size)
    student = make_student(options.teacher, options.out / "student")
    results: dict[str, Any] = {"size": options.size, "data": data.counts, "layers": LAYERS, "runs": {}}
    folders = {"teacher": options.teacher, "untrained": student}
    with ThreadPoolExecutor() as pool:  # at the same time, so that each has a part of the device
        ours = pool.submit(by_samestep, data, student, options, size, results["runs"])
        library = by_library(data, student, options, size, results["runs"])
        folders["samestep"] = ours.result()
    folders |= library
    write_results(options.out / "distill.json", results)
    measure(folders, data, results)
    write_results(options.out / "distill.json", results)


class Data:
    """Records, single texts and retrieval sets, as files."""

    def __init__(self, docs: Path, out: Path, size: dict[str, Any]) -> None:
        self.out, parts = out, {"train": [], "validation": [], "test": []}
        documents = read_documents(docs)
        documents.sort(key=lambda record: hashlib.sha256(record["text"].encode()).digest())
        for record in documents[: size["documents"]]:
            parts[record["part"]].append(sections(record["text"]))
        train = _distinct([pair for found in parts["train"] for pair in found])
        known = {query for query, _ in train}
        self.records = [{"query": query, "positive": passage} for query, passage in train]
        texts = {paragraph for found in parts["train"] for _, passage in found for paragraph in passage.split("\n\n")}
        self.texts = sorted(text[:LONGEST] for text in texts if len(text) >= SHORTEST)
        random.Random(0).shuffle(self.records)
        random.Random(0).shuffle(self.texts)
        self.counts: dict[str, Any] = {"records": len(self.records), "texts": len(self.texts)}
        write_records(out / "train.jsonl", self.records)
        write_records(out / "texts.jsonl", [{"text": text} for text in self.all_texts])
        for part in ("validation", "test"):
            pairs = _distinct([pair for found in parts[part] for pair in found])
            queries = [pair for pair in pairs if pair[0] not in known]
            random.Random(0).shuffle(queries)
            queries = queries[: size[part]]
            if part == "validation":  # it is embedded again and again
                others = [pair for pair in pairs if pair not in set(queries)]
                pairs = [*queries, *others[: 8 * len(queries)]]
            self._write_set(out / part, queries, pairs)
            self.counts[part] = {"queries": len(queries), "passages": len({passage for _, passage in pairs})}
        say(json.dumps(self.counts))

    @property
    def all_texts(self) -> list[str]:
        """What phase 1 learns: queries, passages, and their paragraphs."""
        pairs = [text for record in self.records for text in (record["query"], record["positive"])]
        return list(dict.fromkeys([*pairs, *self.texts]))

    def _write_set(self, folder: Path, queries: Sequence[tuple[str, str]], pairs: Sequence[tuple[str, str]]) -> None:
        passages = list(dict.fromkeys(flat(passage) for _, passage in pairs))
        numbers = {passage: number for number, passage in enumerate(passages)}
        write_records(folder / "corpus.jsonl", [{"_id": f"p{n}", "text": text} for n, text in enumerate(passages)])
        write_records(
            folder / "queries.jsonl", [{"_id": f"q{n}", "text": query} for n, (query, _) in enumerate(queries)]
        )
        lines = [f"q{n}\tp{numbers[flat(passage)]}\t1\n" for n, (_, passage) in enumerate(queries)]
        (folder / "qrels").mkdir(exist_ok=True)
        (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(lines))


def sections(text: str) -> list[tuple[str, str]]:
    """Queries and passages of a document: each heading, after that of the page, and the paragraphs under it."""
    found: list[tuple[str, list[str]]] = []
    for block in text.split("\n\n"):
        if block.startswith("## "):
            found.append((block[3:], []))
        elif found:
            found[-1][1].append(block)
    title = found[0][0] if found else ""
    pairs = []
    for heading, paragraphs in found:
        passage = "\n\n".join(paragraphs)[:LONGEST]
        if len(passage) >= SHORTEST:
            pairs.append((heading if heading == title else f"{title}: {heading}", passage))
    return pairs


def _distinct(pairs: Sequence[tuple[str, str]]) -> list[tuple[str, str]]:
    """Each query once, as the passage of its first section, on one line."""
    found: dict[str, str] = {}
    for query, passage in pairs:
        found.setdefault(query, flat(passage))
    return list(found.items())


def flat(text: str) -> str:
    return " ".join(text.split())


def make_student(teacher: Path, folder: Path) -> Path:
    """The teacher with some of its layers."""
    from sentence_transformers import SentenceTransformer

    model = SentenceTransformer(str(teacher), device="cpu").float()
    inner = model[0].auto_model
    inner.encoder.layer = torch.nn.ModuleList([inner.encoder.layer[number] for number in LAYERS])
    inner.config.num_hidden_layers = len(LAYERS)
    model.max_seq_length = 128
    model.save(str(folder))
    say(f"student: {sum(p.numel() for p in model.parameters()):,} parameters")
    return folder


def by_samestep(
    data: Data, student: Path, options: argparse.Namespace, size: dict[str, Any], found: dict[str, Any]
) -> Path:
    """Both phases by the recipe; the exported student."""
    out, log = options.out, options.out / "samestep.log"
    given = {
        "teacher_model": options.teacher.resolve(),
        "student_model": student,
        "data.train": out / "train.jsonl",
        "data.phase1": out / "texts.jsonl",
        "data.validation": out / "validation",
        "teacher.batch_size": 512,
        "max_samples_phase1": 10**7,
        "global_batch_size": size["batch"],
        "batch_size": size["batch"],
        "phase1_epochs": size["epochs"][0],
        "phase2_epochs": size["epochs"][1],
        "phase1_lr": size["rates"][0],
        "phase2_lr": size["rates"][1],
        "max_time": f"{int(60 * options.minutes)}s",
        "out": out / "runs",
        "name": "distill",
    }
    if torch.cuda.is_available():
        given |= {"distributed.mixed_precision": "bf16", "compile": "false"}
    settings = [f"{name}={value}" for name, value in given.items()]
    began = time.monotonic()
    code = finish(start(["train", "distill", "--preset", "contrastive", "--nproc", 1, *settings], log), log)
    run, exported = out / "runs" / "distill", out / "by_samestep"
    curve = {
        stage: [(row["step"], row["val/ndcg@10"]) for row in metrics(run, stage, "val/ndcg@10")]
        for stage in ("align", "rank")
    }
    found["samestep"] = {"seconds": time.monotonic() - began, "code": code, "validation": curve}
    say(f"samestep: {found['samestep']}")
    if finish(start(["export", run, exported, "--which", "best"], log), log):
        sys.exit(1)
    return exported


def by_library(
    data: Data, student: Path, options: argparse.Namespace, size: dict[str, Any], found: dict[str, Any]
) -> dict[str, Path]:
    """Both phases by sentence-transformers, at each learning rate; the students."""
    from sentence_transformers import InputExample, SentenceTransformer, losses
    from torch.utils.data import DataLoader

    device, folders = "cuda" if torch.cuda.is_available() else "cpu", {}
    teacher = SentenceTransformer(str(options.teacher), device=device)
    teacher.max_seq_length = 128
    texts = data.all_texts
    vectors = teacher.encode(texts, batch_size=512, show_progress_bar=False, normalize_embeddings=True)
    single = [InputExample(texts=[text], label=vector) for text, vector in zip(texts, vectors, strict=True)]
    pairs = [InputExample(texts=[record["query"], record["positive"]]) for record in data.records]
    for name in options.trials:
        began, rates = time.monotonic(), TRIALS[name]
        rates = size["rates"] if name == "same rates" else rates
        model = SentenceTransformer(str(student), device=device)
        plans = ((single, losses.MSELoss), (pairs, losses.MultipleNegativesRankingLoss))
        scores = {}
        for phase, (examples, loss) in enumerate(plans):
            loader = DataLoader(examples, size["batch"], shuffle=True, drop_last=len(examples) > size["batch"])
            steps, folder = (
                len(loader) * size["epochs"][phase],
                options.out / f"library_{name}_{phase}".replace(" ", "_"),
            )
            model.old_fit(
                [(loader, loss(model))],
                evaluator=_evaluator(options.out / "validation"),
                epochs=size["epochs"][phase],
                warmup_steps=steps // 10,
                optimizer_params={"lr": rates[phase]},
                evaluation_steps=max(1, steps // 10),
                output_path=str(folder),
                use_amp=device == "cuda",
                show_progress_bar=False,
            )
            scores[phase] = float(model.best_score)
            model = SentenceTransformer(str(folder), device=device)  # its best
            folders[f"sentence-transformers, {name}, phase {phase + 1}"] = folder
        found[f"sentence-transformers, {name}"] = {"seconds": time.monotonic() - began, "validation": scores}
        say(f"sentence-transformers, {name}: {found[f'sentence-transformers, {name}']}")
    return folders


def read_set(folder: Path) -> tuple[list[str], list[str], list[int]]:
    """Queries, passages, and the number of the passage that answers each query."""
    queries, passages = (
        [json.loads(line)["text"] for line in (folder / name).open()] for name in ("queries.jsonl", "corpus.jsonl")
    )
    lines = (folder / "qrels" / "test.tsv").read_text().splitlines()[1:]
    return queries, passages, [int(line.split("\t")[1][1:]) for line in lines]


def _evaluator(folder: Path) -> Any:
    from sentence_transformers.evaluation import InformationRetrievalEvaluator

    class MainMetric(InformationRetrievalEvaluator):  # type: ignore[misc]
        """One number, which `old_fit` keeps the best weights by."""

        def __call__(self, *args: Any, **options: Any) -> float:
            found = super().__call__(*args, **options)
            return float(found[self.primary_metric])

    queries, passages, answers = read_set(folder)
    return MainMetric(
        {str(n): query for n, query in enumerate(queries)},
        {f"p{n}": passage for n, passage in enumerate(passages)},
        {str(n): {f"p{answer}"} for n, answer in enumerate(answers)},
        main_score_function="cosine",
        show_progress_bar=False,
        write_csv=False,
    )


def ndcg(model: Any, found: tuple[list[str], list[str], list[int]]) -> np.ndarray:
    """nDCG@10 of each query, which has one passage that answers it."""
    queries, passages, answers = found
    model.max_seq_length = 128
    options = {"batch_size": 512, "show_progress_bar": False, "convert_to_tensor": True, "normalize_embeddings": True}
    scores = model.encode(queries, **options).float() @ model.encode(passages, **options).float().T
    answer = torch.tensor(answers, device=scores.device)
    own = scores.gather(1, answer[:, None])
    place = (scores > own).sum(1).double().cpu().numpy()
    return np.where(place < 10, 1 / np.log2(place + 2), 0.0)


def measure(folders: dict[str, Path], data: Data, results: dict[str, Any]) -> None:
    """All of them on the test part; of sentence-transformers those that validation chose are marked."""
    from sentence_transformers import SentenceTransformer

    device = "cuda" if torch.cuda.is_available() else "cpu"
    sets = {part: read_set(data.out / part) for part in ("validation", "test")}
    values: dict[str, dict[str, np.ndarray]] = {}
    for name, folder in folders.items():
        model = SentenceTransformer(str(folder), device=device).float()
        values[name] = {part: ndcg(model, found) for part, found in sets.items()}
    teacher = values["teacher"]["test"]
    library = [name for name in values if name.startswith("sentence-transformers")]
    results["chosen"] = max(library, key=lambda name: values[name]["validation"].mean()) if library else None
    results["ndcg@10"] = {}
    for name, found in values.items():
        own, low_high = found["test"], interval(found["test"])
        shares = ratio_interval(own, teacher)
        results["ndcg@10"][name] = {
            "validation": float(found["validation"].mean()),
            "test": float(own.mean()),
            "interval": low_high,
            "of_teacher": float(own.mean() / teacher.mean()),
            "of_teacher_interval": shares,
        }
        say(f"{name}: {own.mean():.4f}, {own.mean() / teacher.mean():.1%} ({shares[0]:.1%} to {shares[1]:.1%}) of it")
    if results["chosen"]:
        apart = values["samestep"]["test"] - values[results["chosen"]]["test"]
        results["samestep_less_library"] = {"mean": float(apart.mean()), "interval": interval(apart)}
        say(f"samestep less {results['chosen']}: {results['samestep_less_library']}")


if __name__ == "__main__":
    main()
