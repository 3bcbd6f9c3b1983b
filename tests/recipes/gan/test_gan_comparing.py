"""`samestep eval RUN_A RUN_B`: who wins, on which texts, by which judge; the same on any number of ranks."""

import json
import os
import re
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from chat_server import ChatServer, completion
from torch import Tensor, nn

from language_toys import chat_folder
from samestep import CausalConfig, Trained, Verb
from samestep.cli import evaluate as evaluate_verb
from samestep.cli.main import main
from samestep.cli.model_verbs import ModelVerb, _name_second
from samestep.core.errors import UserError
from samestep.kit.language_model import ByteModel
from samestep.launching import local
from samestep.recipes.gan.compare import CompareOptions, _without_training, compare
from samestep.recipes.gan.comparison_judges import (
    Answer,
    JudgeSettings,
    LocalJudge,
    Shown,
    cut_alike,
    question,
)
from samestep.recipes.gan.comparison_results import (
    Verdict,
    about_answers,
    comparison_page,
    decide,
    question_results,
    tally,
    without_judge,
)
from samestep.recipes.gan.data import PYDOC, DataConfig, Record, TextRows, Texts, load
from samestep.recipes.gan.endpoint import Endpoint
from samestep.recipes.gan.judges import DEFAULT_CRITERION, JudgeConfig, PairWriter, with_instruction
from samestep.train.trained.batch_inference import network_of
from samestep.train.trained.trained_model import open_trained
from samestep.world.world import World

pytestmark = pytest.mark.timeout(900)
SETTINGS = JudgeSettings(mode=None, max_tokens=None, answer_tokens=8, show_prompt=False, rows=3)


# Parts


def test_position_bias_cancels() -> None:
    for bias in (-5.0, 0.0, 5.0):
        found = decide(Answer(1, bias + 0.2), Answer(1, bias - 0.2))
        assert (found.winner, found.score) == ("a", pytest.approx(0.2))
    assert decide(Answer(1, 3.0), Answer(1, 3.0)).winner == "tie"
    assert decide(Answer(2, -1.0), Answer(1, 1.5)).winner == "b"


@pytest.mark.parametrize(
    ("with_a_first", "with_b_first", "winner"),
    [(1, 2, "a"), (2, 1, "b"), (1, 1, "tie"), (2, 2, "tie"), (1, None, "tie"), (None, 1, "tie"), (None, None, "tie")],
)
def test_a_judge_that_writes_must_name_a_text_in_both_orders(
    with_a_first: int | None, with_b_first: int | None, winner: str
) -> None:
    assert decide(Answer(with_a_first), Answer(with_b_first)).winner == winner


def test_without_judge() -> None:
    assert without_judge("x", "x ") == Verdict("tie")
    assert without_judge(" ", "") == Verdict("tie")
    assert without_judge("x", "\n") == Verdict("a")
    assert without_judge("", "x") == Verdict("b")
    assert without_judge("x", "y") is None


def test_tally() -> None:
    found = tally([*[Verdict("a")] * 8, *[Verdict("b")] * 2, *[Verdict("tie")] * 3])
    assert (found["a"], found["b"], found["ties"], found["rate"]) == (8, 2, 3, 0.8)
    assert found["p_value"] == pytest.approx(112 / 1024)
    assert (found["low"], found["high"]) == (pytest.approx(0.4902, abs=1e-4), pytest.approx(0.9433, abs=1e-4))
    assert tally([Verdict("tie")])["rate"] is None


def judge_of(network: nn.Module, **changes: Any) -> LocalJudge:
    player = ByteModel(CausalConfig(max_sequence_length=400))
    config = JudgeConfig(max_tokens=changes.pop("max_tokens", 256), mode=changes.pop("mode", "verdict"))
    settings = replace(SETTINGS, **changes)
    return LocalJudge("toy", player, lambda: (network, None), settings.of(config), settings, World.single())


def test_question_results() -> None:
    answers = [(Answer(1), Answer(2)), (Answer(1), Answer(1)), (Answer(None), Answer(1))]
    verdicts = [*(replace(decide(*pair)) for pair in answers), Verdict("b")]
    found = question_results(judge_of(nn.Identity()), "?", verdicts, ["x", "x", "y", "y"])
    assert found["pairs_asked"] == 3
    assert found["first_named"] == pytest.approx(4 / 5)
    assert found["same_in_both_orders"] == pytest.approx(1 / 3)
    assert about_answers(found).endswith("1 answers could not be read; do not rely on this judge here")
    assert found["unread"] == 1
    assert {group: (one["a"], one["b"], one["ties"]) for group, one in found["groups"].items()} == {
        "x": (1, 0, 1),
        "y": (0, 1, 1),
    }


@pytest.mark.parametrize("mode", ["verdict", "generative"])
def test_judges_are_asked_what_they_were_trained_on(mode: Any) -> None:
    trained_on: list[str] = []
    PairWriter(lambda text: [1], JudgeConfig(mode=mode), lambda text: (trained_on.append(text) or [1], [1]))
    assert question(DEFAULT_CRITERION) is None
    assert trained_on[0].startswith(f"{with_instruction(DEFAULT_CRITERION, mode)}\n\nBoth texts answer this:")


def test_other_criteria() -> None:
    assert question("which is clearer") == "which is clearer?"
    assert question("Which?") == "Which?"


def test_cut_alike() -> None:
    assert cut_alike(" one two  three four.", "five six seven", 9) == ("one two", "five six")
    assert cut_alike("one two", "three four", 1) == ("one", "three")
    assert cut_alike(" ", "x", 1) == ("", "")


class CountsX(nn.Module):
    """Prefers the text with more x in it, and the first text whatever they say."""

    def __init__(self) -> None:
        super().__init__()
        self.read: list[str] = []

    def forward(self, tokens: Tensor) -> Tensor:
        logits = torch.zeros(*tokens.shape, 259)
        for row, line in enumerate(tokens):
            text = bytes(line[1:].tolist()).rstrip(b"\0").decode()
            self.read.append(text)
            first, second = text.split("Text 1:\n")[1].split("\n\nText 2:\n")
            logits[row, :, ord("1")] = 3.0 + first.count("x") - second.count("x")
        return logits


def test_a_local_judge_reads_both_texts_cut_to_one_length() -> None:
    network = CountsX()
    judge = judge_of(network, max_tokens=4)
    shown = [Shown("p", "axb", "cde"), Shown("p", "cde", "axb"), Shown("p", " aaaaaxx", "xbbbbb")]
    (answers,) = judge.ask(["which is better"], shown)
    assert [answer.log_odds for answer in answers] == [4.0, 2.0, 2.0]
    assert decide(*answers[:2]).winner == "a"
    wanted = "which is better? Answer 1 or 2.\n\nText 1:\naaaa\n\nText 2:\nxbbb\n\nAnswer: "
    assert wanted in network.read


def test_a_local_judge_is_shown_the_prompt_if_wanted() -> None:
    """As in training, unless another wish is given."""
    for wish in (None, True, False):
        network = CountsX()
        judge_of(network, show_prompt=wish).ask([DEFAULT_CRITERION], [Shown("Tell me.\n", "ab", "cd")])
        assert ("Both texts answer this:\nTell me.\n\nText 1:" in network.read[0]) == (wish is not False)


class GivesNoNumbers(nn.Module):
    def forward(self, tokens: Tensor) -> Tensor:
        return torch.full((*tokens.shape, 259), torch.nan)


def test_a_broken_judge_decides_nothing() -> None:
    (answers,) = judge_of(GivesNoNumbers()).ask([DEFAULT_CRITERION], [Shown("p", "a", "b"), Shown("p", "b", "a")])
    assert answers == [Answer(None), Answer(None)]
    assert decide(*answers).winner == "tie"


def test_a_judge_with_nothing_to_read_is_not_loaded() -> None:
    judge = replace(judge_of(CountsX()), network=pytest.fail)
    assert judge.ask(["x", "y"], []) == [[], []]


def test_texts_are_cut_to_what_a_judge_takes() -> None:
    network = CountsX()
    network.config = CausalConfig(max_sequence_length=130)  # type: ignore[assignment]
    judge = judge_of(network)
    judge.ask([DEFAULT_CRITERION], [Shown("p", "y" * 40, "z" * 40)])
    (text,) = network.read
    assert len(text) < 130
    assert text.count("y") == text.count("z") > 1
    with pytest.raises(UserError, match="Use a judge that takes more tokens"):
        judge.ask(["Which of them " * 12], [Shown("p", "y" * 40, "z" * 40)])


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"limit": 0}, "limit must be a whole number of at least 1"),
        ({"criteria": " ; "}, "at least one question"),
        ({"judge_answer_tokens": 0}, "judge_answer_tokens must be a whole number of at least 1"),
        ({"judge_max_tokens": 0}, "judge_max_tokens must be a whole number of at least 1"),
        ({"judge_temperature": -1.0}, "judge_temperature must be a number of at least 0"),
        ({"html": Path("/nowhere/x.html")}, "Make the folder of --html"),
        ({"judge_model": "m"}, "name the URL"),
        ({"judge": "http://localhost/v1"}, "--judge_model NAME"),
        ({"judge": "http://localhost/v1", "judge_model": "m", "judge_mode": "verdict"}, "gives no odds"),
    ],
)
def test_options_that_cannot_be(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        CompareOptions(**options)


def test_criteria_are_separate_questions() -> None:
    assert CompareOptions(criteria="Clearer?; Truer?;Clearer? ").questions == ["Clearer?", "Truer?"]


def test_a_second_model_only_where_a_recipe_takes_one() -> None:
    verb = ModelVerb("evaluate", "", "", print, evaluate_verb._write, {})
    both, one = Verb(print, second="against"), Verb(print)
    assert _name_second(["runs/b", "--x", "1"], verb, both, "r") == ["--against=runs/b", "--x", "1"]
    assert _name_second(["seed=1"], verb, one, "r") == ["seed=1"]
    with pytest.raises(UserError, match="takes one model of recipe 'r'; leave out runs/b"):
        _name_second(["runs/b"], verb, one, "r")


# The command


Compare = Callable[..., tuple[int, dict[str, Any], str]]


@pytest.fixture
def compared(
    runs: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Compare:
    """`samestep eval ...` in this process: its exit code, what it wrote, and what it printed."""
    monkeypatch.setenv("COLUMNS", "120")

    def call(*args: str) -> tuple[int, dict[str, Any], str]:
        out = tmp_path / "out.json"
        out.unlink(missing_ok=True)
        capsys.readouterr()
        code = main(["eval", *(str(runs / arg) if arg in ("a", "b", "sine") else arg for arg in args), f"--out={out}"])
        shown = capsys.readouterr()
        return code, json.loads(out.read_text()) if out.exists() else {}, " ".join((shown.out + shown.err).split())

    return call


def test_two_runs(compared: Compare, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(Endpoint, "_send")  # nothing is sent without a URL
    page = tmp_path / "page.html"
    code, found, shown = compared("a", "b", "--criteria", f"{DEFAULT_CRITERION}; which is clearer", f"--html={page}")
    assert code == 0, shown
    assert (found["a"]["stage"], found["b"]["stage"]) == ("gan", "gan")
    asked = [(one["judge"], one["criterion"]) for one in found["questions"]]
    judges = ["the judge of a (gan, step 2)", "the judge of b (gan, step 2)"]
    assert asked == [(judge, text) for judge in judges for text in (DEFAULT_CRITERION, "which is clearer")]
    for number, one in enumerate(found["questions"]):
        winners = [pair["verdicts"][number]["winner"] for pair in found["pairs"]]
        assert [one["all"][name] for name in ("a", "b", "ties")] == [winners.count(name) for name in ("a", "b", "tie")]
        assert one["all"]["a"] + one["all"]["b"] > 0
        assert set(one["groups"]) == {"calm", "wild"}
    data = DataConfig(str(runs / "stories.csv"), validation_fraction=0.4, max_story_length=60)
    held_out = {record.human for record in load(data, 0).validation.records}
    trained_on = {record.human for record in load(data, 3).train.records}
    assert {pair["human"] for pair in found["pairs"]} == held_out - trained_on
    assert f"{len(held_out & trained_on)} left out: b (gan, step 2) was trained on them" in found["notes"]
    assert "A's rate 95% interval p-value" in shown
    assert "dist-1" in shown
    text = page.read_text()
    assert text.count("<svg") == 9 + 3, "with those of the legend"
    assert not re.search(r"<script|src=|https?://|<!--", text)


def test_a_run_against_itself_ties(compared: Compare) -> None:
    code, found, shown = compared("a", "a")
    assert code == 0, shown
    assert len(found["questions"]) == 1, "it is one judge, not two"
    assert found["questions"][0]["all"]["ties"] == len(found["pairs"])
    assert [pair["a"] for pair in found["pairs"]] == [pair["b"] for pair in found["pairs"]]
    assert "the judge was not asked" in shown


def test_one_judge_that_is_named_in_two_ways_is_asked_once(compared: Compare, runs: Path, tmp_path: Path) -> None:
    """By another spelling of its path, and as a copy."""
    shutil.copytree(runs / "a", tmp_path / "copied")
    for name in (str(runs / "b" / ".." / "a"), str(tmp_path / "copied")):
        code, found, shown = compared("a", name, "--against_stage", "mle", "--limit", "3")
        assert code == 0, shown
        assert len(found["questions"]) == 1, name


def test_prompts_are_of_the_test_part_where_there_is_one(compared: Compare, runs: Path, tmp_path: Path) -> None:
    assert "on 16 validation records of a (gan, step 2)" in compared("a")[2]
    data = [f"data.path={runs / 'stories.csv'}", "data.validation_fraction=0.4", "data.test_fraction=0.2"]
    args = ["--preset", "verify", *data, "max_steps=1", f"out={tmp_path}", "name=tested", "log.quiet=true"]
    assert main(["train", "gan", *args]) == 0
    code, found, shown = compared(str(tmp_path / "tested"))
    assert code == 0, shown
    texts = load(DataConfig(str(runs / "stories.csv"), validation_fraction=0.4, test_fraction=0.2), 0)
    assert texts.test is not None
    assert {pair["human"] for pair in found["pairs"]} == {record.human for record in texts.test.records}
    assert "on 8 test records of tested (gan, step 1)" in shown


def test_the_same_at_any_number_of_ranks(compared: Compare, runs: Path, tmp_path: Path) -> None:
    files = {ranks: tmp_path / f"{ranks}.json" for ranks in (2, 3)}
    args = ["eval", str(runs / "a"), str(runs / "b"), "--device", "cpu"]
    started = [
        local.start(main, ranks, [*args, f"--out={file}"], logs=tmp_path / f"out_{ranks}")
        for ranks, file in files.items()
    ]
    code, alone, shown = compared("a", "b", "--device", "cpu")
    assert code == 0, shown
    for (ranks, file), workers in zip(files.items(), started, strict=True):
        assert workers.wait(60) == [0] * ranks, workers.output(0)
        assert json.loads(file.read_text()) == alone


def compare_other_records(args: list[str]) -> int:
    """As where the last rank cannot read what the others leave out."""
    if os.environ["RANK"] == "1":
        compare.__globals__["_some"] = lambda kept, limit, seed: list(kept)[1:]
    return main(args)


def test_ranks_that_read_other_records_are_told(runs: Path, tmp_path: Path) -> None:
    args = ["eval", str(runs / "a"), str(runs / "b"), "--device", "cpu"]
    workers = local.start(compare_other_records, 2, args, logs=tmp_path / "logs")
    assert workers.wait(60) == [2, 2] and "ranks would compare other records" in workers.output(0)


def test_one_run_is_compared_with_people(compared: Compare) -> None:
    code, found, shown = compared("a", "--limit", "5")
    assert code == 0, shown
    assert len(found["pairs"]) == 5
    assert all(pair["b"] == pair["human"] for pair in found["pairs"])
    assert set(found["texts"]) == {"a", "human"}
    assert "B: the human texts" in shown


def test_the_mle_stage_is_a_baseline(compared: Compare) -> None:
    code, found, shown = compared("a", "a", "--against_stage", "mle", "--judge", "b")
    assert code == 0, shown
    assert (found["a"]["stage"], found["b"]["stage"]) == ("gan", "mle")
    assert found["questions"][0]["judge"].startswith("the judge of b")


def test_a_stage_without_a_judge_uses_that_of_its_run(compared: Compare) -> None:
    code, found, shown = compared("a", "--stage", "mle", "--limit", "3")
    assert code == 0, shown
    assert found["a"]["stage"] == "mle"
    assert [one["judge"] for one in found["questions"]] == ["the judge of a (gan, step 2)"]


def test_settings_change_how_is_written_but_not_what_is_held_out(compared: Compare) -> None:
    _, plain, _ = compared("a")
    _, other, _ = compared("a", "--seed", "9", "--data.validation_fraction", "0.8")
    assert [pair["human"] for pair in plain["pairs"]] == [pair["human"] for pair in other["pairs"]]
    assert [pair["a"] for pair in plain["pairs"]] != [pair["a"] for pair in other["pairs"]]
    _, short, _ = compared("a", "--max_new_tokens", "1")
    assert {len(pair["a"].encode()) for pair in short["pairs"]} <= {
        0,
        1,
        3,
    }  # of one byte; 3 is the sign for half a letter


def test_prompts_that_are_too_long_are_said(compared: Compare) -> None:
    code, found, shown = compared("a", "--writing.max_new_tokens", "480", "--limit", "2")
    assert code == 0, shown
    assert "2 prompts are cut to what the network of a (gan, step 2) takes" in found["notes"]


def test_records_of_a_file(compared: Compare, tmp_path: Path) -> None:
    file = tmp_path / "new.jsonl"
    rows = [{"title": f"{n}", "genre": "new", "human_story": f"Something new, {n}."} for n in range(4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, found, shown = compared("a", "b", "--records", str(file))
    assert code == 0, shown
    assert {pair["human"] for pair in found["pairs"]} == {row["human_story"] for row in rows}


def test_no_record_is_left(compared: Compare, runs: Path, tmp_path: Path) -> None:
    data = DataConfig(str(runs / "stories.csv"), validation_fraction=0.4, max_story_length=60)
    known = [record.human for record in load(data, 0).train.records]
    file = tmp_path / "known.jsonl"
    rows = [{"title": "t", "genre": "g", "human_story": text} for text in known]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, _, shown = compared("a", "--records", str(file))
    assert code == 2
    assert f"{len(known)} left out: a (gan, step 2) was trained on them); name others with --records FILE." in shown


def test_what_is_known_of_the_training_data_is_said(runs: Path) -> None:
    trained = open_trained(str(runs / "b"))
    found = list(enumerate([Record("p", "h", "g"), Record("p", "new", "g"), Record("q", "newer", "g")]))
    known = TextRows([Record("p", "h", "g")], ["g"], np.zeros(0))

    def gone(run: Trained) -> Texts:
        raise UserError("gone")

    kept, notes = _without_training(found, [trained], lambda run: Texts("t", PYDOC, known, known, ""))
    assert [number for number, _ in kept] == [1, 2]
    assert notes == [
        "1 left out: b (gan, step 2) was trained on them",
        "1 have a prompt that b (gan, step 2) was trained on, with another human text",
    ]
    kept, notes = _without_training(found, [trained], gone)
    assert len(kept) == 3
    assert notes == ["nothing is left out for b (gan, step 2), whose training data cannot be read (gone)"]


def test_a_folder_as_a_generative_judge(compared: Compare, tmp_path: Path) -> None:
    """It writes letters at random, in which there is no answer."""
    folder = chat_folder(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "max_position_embeddings": 512}))
    args = ["--judge", str(folder), "--judge_mode", "generative", "--judge_answer_tokens", "2", "--limit", "3"]
    code, found, shown = compared("a", "b", *args)
    assert code == 0, shown
    (one,) = found["questions"]
    assert (one["judge"], one["mode"], one["unread"]) == ("model", "generative", 2 * one["pairs_asked"])
    assert one["pairs_asked"] > 1
    assert one["all"]["ties"] >= one["pairs_asked"]
    assert f"{one['unread']} answers could not be read" in shown


def test_an_endpoint_as_judge(compared: Compare, monkeypatch: pytest.MonkeyPatch) -> None:
    """It prefers the text that comes first in the alphabet."""
    server = ChatServer()

    def reply(handler: Any) -> None:
        message = server.requests[-1][2]["messages"][0]["content"]
        first, second = message.split("Text 1:\n")[1].split("\n\nText 2:\n")
        body = completion(f"\\boxed{{2}}, no: \\boxed{{{1 if first < second else 2}}}")
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)

    server.replies = [reply]
    monkeypatch.setattr("samestep.recipes.gan.comparison_judges.REQUESTS_AT_ONCE", 1)  # `requests[-1]` is this one
    monkeypatch.setenv("OTHER_KEY", "secret")
    args = ["--judge", server.url, "--judge_model", "big", "--judge_key_env", "OTHER_KEY", "--limit", "4"]
    try:
        code, found, shown = compared("a", *args)
    finally:
        server.close()
    assert code == 0, shown
    assert len(server.requests) == 8
    assert {headers["Authorization"] for _, headers, _ in server.requests} == {"Bearer secret"}
    assert "secret" not in json.dumps(found)
    for pair in found["pairs"]:
        a, b = cut_alike(pair["a"], pair["b"], 256)
        assert pair["verdicts"][0]["winner"] == ("a" if a < b else "b")


def test_an_endpoint_that_refuses_ends_all_ranks(runs: Path, tmp_path: Path) -> None:
    """Also the one that had nothing to ask."""
    server = ChatServer()
    server.replies = [(401, b"no")]
    args = ["eval", str(runs / "a"), "--device", "cpu", "--limit", "1", "--temperature", "0"]
    try:
        workers = local.start(main, 3, [*args, "--judge", server.url, "--judge_model", "m"], logs=tmp_path / "logs")
        codes = workers.wait(60)
    finally:
        server.close()
    assert codes == [2, 2, 2], workers.output(0)
    assert "does not accept the key (HTTP 401: no)" in " ".join(workers.output(0).split())


@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_mixed_precision(compared: Compare, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: the networks compute in bf16."""
    monkeypatch.setattr("samestep.train.trained.batch_inference.compute_dtype", lambda config, device: torch.bfloat16)
    network, compute = network_of(open_trained(str(runs / "a")), "generator", torch.device("cpu"))
    assert compute == torch.bfloat16
    assert {weight.dtype for weight in network.parameters()} == {torch.bfloat16}
    code, found, shown = compared("a", "b", "--limit", "3")
    assert code == 0, shown
    assert sum(one["pairs_asked"] for one in found["questions"]) > 0


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["a", "sine"], "Give two runs of the same recipe; "),
        (["a", "b", "--against_stage", "mle"], "has no checkpoints of a stage 'mle'"),
        (["a", "b", "--against_which", "77"], "there is no checkpoint of step 77"),
        (["a", "nowhere"], "'nowhere' is not a run directory"),
        (["a", "b", "--limit", "0"], "limit must be a whole number of at least 1"),
        (["a", "--judge", "nowhere"], "Name an existing folder, or a model of the Hub"),
        (["a", "--judge", "sine"], "has no learner 'judge'"),
        (["a", "--learner", "judge"], "Leave out --learner"),
        (["a", "--records", "nowhere.csv"], "nowhere.csv"),
        (["a", "--writing.max_new_tokens", "600"], "Set writing.max_new_tokens below 512"),
    ],
)
def test_bad_input_is_a_sentence(compared: Compare, args: Sequence[str], sentence: str) -> None:
    code, found, shown = compared(*args)
    assert code == 2, shown
    assert sentence in shown
    assert "Traceback" not in shown
    assert not found


def test_a_folder_that_is_no_run_and_no_model(compared: Compare, tmp_path: Path) -> None:
    junk = tmp_path / "junk"
    junk.mkdir()
    (junk / "config.json").write_text("{")
    for args in (["a", str(junk)], ["a", "--judge", str(junk)]):
        code, _, shown = compared(*args)
        assert code == 2, shown
        assert "junk" in shown
        assert "Traceback" not in shown


def test_a_judge_whose_tokenizer_has_no_single_token_for_an_answer(compared: Compare, tmp_path: Path) -> None:
    code, _, shown = compared("a", "--judge", str(chat_folder(tmp_path / "model")))
    assert code == 2
    assert "model cannot judge by its odds: try --judge_mode generative." in shown


def test_texts_cannot_break_the_page(compared: Compare) -> None:
    _, found, _ = compared("a", "--limit", "2")
    found["pairs"][0]["a"] = "<!--TITLE--><script>alert(1)</script>"
    found["pairs"][0]["prompt"] = "a\n<b>"
    hostile = "\"'><script>alert(1)</script><!--PAIRS-->\u2028&"
    found["pairs"][0] |= {"human": hostile, "b": hostile}
    found["a"]["name"] = found["b"]["name"] = hostile
    found["notes"] = [hostile]
    found["questions"][0] |= {"criterion": hostile, "judge": hostile}
    found["questions"][0]["groups"] = {hostile: next(iter(found["questions"][0]["groups"].values()))}
    page = comparison_page(found)
    assert not re.search(r"<(script|!--|img|a )|['\"]>\s*<script", page)
    assert "&lt;!--TITLE--&gt;&lt;script&gt;" in page
    assert "<script" not in page
    assert "a &lt;b&gt;" in page


def test_help_names_the_second_model(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "gan", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "A second model right after the first is --against." in shown
    assert "--judge_key_env" in shown
