"""Pairs of texts: what is read, what becomes tokens, and one sentence for each thing that can be wrong."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from dpo_runs import text_records, write_records

from player_folders import CHATML, bytes_with_merges, player_folder
from samestep import UserError, World, open_causal_lm
from samestep.cli.main import main
from samestep.data.collate import pad_rows
from samestep.data.records.reading import Records
from samestep.kit.language_model import ByteModel, FolderModel
from samestep.recipes.dpo.config import DataConfig, DpoConfig, ModelConfig
from samestep.recipes.dpo.families import family_of
from samestep.recipes.dpo.text_data import TextPair, pydoc_pairs, read_pair
from samestep.recipes.dpo.text_family import TextFamily, encode_pair


def says(role: str, content: str) -> dict[str, str]:
    return {"role": role, "content": content}


def family(**data: Any) -> TextFamily:
    return TextFamily(DpoConfig(family="text", data=DataConfig(**data), model=ModelConfig()), World.single())


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"prompt": "a", "chosen": "b"}, "'rejected' is missing"),
        ({"prompt": " ", "chosen": "b", "rejected": "c"}, "'prompt' is empty"),
        ({"prompt": "a", "chosen": 3, "rejected": []}, "'chosen' is no text but 3, 'rejected' is empty"),
        ({"prompt": [3], "chosen": "b", "rejected": "c"}, "'prompt' has a message that is no object"),
        (
            {"prompt": [{"role": "user"}], "chosen": "b", "rejected": "c"},
            "'prompt' has a message whose 'content' is missing",
        ),
        ({"prompt": "a\ud83d", "chosen": "b", "rejected": "c"}, "'prompt' holds half of a surrogate pair"),
        (
            {"prompt": [says("user", "\udfff")], "chosen": "b", "rejected": "c"},
            "message whose 'content' holds half of a surrogate",
        ),
        ({"prompt": "a", "chosen": "b", "rejected": "b"}, "'chosen' and 'rejected' are the same"),
    ],
)
def test_what_is_wrong_with_a_record(record: Any, sentence: str) -> None:
    with pytest.raises(UserError) as refusal:
        read_pair(record)
    assert sentence in str(refusal.value)


def test_a_text_beside_chats_is_what_one_of_both_says() -> None:
    found = read_pair({"prompt": "a", "chosen": [says("assistant", "b")], "rejected": "c"})
    assert found == TextPair((says("user", "a"),), (says("assistant", "b"),), (says("assistant", "c"),))


def test_all_problems_are_listed_at_once_or_left_out(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    bad = [{"prompt": "a", "chosen": "b"}, 7, {"prompt": "a", "chosen": "x" * 300, "rejected": "y"}]
    data = write_records(tmp_path / "pairs.jsonl", [*text_records(10), *bad])
    data.write_text(data.read_text() + "\n{broken")
    command = ["train", "dpo", "--preset", "verify-text", f"out={tmp_path / 'runs'}", "--train_data", str(data)]
    command += ["data.limit=null", "--family", "text", "max_steps=1", "name=run"]
    assert main(command) == 2
    error = capfd.readouterr().err
    assert "Fix 4 of 14 records" in error and "line 11: 'rejected' is missing" in error
    assert "line 12: it is no JSON object" in error and "line 14: it is not JSON" in error
    assert "line 13: it has 303 tokens, more than 256" in error
    assert not (tmp_path / "runs").exists(), "nothing is recorded"
    assert main([*command, "--skip_invalid"]) == 0
    captured = capfd.readouterr()
    said = captured.out + captured.err
    assert "10 of 14 records" in said and "left out: 2 because of format, 1 because of max_length" in said
    assert "8 pairs for training, 2 pairs for validation" in said


def test_pairs_that_are_too_long_are_dropped_or_cut(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    long = [
        {"prompt": "ab", "chosen": "x" * 99, "rejected": "yz"},
        {"prompt": "p" * 99, "chosen": "x", "rejected": "y"},
    ]
    data = str(write_records(tmp_path / "a.jsonl", [*text_records(10), long[0]]))
    dropped = family(train=data, max_length=80, too_long="drop").pairs()
    assert len(dropped.train) + len(dropped.validation) == 10
    assert f"{data}: 1 of 11 pairs are longer than 80 tokens and were dropped (data.too_long=drop)" in caplog.text
    cut = family(train=data, max_length=80, too_long="truncate").pairs()
    assert len(cut.train) + len(cut.validation) == 11
    rows = [part[index] for part in (cut.train, cut.validation) for index in range(len(part))]
    assert max(len(row["prompt"]) + len(row["chosen"]) for row in rows) == 80
    other = str(write_records(tmp_path / "b.jsonl", [*text_records(10), long[1]]))
    with pytest.raises(UserError, match="line 11: its prompt or one of its completions has no token"):
        family(train=other, max_length=80, too_long="truncate").pairs()


@pytest.mark.parametrize(
    ("records", "sentence"),
    [([{"text": "a"}], "; it has 'text'"), ([3], "record 1: it is no JSON object")],
)
def test_columns_that_nobody_knows(records: list[Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        family_of(Records(str(write_records(tmp_path / "pairs.json", records))))


def test_the_family_is_known_by_the_columns(tmp_path: Path) -> None:
    assert family_of(Records(str(write_records(tmp_path / "a.json", text_records(1))))) == "text"
    protein = [{"preferred_seq": "A", "pdb_file": "a.pdb"}]
    assert family_of(Records(str(write_records(tmp_path / "b.jsonl", [1, *protein])))) == "protein"


def test_the_split_and_a_file_for_validation(tmp_path: Path) -> None:
    records = text_records(419)
    data, other = write_records(tmp_path / "a.json", records[:414]), write_records(tmp_path / "b.json", records[414:])
    pairs = family(train=str(data)).pairs()
    numbers = [{int(rows[index]["record"]) for index in range(len(rows))} for rows in (pairs.train, pairs.validation)]
    assert (len(pairs.train), len(pairs.validation)) == (372, 42)
    assert numbers[0] | numbers[1] == set(range(414)) and not numbers[0] & numbers[1]
    named = family(train=str(data), validation=str(other)).pairs()
    assert (len(named.train), len(named.validation)) == (414, 5)
    assert int(named.validation[0]["record"]) == 414, "no number is used twice"


def test_a_prompt_is_on_one_side_only(tmp_path: Path) -> None:
    records = [{**record, "prompt": f"p{number % 5}"} for number, record in enumerate(text_records(40))]
    pairs = family(train=str(write_records(tmp_path / "a.json", records)), split_by="structure").pairs()
    prompts = [
        {tuple(rows[i]["prompt"].tolist()) for i in range(len(rows))} for rows in (pairs.train, pairs.validation)
    ]
    assert prompts[0] and prompts[1] and not prompts[0] & prompts[1]


def test_the_built_in_network_reads_bytes() -> None:
    model = ByteModel(DpoConfig().model.text)
    tokens = encode_pair(model, TextPair("ab", "c", "d"))
    assert tokens == ([258, 97, 98], [99, 257], [100, 257])
    with pytest.raises(UserError, match="Name a chat model"):
        encode_pair(model, TextPair((says("user", "a"),), (says("assistant", "b"),), ()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> FolderModel:
    folder = player_folder(tmp_path_factory.mktemp("model"), template=CHATML)
    return FolderModel(open_causal_lm(folder, dtype="float32"))


def text_of(tokens: list[int]) -> str:
    return str(bytes_with_merges().decode(tokens, skip_special_tokens=False))


def test_chats_go_through_the_template(model: FolderModel) -> None:
    prompt, answers = (says("user", "Why?"),), [(says("assistant", text),) for text in ("Because.", "No.")]
    found = encode_pair(model, TextPair(prompt, *answers))
    start = "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWhy?<|im_end|>\n<|im_start|>assistant\n"
    assert list(map(text_of, found)) == [start, "Because.<|im_end|>\n", "No.<|im_end|>\n"]


def test_texts_are_taken_as_they_are_and_end(model: FolderModel) -> None:
    found = encode_pair(model, TextPair("Why", " the", " no"))
    assert list(map(text_of, found)) == ["Why", " the<|end|>", " no<|end|>"]
    joined = encode_pair(model, TextPair("Why t", "he", "o"))  # "the" is one token
    assert list(map(text_of, joined)) == ["Why", " the<|end|>", " to<|end|>"], "prompt and completion grow together"


def test_made_up_pairs_are_always_the_same() -> None:
    pairs = list(pydoc_pairs())
    assert len(pairs) > 100 and pairs == list(pydoc_pairs())
    for pair in pairs:
        assert isinstance(pair.chosen, str) and isinstance(pair.rejected, str)
        assert pair.chosen != pair.rejected and sorted(pair.chosen) == sorted(pair.rejected)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["--diversity_lambda", "0.1"], "diversity_lambda at 0: it is for proteins"),
        (["padding_free=true"], "Name a model of transformers with base_model_name"),
        (["--val_data", "x.json"], "Name the training records too"),
        (["--lora_rank", "4", "init_from=x"], "Set reference=live"),
        (["--beta", "0"], "objective.beta must be a number above 0"),
        (["--temperature", "0"], "temperature must be a number above 0"),
        (["model.text.vocab_size=300"], "Leave model.text.vocab_size at 259"),
        (["--family", "protein", "padding_free=true"], "padding_free has no effect: it is for texts"),
    ],
)
def test_settings_that_cannot_work(
    settings: list[str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", "dpo", "--preset", "verify-text", f"out={tmp_path}", "name=run", *settings]) == 2
    assert sentence in capfd.readouterr().err
    assert not (tmp_path / "run").exists()


def test_flags_that_people_know(tmp_path: Path) -> None:
    data = write_records(tmp_path / "pairs.json", text_records(6))
    flags = ["--train_data", str(data), "--num_epochs", "1", "--batch_size", "2", "--lr", "0.01", "--beta", "0.2"]
    flags += ["--temperature", "0.9", "--weight_decay", "0", "--max_length", "100", "--backend", "gloo", "--no_cuda"]
    flags += ["--scale_lr", "--output_dir", str(tmp_path / "runs"), "--name", "run", "data.limit=null"]
    flags += ["global_batch_size=4", "max_steps=null", "log.quiet=true"]
    assert main(["train", "dpo", "--preset", "verify-text", *flags]) == 0
    record = json.loads((tmp_path / "runs" / "run" / "config.json").read_text())
    config = record["config"]
    assert (config["family"], config["epochs"], config["learning_rate"]) == ("text", 1, 0.01)
    assert (config["objective"]["beta"], config["temperature"], config["data"]["max_length"]) == (0.2, 0.9, 100)
    assert (config["distributed"]["device"], config["distributed"]["backend"]) == ("cpu", "gloo")
    assert (config["lr_scaling"], config["base_batch_size"]) == ("linear", 2), "the rate is for one process's batch"
    frozen = json.loads((tmp_path / "runs" / "run" / "first_launch.json").read_text())
    assert frozen["dpo"]["plan"]["learning_rate"] == pytest.approx(0.02), "frozen: 4 rows a step instead of 2"


@torch.no_grad()
def test_the_loss_temperature_is_that_of_the_scores() -> None:
    plain = family(limit=4)
    rows, network = plain.pairs().train, plain.network().double()
    batch = pad_rows([rows[index] for index in range(3)], plain.pad)
    warm = TextFamily(replace(plain._config, temperature=2.0), World.single())
    tokens = torch.cat([batch[name][0, batch[f"is_{name}"][0]] for name in ("prompt", "chosen")])
    size = int(batch["is_chosen"][0].sum())
    wanted = (network(tokens[None])[0, -size - 1 : -1] / 2).log_softmax(-1).gather(1, tokens[-size:, None]).sum()
    assert float(warm.scores(network, batch).log_probs.chosen[0]) == pytest.approx(float(wanted), abs=1e-9)
    assert float(plain.scores(network, batch).log_probs.chosen[0]) != pytest.approx(float(wanted), abs=1e-3)


def test_several_files_are_drawn_by_their_weights(tmp_path: Path) -> None:
    records = text_records(36)
    many = write_records(tmp_path / "a.jsonl", records[:30])
    few = write_records(tmp_path / "b.json", records[30:])
    pairs = family(train=[f"{many}:1", f"{few}:2"]).pairs()
    assert pairs.weights is not None
    numbers = [int(pairs.train[index]["record"]) for index in range(len(pairs.train))]
    shares = [sum(w for w, n in zip(pairs.weights, numbers) if (n >= 30) is late) for late in (False, True)]
    assert shares == pytest.approx([1, 2])
    assert family(train=[str(many), str(few)]).pairs().weights is None
    command = [
        "train",
        "dpo",
        "--preset",
        "verify-text",
        f"out={tmp_path / 'runs'}",
        f"--train_data=[{many}:1,{few}:2]",
    ]
    assert main([*command, "data.limit=null", "max_steps=2", "name=run"]) == 0


USER, FIRST, SECOND = says("user", "a"), says("assistant", "b"), says("assistant", "c")


@pytest.mark.parametrize(
    ("record", "pair"),
    [
        ({"chosen": "x y one", "rejected": "x y other"}, ("x y", " one", " other")),
        (
            {"chosen": "\n\nHuman: Hi\n\nAssistant: I am", "rejected": "\n\nHuman: Hi\n\nAssistant: I see"},
            ("\n\nHuman: Hi\n\nAssistant:", " I am", " I see"),
        ),
        ({"question": "a", "chosen": "b", "rejected": "c"}, ("a", "b", "c")),
        ({"chosen": [USER, FIRST], "rejected": [USER, SECOND]}, ([USER], [FIRST], [SECOND])),
        ({"prompt": "a", "chosen": [USER, FIRST], "rejected": [USER, SECOND]}, ([USER], [FIRST], [SECOND])),
        ({"prompt": [USER], "chosen": [USER, FIRST], "rejected": [USER, SECOND]}, ([USER], [FIRST], [SECOND])),
        ({"prompt": [USER], "chosen": [FIRST], "rejected": [SECOND]}, ([USER], [FIRST], [SECOND])),
        (
            {
                "conversations": [{"from": "human", "value": "a"}],
                "chosen": {"from": "gpt", "value": "b"},
                "rejected": {"from": "gpt", "value": "c"},
            },
            ([USER], [FIRST], [SECOND]),
        ),
        (
            {
                "chosen": [USER, {"role": "assistant", "content": [{"type": "text", "text": "b"}]}],
                "rejected": [{"role": "user", "content": [{"type": "text", "text": "a"}]}, SECOND],
            },
            ([USER], [FIRST], [SECOND]),
        ),
    ],
)
def test_published_layouts(record: dict[str, Any], pair: tuple[Any, Any, Any]) -> None:
    wanted = TextPair(*(side if isinstance(side, str) else tuple(side) for side in pair))
    assert read_pair(record) == wanted


@pytest.mark.parametrize(
    ("record", "sentence"),
    [
        ({"prompt": "z", "chosen": [USER, FIRST], "rejected": [USER, SECOND]}, "do not begin with 'prompt'"),
        ({"chosen": [USER, FIRST], "rejected": [says("user", "z"), SECOND]}, "'prompt' is missing"),
        ({"chosen": "b", "rejected": "c"}, "'prompt' is missing"),
        (
            {"prompt": "a", "chosen": [{"role": "assistant", "content": [{"type": "image"}]}], "rejected": "c"},
            "'content' is no text",
        ),
    ],
)
def test_layouts_that_say_no_pair(record: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        read_pair(record)


def test_pairs_without_a_prompt_column_are_trained_on(tmp_path: Path) -> None:
    records = [
        {"chosen": f"the number {n} is even", "rejected": f"the number {n} flies", "score_chosen": 1} for n in range(12)
    ]
    data = write_records(tmp_path / "a.jsonl", records)
    command = ["train", "dpo", "--preset", "verify-text", f"out={tmp_path / 'runs'}", f"--train_data={data}"]
    assert main([*command, "data.limit=null", "max_steps=2", "name=run"]) == 0
