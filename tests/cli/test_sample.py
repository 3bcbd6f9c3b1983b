"""`samestep sample` as a user runs it: on one rank and on two, with files in and out."""

import json
import re
from pathlib import Path

import pytest

from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.kit.prompts import read_prompts
from samestep.launching import local

pytestmark = pytest.mark.timeout(900)
SHORT = ["--max_new_tokens", "8", "--steps", "4", "--temperature", "1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of two steps."""
    folder = tmp_path_factory.mktemp("runs")
    args = ["train", "mdlm", "--preset", "verify", "--max_steps", "2", "--out", str(folder), "--name", "run"]
    workers = local.start(main, 1, [*args, "--no-log.tensorboard"], logs=folder / "out")
    assert workers.wait(60) == [0], workers.output(0)
    return folder / "run"


def sampled(model: Path, *args: str, ranks: int = 1) -> tuple[list[int | None], str]:
    logs = model.parent / "logs"
    workers = local.start(main, ranks, ["sample", str(model), "--device", "cpu", *args], logs=logs)
    return workers.wait(60), workers.output(0)


def test_two_ranks_write_what_one_does(model: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("The \n\nA longer one: \nWhat [[3]] is\nYou \n")
    outputs = []
    for ranks in (1, 2):
        out, html = tmp_path / f"{ranks}.jsonl", tmp_path / f"{ranks}.html"
        args = [
            "--prompts",
            str(prompts),
            "--samples",
            "2",
            "--batch_size",
            "3",
            "--out",
            str(out),
            "--html",
            str(html),
        ]
        codes, shown = sampled(model, *args, *SHORT, ranks=ranks)
        assert codes == [0] * ranks, shown
        outputs.append((shown, out.read_text(), html.read_text()))
    assert outputs[0] == outputs[1]
    shown, lines, page = outputs[0]
    records = [json.loads(line) for line in lines.splitlines()]
    assert [record["prompt"][:4] for record in records] == [
        "The ",
        "The ",
        "A lo",
        "A lo",
        "What",
        "What",
        "You ",
        "You ",
    ]
    assert [record["sample"] for record in records] == [0, 1] * 4
    assert records[4]["text"] == f"What {records[4]['written'][0]} is"
    assert all(record["text"] in shown for record in records)
    assert page.count('"when": [') == 8


def test_a_text_does_not_depend_on_what_else_is_asked_for(model: Path, tmp_path: Path) -> None:
    texts = []
    for number, args in enumerate((["--samples", "3"], ["--samples", "1"], ["--samples", "3", "--batch_size", "1"])):
        out = tmp_path / f"{number}.jsonl"
        codes, shown = sampled(model, "--prompt", "a=b, <x>", *args, *SHORT, "--out", str(out))
        assert codes == [0], shown
        texts.append([json.loads(line)["text"] for line in out.read_text().splitlines()])
    assert texts[0] == texts[2]
    assert texts[0][:1] == texts[1]
    assert len(set(texts[0])) == 3
    assert all(text.startswith("a=b, <x>") for text in texts[0])


def test_watching_shows_the_passes_and_then_the_text(model: Path) -> None:
    codes, shown = sampled(model, "--prompt", "Hi ", "--watch", *SHORT, "--block_length", "4", "--no-stop")
    assert codes == [0], shown
    said, *lines = shown.splitlines()
    assert said.startswith("samestep: up to 2 tokens a pass")
    assert [line.split("  ")[0] for line in lines[:5]] == [f"pass {done}/4" for done in range(5)]
    assert lines[0].endswith("Hi ░░░░░░░░")
    assert re.search(r"Hi [^░]{4}░{4}$", lines[2])


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--samples", "0"], "--samples must be a whole number"),
        (["--prompt", "a", "--prompts", "b"], "--prompt or --prompts, not both"),
        (["--prompts", "/nowhere"], "/nowhere does not exist"),
        (["--html", "/nowhere/x.html"], "folder of --html"),
        (["--dtype", "int8"], "float32, bfloat16"),
        (["--temprature", "1"], "did you mean"),
        (["--max_new_tokens", "80", "--steps", "80"], "max_sequence_length=64"),
        (["--max_new_tokens", "80", "--steps", "40"], "max_sequence_length=64"),  # not that it is faster with 40
        (["--gap", "_", "--chat"], "--gap or --chat"),
    ],
)
def test_mistakes_are_one_sentence(
    args: list[str], message: str, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["sample", str(model), "--device", "cpu", *args]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) == 1


def test_a_mistake_is_said_once_by_all_ranks(model: Path) -> None:
    codes, shown = sampled(
        model, "--max_new_tokens", "80", "--steps", "80", "--samples", "2", "--batch_size", "1", ranks=2
    )
    assert codes == [2, 2]
    assert shown.count("max_sequence_length=64") == 1


def test_prompts_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "x.jsonl"
    file.write_text('{"prompt": "a\\nb", "text": "no"}\n\n{"text": " c "}\n')
    assert read_prompts(file) == ["a\nb", " c "]
    for bad in ("not json", "[1]", '{"question": "a"}', '{"prompt": 3}'):
        file.write_text(f'{{"prompt": "a"}}\n{bad}\n')
        with pytest.raises(UserError, match=r"records of .*x\.jsonl:\n  line 2: "):
            read_prompts(file)
    file.write_text("\n")
    with pytest.raises(UserError, match="Give a file with records"):
        read_prompts(file)
