"""lm-evaluation-harness: its three kinds of request on an exact toy, on one rank and two; complete tasks offline."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from exact_toy import LENGTH, TOY, ExactConditionals
from safetensors.torch import save_file

from harness_task import CHOICE
from samestep.cli.main import main
from samestep.core.config import dump
from samestep.core.errors import UserError
from samestep.core.rundir import RunDir
from samestep.models.transformer import Transformer, TransformerConfig
from samestep.recipes.mdlm import MdlmConfig, recipe
from samestep.recipes.mdlm.evaluation import EvaluationOptions, HarnessModel, evaluate, metric_rows
from samestep.recipes.mdlm.sampling import SamplingConfig
from samestep.train.record.config import Log
from samestep.train.record.run_record import RunRecord
from samestep.train.trained.trained_model import Trained
from samestep.world.world import World
from toys import run_on_ranks

LETTERS = "abc"
TEXTS = ["abca", "bbcb", "caac"]


class Letters:
    """The toy's three tokens as letters."""

    kind = "letters"
    vocabulary = TOY

    def encode(self, text: str) -> list[int]:
        return [LETTERS.index(letter) for letter in text]

    def encode_all(self, texts: Sequence[str]) -> list[list[int]]:
        return [self.encode(text) for text in texts]

    def decode(self, tokens: Iterable[int]) -> str:
        return "".join(LETTERS[token] for token in tokens)

    def save(self, folder: Path) -> None:
        raise NotImplementedError


def harness_model(
    world: World | None = None, draws: int = 2000, max_new_tokens: int | None = None, **sampling: Any
) -> HarnessModel:
    shape = TransformerConfig(d_model=4, n_layers=1, n_heads=1, vocab_size=TOY.size, max_sequence_length=LENGTH)
    options = SamplingConfig(**{"max_new_tokens": 2, **sampling})
    config = MdlmConfig(model=shape, sampling=options, log=Log(samples=0), batch_size=500)
    asked = EvaluationOptions("none", draws=draws, max_new_tokens=max_new_tokens)
    return HarnessModel(ExactConditionals(), Letters(), config, asked, world or World.single())


def request(*args: Any) -> SimpleNamespace:
    return SimpleNamespace(args=args)


def test_the_likelihood_of_a_continuation() -> None:
    toy = ExactConditionals()
    found = harness_model().loglikelihood(
        [request(text[:1], text[1:]) for text in TEXTS] + [request("", text) for text in TEXTS]
    )
    tokens = torch.tensor([Letters().encode(text) for text in TEXTS])
    whole, first = toy.nll(tokens, torch.full((3,), LENGTH)), toy.nll(tokens, torch.ones(3, dtype=torch.int64))
    assert [mean for mean, _ in found] == pytest.approx([*(first - whole).tolist(), *(-whole).tolist()], rel=0.05)
    best = toy.texts[toy.table.argmax()].tolist()
    found = harness_model().loglikelihood([request(Letters().decode(best[:3]), LETTERS[token]) for token in range(3)])
    assert [greedy for _, greedy in found] == [token == best[3] for token in range(3)]


def test_a_long_text_is_scored_in_rows() -> None:
    text = TEXTS[0] + TEXTS[1]
    (both,) = harness_model().loglikelihood_rolling([request(text)])
    apart = [mean for mean, _ in harness_model().loglikelihood([request("", text[:4]), request("", text[4:])])]
    assert both == pytest.approx(sum(apart), rel=0.05)
    assert harness_model().loglikelihood_rolling([request("")]) == [0]


def test_generation_stops_where_the_task_says() -> None:
    settings = {"until": ["x"], "max_gen_toks": 3, "do_sample": False}
    texts = harness_model().generate_until([request("a", settings), request("", settings), request("abcab", settings)])
    assert [len(text) for text in texts] == [3, 3, 3], "a prompt that is too long loses its beginning"
    last = texts[0][-1]
    (cut,) = harness_model().generate_until([request("a", {**settings, "until": ["zz", last]})])
    assert cut == texts[0][: texts[0].index(last)]
    free = {"do_sample": True, "temperature": 3.0}
    (some,), (two,) = (
        harness_model().generate_until([request("a", free)]),
        harness_model(max_new_tokens=2).generate_until([request("a", free)]),
    )
    assert (len(some), len(two)) == (LENGTH // 4, 2), "what is asked for, if the task gives no length"


def test_several_tokens_a_pass_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    ask = [request("a", {"max_gen_toks": length}) for length in (3, 2)]
    harness_model().generate_until(ask)
    assert capsys.readouterr().err == "", "without steps it is one token a pass, whatever the length"
    harness_model(steps=2).generate_until(ask)
    assert "up to 2 tokens a pass: faster, and worse than one at a time" in capsys.readouterr().err


def answers(world: World) -> list[Any]:
    mine = harness_model(world, draws=32)
    settings = {"do_sample": True, "temperature": 1.0, "max_gen_toks": 3}
    return [
        mine.loglikelihood([request(text[:place], text[place:]) for text in TEXTS for place in range(3)]),
        mine.loglikelihood_rolling([request(text * 2) for text in TEXTS]),
        mine.generate_until([request(text[:1], settings) for text in TEXTS]),
    ]


def worker(folder: Path) -> None:
    world = World.join(device="cpu", timeout=60)
    (folder / f"{world.rank}.json").write_text(json.dumps(answers(world)))
    world.leave()


@pytest.mark.timeout(900)
def test_two_ranks_answer_as_one(tmp_path: Path) -> None:
    run_on_ranks(worker, 2, tmp_path, logs=tmp_path / "logs")
    alone = json.loads(json.dumps(answers(World.single())))
    assert [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1)] == [alone, alone]


# ---- complete tasks

WRITING = """
task: writing
dataset_path: json
dataset_kwargs: {data_files: {test: texts.jsonl}}
test_split: test
output_type: generate_until
doc_to_text: "{{q}}"
doc_to_target: "{{a}}"
generation_kwargs: {until: ["\\n\\n"], max_gen_toks: 6, do_sample: false}
metric_list: [{metric: exact_match, aggregation: mean, higher_is_better: true}]
"""


def work_offline(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In this folder, with the harness and nothing from the Hub."""
    pytest.importorskip("lm_eval")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(folder / "cache"))


def lines(path: Path, rows: Sequence[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.mark.long
@pytest.mark.timeout(900)
def test_local_tasks_need_no_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work_offline(tmp_path, monkeypatch)
    train = ["--preset=verify", "--max_steps=1", "--log.samples=0", "--name=a", "--no-log.tensorboard"]
    run_on_ranks(main, 1, ["train", "mdlm", *train], logs=tmp_path / "logs")
    assert main(["sample", "a", "--prompt=One", "--max_new_tokens=6", "--temperature=0", "--out=text.jsonl"]) == 0
    written = json.loads(Path("text.jsonl").read_text())["text"].removeprefix("One")
    lines(Path("questions.jsonl"), [{"q": "One", "choices": ["two two two two", "2"], "gold": 1}] * 3)
    lines(Path("texts.jsonl"), [{"q": "One", "a": written}, {"q": "One", "a": "something else"}])
    for name, text in (("shorter", CHOICE), ("writing", WRITING)):
        (tmp_path / f"{name}.yaml").write_text(text)
    capsys.readouterr()
    args = ["a", "--tasks=shorter,writing", "--include_path=.", "--limit=2", "--draws=4", "--out=results.json"]
    assert main(["evaluate", *args]) == 0
    results = json.loads(Path("results.json").read_text())
    assert sorted(row[:4] for row in metric_rows(results)) == [
        ("shorter", "2", "acc", "1.0000"),
        ("writing", "2", "exact_match", "0.5000"),
    ]
    assert results["samestep"]["draws"] == 4
    assert "exact_match" in capsys.readouterr().out
    assert main(["evaluate", "a", "--tasks=writing,reading", "--include_path=."]) == 2
    assert "there is no task 'reading' in ." in capsys.readouterr().err


PROGRAM = WRITING.replace("task: writing", "task: program\nunsafe_code: true").replace(
    "metric: exact_match", "metric: !function run.allowed"
)
RUN = """
import os
from pathlib import Path

Path("imported").touch()


def allowed(references, predictions):
    return float(os.environ.get("HF_ALLOW_CODE_EVAL") == "1")
"""


@pytest.mark.timeout(600)
def test_tasks_that_run_code_are_refused_before_the_weights_are_read_unless_they_are_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    work_offline(tmp_path, monkeypatch)
    monkeypatch.setenv("HF_ALLOW_CODE_EVAL", "0")
    lines(Path("texts.jsonl"), [{"q": "One", "a": "two"}])
    Path("program.yaml").write_text(PROGRAM)
    Path("run.py").write_text(RUN)
    shape = TransformerConfig(d_model=16, n_layers=1, n_heads=2, mlp_hidden_size=16, max_sequence_length=64)
    trained = Trained("mdlm", recipe, MdlmConfig(model=shape, log=Log(samples=0)), Path("gone"), tmp_path)
    with pytest.raises(UserError, match="Name tasks for gone, --tasks NAME"):
        evaluate(trained, EvaluationOptions(), World.single())
    Path("more.yaml").write_text("include: program.yaml\ntask: more\n")
    Path("several.yaml").write_text("group: several\ntask: [program]\n")
    for name in ("program", "more", "several"):
        with pytest.raises(
            UserError, match=rf"^{name} runs programs that the model writes.* allow it with --allow_code"
        ):
            evaluate(trained, EvaluationOptions(name, include_path=tmp_path), World.single())
        assert name == "several" or not Path("imported").exists(), "not even the task's own code is run"
    save_file({f"model.{name}": value for name, value in Transformer(shape).state_dict().items()}, "model.safetensors")
    trained = replace(trained, source=Path("model.safetensors"))
    found = evaluate(trained, EvaluationOptions("program", include_path=tmp_path, allow_code=True), World.single())
    assert [row[2:4] for row in metric_rows(found)] == [("allowed", "1.0000")]


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--tasks=x"], "needs a run, a checkpoint or a model folder first"),
        (["a", "--limit=2"], "Name the tasks that --limit is for: --tasks NAME,...; or leave it out."),
        (["a", "--tasks=x", "--limit=0"], "limit must be a whole number of at least 1"),
        (["a", "--tasks=x", "--draws=many"], "--draws must be a whole number"),
        (["a", "--tasks=x", "--include_path=nowhere"], "Give --include_path a folder with task files"),
        (["a", "--tasks=x", "--out=nowhere/x.json"], "Make the folder of --out"),
        (["b", "--tasks=x"], "'b' is not a run"),
    ],
)
def test_bad_args_are_refused(
    args: list[str],
    sentence: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    RunRecord("mdlm", dump(MdlmConfig()), "", 8).write(RunDir(Path("runs/a")))  # refused before a checkpoint is opened
    assert main(["evaluate", *args]) == 2
    assert sentence in capsys.readouterr().err
