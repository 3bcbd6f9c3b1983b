"""A trained student used elsewhere: exported, evaluated, asked."""

import ast
import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml
from distill_runs import train, validations_of, write_records
from safetensors.torch import load_file

from encoder_onnx import needs_onnx, onnx_vectors
from samestep import UserError, World, load
from samestep.cli.main import main
from samestep.recipes.distill.data import Text, load_data
from samestep.recipes.distill.models import STUDENT, open_models
from samestep.recipes.distill.sampling import embed_texts
from samestep.train.trained.trained_model import open_trained

TEXTS = ["what is 7", "it is spelled seven", "it is spelled one two, of course"]
ELSEWHERE = """
import sys
from safetensors.torch import save_file
from sentence_transformers import SentenceTransformer
folder, file, *texts = sys.argv[1:]
model = SentenceTransformer(folder, device="cpu")
query = model.encode(texts, prompt_name="query", convert_to_tensor=True)
save_file({"queries": query, "passages": model.encode(texts, convert_to_tensor=True)}, file)
assert not any(name.startswith("samestep") for name in sys.modules)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A student with a projection, an instruction and Matryoshka dimensions, also written when its last stage ends."""
    folder = tmp_path_factory.mktemp("distill")
    settings = [
        f"train_data={write_records(folder / 'records.jsonl', 20)}",
        "data.limit=null",
        "data.validation_fraction=0.2",
        "student.query_instruction=question: ",
        "matryoshka_dims=[12]",
        "save_to_artifacts=true",
        f"artifacts_dir={folder / 'artifacts'}",
        "best_at_end=true",
    ]
    return train(folder, "verify", *settings)


def vectors(run: Path, is_query: bool) -> torch.Tensor:
    trained, world = open_trained(str(run)), World.single()
    reading = open_models(trained.config, load_data(trained.config), world).readings[STUDENT]
    return embed_texts(trained.network(), reading, [Text(text, is_query) for text in TEXTS], world, batch_size=2)


@pytest.mark.long
@pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs sentence-transformers")
def test_another_process_without_samestep_gets_the_same_vectors(run: Path, tmp_path: Path) -> None:
    folder, file = run.parent / "artifacts" / "run", tmp_path / "found.safetensors"
    env = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", ELSEWHERE, str(folder), str(file), *TEXTS]
    subprocess.run(command, check=True, cwd=tmp_path, env={**env, "HF_HUB_OFFLINE": "1"}, timeout=110)
    found = load_file(file)
    torch.testing.assert_close(found["queries"], vectors(run, is_query=True), rtol=0, atol=1e-5)
    torch.testing.assert_close(found["passages"], vectors(run, is_query=False), rtol=0, atol=1e-5)


def test_export_writes_what_the_last_stage_wrote(run: Path, tmp_path: Path) -> None:
    assert main(["export", str(run), str(tmp_path / "student")]) == 0
    first, second = run.parent / "artifacts" / "run", tmp_path / "student"
    for name in ("model.safetensors", "3_Dense/model.safetensors"):
        torch.testing.assert_close(load_file(first / name), load_file(second / name), rtol=0, atol=0)
    card = (second / "README.md").read_text()
    assert "question: " in card and "records.jsonl" in card and "0.8 info_nce + 0.2 mse" in card
    header, code = yaml.safe_load(card.split("---")[1]), card.partition("```python\n")[2].partition("```")[0]
    assert header["library_name"] == "sentence-transformers" and not header.keys() & {"base_model", "datasets"}
    assert "truncate_dim=12" in code and ast.parse(code)
    assert "- Trained to be cut to: 12" in card and "It began as random weights" in card
    found = max(row["val/ndcg@10"] for row in validations_of(run, "rank"))
    assert f"{found:.4f}" in card and f"{found:.4f}" in (first / "README.md").read_text()
    assert main(["export", str(run), str(second)]) == 2, "it exists"
    assert main(["export", str(run), str(second), "--overwrite", "--dtype", "bf16"]) == 0
    (second / "samestep.json").unlink()
    assert main(["export", str(run), str(second), "--overwrite"]) == 2, "anybody could have made it"


def test_evaluation_beside_teacher_untrained_student_and_bm25(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "found.json"
    assert main(["evaluate", str(run), "--which", "best", "--out", str(file)]) == 0
    found = json.loads(file.read_text())
    assert list(found["models"]) == ["student", "teacher", "untrained", "bm25"]
    assert list(found["models"]["student"]) == list(found["models"]["teacher"]) == ["24", "12"]
    student, teacher = (found["models"][name]["24"] for name in ("student", "teacher"))
    best = max(validations_of(run, "rank"), key=lambda row: row["val/ndcg@10"])
    for name in ("ndcg@10", "mrr@10", "recall@1", "recall@10", "recall@100", "cosine"):
        assert student[name] == pytest.approx(best[f"val/{name}"], abs=1e-5), name
    assert found["models"]["student"]["12"]["ndcg@10"] == pytest.approx(best["val/ndcg@10/12"], abs=1e-5)
    assert student["retained"] == pytest.approx(student["ndcg@10"] / teacher["ndcg@10"])
    shown = capfd.readouterr().out
    assert "untrained" in shown and "bm25" in shown and f"{100 * student['retained']:.1f}%" in shown


def test_other_data_than_that_of_the_run_is_refused(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Other queries would be held out, and a built-in student would have other tokens."""
    file = run.parent / "records.jsonl"
    before = file.read_text()
    file.write_text(before + '\n{"query": "what is new", "positive": "this is"}\n')
    try:
        for verb in (["evaluate", str(run)], ["sample", str(run), "--prompt", "x"], ["export", str(run), "anywhere"]):
            assert main(verb) == 2, verb
            assert "Bring back the data" in " ".join(capfd.readouterr().err.split())
    finally:
        file.write_text(before)


def test_evaluation_on_a_folder_of_beir(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The teacher reads these texts itself: they are not in the cache."""
    (tmp_path / "qrels").mkdir()
    corpus = [{"_id": f"p{number}", "title": "", "text": text} for number, text in enumerate(TEXTS[1:])]
    (tmp_path / "corpus.jsonl").write_text("\n".join(map(json.dumps, corpus)))
    (tmp_path / "queries.jsonl").write_text(json.dumps({"_id": "q", "text": TEXTS[0]}))
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq\tp0\t1\n")
    assert main(["evaluate", str(run), "--beir", str(tmp_path), "--out", str(tmp_path / "found.json")]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    assert (found["queries"], found["passages"]) == (1, 2)
    assert found["models"]["bm25"][""]["recall@10"] in (0.0, 1.0) and found["models"]["teacher"]["24"]
    capfd.readouterr()


def test_a_query_finds_passages(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "passages.txt").write_text("\n".join(TEXTS[1:]))
    asked = ["--prompt", TEXTS[0], "--passages", str(tmp_path / "passages.txt"), "--out", str(tmp_path / "found.jsonl")]
    assert main(["sample", str(run), *asked]) == 0
    lines = capfd.readouterr().out.splitlines()
    records = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    scores = [record["score"] for record in records]
    assert len(scores) == 2 and scores == sorted(scores, reverse=True)
    assert any(TEXTS[1] in line for line in lines)
    (tmp_path / "queries.txt").write_text(f"{TEXTS[0]}\n{TEXTS[1]}\n")
    asked = ["--prompts", str(tmp_path / "queries.txt"), *asked[2:], "--samples", "1"]
    assert main(["sample", str(run), *asked]) == 0
    several = [json.loads(line) for line in (tmp_path / "found.jsonl").read_text().splitlines()]
    assert [record["prompt"] for record in several] == [TEXTS[0], TEXTS[1]]
    assert several[0]["passage"] == records[0]["passage"] and several[0]["score"] == pytest.approx(scores[0])
    capfd.readouterr()
    assert main(["sample", str(run)]) == 2
    assert "Give a text with --prompt, or a file" in capfd.readouterr().err


def test_vectors_and_passages_in_python(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    model = load(run)
    found = model.embed(TEXTS, is_query=True)
    torch.testing.assert_close(found, vectors(run, is_query=True), rtol=0, atol=1e-6)
    torch.testing.assert_close(model.embed(TEXTS[1]), vectors(run, is_query=False)[1:2], rtol=0, atol=1e-6)
    torch.testing.assert_close(model.embed(TEXTS, is_query=True, dim=12), found[:, :12], rtol=0, atol=0)
    records = model.search(TEXTS[0], TEXTS[1:], samples=1)
    closest = int((model.embed(TEXTS[1:]) @ found[0]).argmax())
    assert [record["passage"] for record in records] == [closest]
    assert len(model.search(TEXTS[:2], samples=2)) == 4, "among the passages that were kept for validation"
    for refused, options in (([], {}), (TEXTS, {"dim": 25}), (TEXTS, {"batch_size": 0})):
        with pytest.raises(UserError, match=r"Give a text|from 1 to 24|batch_size to 1"):
            model.embed(refused, **options)
    with pytest.raises(UserError, match="dim from 1 to 24"):
        model.search(TEXTS[0], TEXTS[1:], dim=25)


def test_an_exported_folder_in_python(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Without the run, its data and its teacher, and wherever the folder was moved."""
    assert main(["export", str(run), str(tmp_path / "student")]) == 0
    folder = (tmp_path / "student").rename(tmp_path / "moved")
    model, known = load(folder), load(run, "last")
    for is_query in (True, False):
        found, wanted = (each.embed(TEXTS, is_query=is_query) for each in (model, known))
        torch.testing.assert_close(found, wanted, rtol=0, atol=1e-6)
    torch.testing.assert_close(model.embed(TEXTS, dim=12), found[:, :12], rtol=0, atol=0)
    assert model.search(TEXTS[0], TEXTS[1:]) == known.search(TEXTS[0], TEXTS[1:])
    assert type(model.network) is type(known.network)
    assert str(tmp_path) not in (folder / "samestep.json").read_text()
    with pytest.raises(UserError, match="Give the passages to choose from"):
        model.search(TEXTS[0])
    capfd.readouterr()
    for verb, sentence in (
        (["evaluate", str(folder)], "Evaluate the run that"),
        (["export", str(folder), str(tmp_path / "again")], "has that form already"),
    ):
        assert main(verb) == 2
        assert sentence in capfd.readouterr().err


@needs_onnx
def test_an_export_with_onnx(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "student"
    assert main(["export", str(run), str(folder), "--onnx", "--license", "apache-2.0"]) == 0
    assert "onnxruntime.InferenceSession(" in capfd.readouterr().out
    assert "license: apache-2.0" in (folder / "README.md").read_text()
    model = load(run, "last")
    found = onnx_vectors(folder, TEXTS, 24, batch_size=2)
    torch.testing.assert_close(found, model.embed(TEXTS), rtol=0, atol=1e-5)


def test_onnx_where_it_cannot_be_is_refused(run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    for target, *more in (["a.safetensors"], ["files", "--weights"], ["folder", "--dtype", "bf16"]):
        assert main(["export", str(run), str(tmp_path / target), "--onnx", *more]) == 2
        assert "eave out --" in capfd.readouterr().err and not list(tmp_path.iterdir())
