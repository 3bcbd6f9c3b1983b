"""What stands before queries and passages: shown, found or asked for, and the same in what is exported."""

import json
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from distill_runs import train, write_records

from encoder_toys import SentenceTransformers, backbone_folder
from samestep import load
from samestep.cli.main import main
from samestep.core.json_files import read_json
from samestep.models.sentence_export import write_encoder
from samestep.models.sentence_folder import open_encoder
from samestep.recipes.distill.objective import score_divergence, scores

PROMPTS = {"web_search_query": "find: ", "passage": "text: ", "clustering": "group: "}
TEXTS = ["what is 7", "it is spelled seven", "it is spelled one two, of course"]
needs_library = pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="needs sentence-transformers")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a teacher, and a student whose vectors are not of length 1, both with prompts."""
    folder = tmp_path_factory.mktemp("prompts")
    for name in ("teacher", "student"):
        source = open_encoder(backbone_folder("bert", folder / f"{name}-plain"))
        write_encoder(folder / name, source, source.load().state_dict(), "", prompts=PROMPTS)
    write_records(folder / "records.jsonl", 20)
    return folder


def settings(models: Path) -> list[str]:
    data = [f"train_data={models / 'records.jsonl'}", "data.limit=null", "data.validation_fraction=0.2", "max_steps=2"]
    return [*data, f"teacher_model={models / 'teacher'}", f"student_model={models / 'student'}"]


@pytest.fixture(scope="module")
def run(models: Path) -> Path:
    return train(models, "verify", *settings(models), "use_projection=false", "student.passage_instruction=the ")


@pytest.fixture(scope="module")
def library() -> Iterator[SentenceTransformers]:
    process = SentenceTransformers()
    yield process
    process.close()


def said(capfd: pytest.CaptureFixture[str]) -> str:
    found = capfd.readouterr()
    return " ".join(f"{found.out} {found.err}".split())


def test_the_banner_says_how_both_models_read(models: Path, capfd: pytest.CaptureFixture[str]) -> None:
    more = [
        "log.quiet=false",
        "teacher.query_instruction=",
        "teacher.passage_prompt_name=clustering",
        "skip_phase2=true",
    ]
    train(models, "verify", *settings(models), *more, name="shown")
    shown = said(capfd)
    assert shown.count("teacher reads queries as they are, passages after 'group: ', up to 24 tokens") == 2
    assert shown.count("student reads queries after 'find: ', passages after 'text: ', up to 24 tokens") == 2


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["query_prompt_name=sts_query"], "which are 'web_search_query', 'passage', 'clustering'; 'sts_query' is not"),
        (
            ["query_prompt_name=a", "query_instruction=b"],
            "Set query_instruction, which is a text, or query_prompt_name",
        ),
        (["max_length=4"], "max_length above 4, the special tokens of every text and what stands before it; it is 4"),
        (["max_length=2"], "max_length above 4"),
        (["attention=causal"], "attention: it is for llama, mistral, qwen2, qwen3, and"),
    ],
)
@pytest.mark.parametrize("who", ["teacher", "student"])
def test_what_cannot_be_read_so_is_refused_before_anything_is_computed(
    who: str, more: list[str], sentence: str, models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    named = [f"{who}.{setting}" for setting in more]
    assert main(["train", "distill", "--preset", "verify", f"out={tmp_path}", *settings(models), *named]) == 2
    assert sentence in said(capfd)
    assert not list(tmp_path.rglob("vectors*")), "the first stage has not begun"


def test_prompts_that_may_be_meant_are_asked_for(
    models: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source = open_encoder(models / "teacher")
    both = {"web_search_query": "find: ", "sts_query": "compare: "}
    write_encoder(tmp_path / "teacher", source, source.load().state_dict(), "", prompts=both)
    common = ["train", "distill", "--preset", "verify", f"out={tmp_path}", *settings(models), "until=teacher"]
    assert main([*common, f"teacher_model={tmp_path / 'teacher'}"]) == 2
    wanted = f"Set teacher.query_prompt_name, or teacher.query_instruction, which may be '', for {tmp_path / 'teacher'}"
    assert f"{wanted}: it may be any of 'web_search_query', 'sts_query', or none" in said(capfd)
    chosen = [f"teacher_model={tmp_path / 'teacher'}", "teacher.query_prompt_name=sts_query", "name=run"]
    assert main([*common, *chosen]) == 0
    key = read_json(tmp_path / "run" / "artifacts" / "teacher" / "vectors" / "arrays.json")["key"]["values"]
    assert key["query instruction"] == "compare: "


@pytest.mark.long
@needs_library
def test_an_export_reads_as_it_was_trained(run: Path, library: SentenceTransformers, tmp_path: Path) -> None:
    """Also the student whose own modules do not end with Normalize, and under the names that the library looks for.
    In Python they are the same."""
    assert main(["export", str(run), str(tmp_path / "student")]) == 0
    assert read_json(tmp_path / "student" / "config_sentence_transformers.json")["prompts"] == {
        "query": "find: ",
        "document": "the ",
    }
    assert [
        module["type"].rpartition(".")[2] for module in json.loads((tmp_path / "student/modules.json").read_text())
    ] == [
        "Transformer",
        "Pooling",
        "Normalize",
    ]
    model = load(run, "last")
    for purpose in ("query", "document"):
        for dim in (None, 5):
            wanted = model.embed(TEXTS, is_query=purpose == "query", batch_size=2, dim=dim)
            question = {"load": tmp_path / "student", "texts": TEXTS, "purpose": purpose}
            found = library.ask(**question, options={"truncate_dim": dim})["vectors"]
            torch.testing.assert_close(torch.tensor(found), wanted, rtol=0, atol=1e-6)


@pytest.mark.long
@needs_library
@pytest.mark.parametrize("temperature", [1.0, 0.05])
def test_the_divergence_is_that_of_sentence_transformers(library: SentenceTransformers, temperature: float) -> None:
    generator = torch.Generator().manual_seed(3)
    vectors = torch.nn.functional.normalize(torch.randn(4, 5, 6, generator=generator, dtype=torch.float64), dim=-1)
    teacher = torch.rand(5, 3, generator=generator, dtype=torch.float64)
    answer = library.ask(kl=temperature, vectors=vectors.tolist(), scores=teacher.tolist())
    student = scores(vectors[0], vectors[1:].transpose(0, 1))
    found = score_divergence(student, teacher, torch.ones(5, 3, dtype=torch.bool), temperature).mean()
    assert float(found) == pytest.approx(answer["loss"], rel=1e-9)
