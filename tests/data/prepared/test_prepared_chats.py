"""Chats: the format, a row for each answer, each chat on one side of the split, never a prompt without an answer."""

from pathlib import Path
from typing import Any

import pytest
from prepared_parts import lines, made

from samestep.core.errors import UserError
from samestep.data.prepared import Prepared
from samestep.data.prepared.chats import ChatMessage, answers, chat_prompt, read_chat
from samestep.data.tokenizer.subword import train_bpe
from samestep.data.tokenizer.vocabulary import BYTES, ByteTokenizer


def pair(i: int) -> dict[str, str]:
    return {"prompt": f"what is {i}?", "answer": f"it is {i}"}


def talk(i: int) -> dict[str, Any]:
    turns = [("system", "be kind"), ("user", f"q{i}"), ("assistant", f"a{i}"), ("user", "more"), ("assistant", f"b{i}")]
    return {"messages": [{"role": role, "content": content} for role, content in turns]}


def rows(found: Prepared, region: str) -> list[tuple[list[int], int]]:
    tokens, index = getattr(found, region), getattr(found, f"{region}_rows")
    assert index is not None
    table = index[:].reshape(-1, 3).tolist()
    return [(tokens[start : start + length].tolist(), prompt) for start, length, prompt in table]


def test_a_turn_is_a_header_the_content_and_an_end() -> None:
    tokenizer = train_bpe(["user assistant hello\n\nthere yes"] * 9, 290)
    v = tokenizer.vocabulary
    assert v.headers is not None
    start, end = v.headers
    messages = [ChatMessage("user", " hello "), ChatMessage("assistant", "there"), ChatMessage("user", "yes?")]
    prompt = chat_prompt(tokenizer, messages)
    assert prompt == [
        v.bos,
        *(start, *tokenizer.encode("user"), end, *tokenizer.encode("\n\nhello"), v.eot),
        *(start, *tokenizer.encode("assistant"), end, *tokenizer.encode("\n\nthere"), v.eot),
        *(start, *tokenizer.encode("user"), end, *tokenizer.encode("\n\nyes?"), v.eot),
        *(start, *tokenizer.encode("assistant"), end, *tokenizer.encode("\n\n")),
    ]
    first, row = answers(tokenizer, [*messages, ChatMessage("assistant", "yes\n")])
    assert first.tokens[first.prompt :] == [*tokenizer.encode("there"), v.eot]
    assert row.tokens == [*prompt, *tokenizer.encode("yes"), v.eot]
    assert (row.prompt, row.size) == (len(prompt), 3)


def test_bytes_spell_the_headers_out() -> None:
    (row,) = answers(ByteTokenizer(), [ChatMessage("user", "hi"), ChatMessage("assistant", "ho")])
    assert row.tokens == [BYTES.bos, *b"user\n\nhi", BYTES.eos, *b"assistant\n\n", *b"ho", BYTES.eos]
    assert ByteTokenizer().decode(row.tokens[row.prompt :]) == "ho"


def test_every_answer_is_a_row_and_a_chat_is_on_one_side(tmp_path: Path) -> None:
    found = made(tmp_path / "out", lines(tmp_path / "a.jsonl", *map(talk, range(20))), sequence_length=100)
    sides = {}
    for region in ("train", "validation"):
        texts = [ByteTokenizer().decode(tokens[prompt:]) for tokens, prompt in rows(found, region)]
        assert texts[::2] == [f"a{answer[1:]}" for answer in texts[1::2]]
        sides[region] = {int(answer[1:]) for answer in texts}
    assert sides["train"] | sides["validation"] == set(range(20)) and not sides["train"] & sides["validation"]
    assert (found.metadata["train_samples"], found.metadata["val_samples"]) == (36, 4)
    assert found.metadata["kind"] == "chat"


def test_pairs_are_chats_too_and_may_have_other_names(tmp_path: Path) -> None:
    by_name = [{"q": f"question {i}", "a": f"answer {i}"} for i in range(5)]
    found = made(
        tmp_path / "out",
        lines(tmp_path / "a.jsonl", *by_name),
        columns={"prompt": "q", "answer": "a"},
        sequence_length=64,
    )
    assert found.metadata["kind"] == "chat"
    tokens, prompt = rows(found, "train")[0]
    assert "question" in bytes(token for token in tokens[:prompt] if token < 256).decode()


def test_validation_bytes_and_counted_tokens_are_those_of_the_answers(tmp_path: Path) -> None:
    found = made(tmp_path / "out", lines(tmp_path / "a.jsonl", *map(pair, range(20))), sequence_length=50)
    kept = rows(found, "validation")
    assert found.metadata["val_bytes"] == sum(len(tokens) - prompt - 1 for tokens, prompt in kept)
    assert found.metadata["val_answer_tokens"] == sum(len(tokens) - prompt for tokens, prompt in kept)


def test_what_is_too_long_is_refused_with_its_line(tmp_path: Path) -> None:
    records = [{"prompt": "a", "answer": "b"}, {"prompt": "a", "answer": "b" * 99}]
    with pytest.raises(UserError, match=r"Shorten 1 answers:\n  .*a\.jsonl line 2: it has \d+ tokens"):
        made(tmp_path / "out", lines(tmp_path / "a.jsonl", *records), sequence_length=60, too_long="refuse")


@pytest.mark.parametrize("too_long", ["truncate", "drop"])
def test_what_is_too_long_is_cut_or_left_out_and_counted(tmp_path: Path, too_long: str) -> None:
    records: list[dict[str, str]] = [pair(i) for i in range(20)]
    records += [{"prompt": "short", "answer": "y" * 100} for _ in range(3)]
    records += [{"prompt": "x" * 100, "answer": "short"} for _ in range(2)]
    found = made(tmp_path / "out", lines(tmp_path / "a.jsonl", *records), sequence_length=60, too_long=too_long)
    kept = rows(found, "train") + rows(found, "validation")
    assert all(prompt < len(tokens) <= 60 for tokens, prompt in kept), "never a prompt without an answer"
    cut = 3 if too_long == "truncate" else 0
    assert len(kept) == 20 + cut
    assert (found.metadata["answers_cut"], found.metadata["answers_left_out"]) == (cut, 5 - cut)


def test_chats_without_an_answer_are_left_out_and_counted(tmp_path: Path) -> None:
    unanswered = [{"messages": [{"role": "user", "content": "anybody?"}]}, {"prompt": "x", "answer": "  "}]
    found = made(tmp_path / "out", lines(tmp_path / "a.jsonl", *map(pair, range(20)), *unanswered), sequence_length=60)
    assert found.metadata["chats_without_answer"] == 2
    assert found.metadata["train_samples"] + found.metadata["val_samples"] == 20


@pytest.mark.parametrize("tokenizer", ["char", "bpe"])
def test_a_vocabulary_is_learned_from_chats(tmp_path: Path, tokenizer: str) -> None:
    source = lines(tmp_path / "a.jsonl", *map(talk, range(20)))
    size = 270 if tokenizer == "bpe" else None
    found = made(tmp_path / "out", source, tokenizer=tokenizer, vocab_size=size, sequence_length=100)
    tokens, prompt = rows(found, "train")[0]
    assert found.tokenizer.decode(tokens[prompt:])[0] == "a"


BAD_CHATS = {
    "one alone": ([pair(0)], {}, "at least two chats.*there are 1"),
    "no content": ([pair(0), {"messages": [{"role": "user"}]}], {}, "line 2: 'content' of a message is missing"),
    "no list": ([pair(0), {"messages": "hello"}], {}, "line 2: 'messages' is no list such as"),
    "parts": (
        [pair(0), {"messages": [{"role": "user", "content": [{"text": "x"}]}]}],
        {},
        "line 2: 'content' of a message is no text but",
    ),
    "no answer": (
        [pair(0), {"prompt": "x"}],
        {},
        "line 2: 'answer' is missing; give the record prompt and answer, or 'messages'",
    ),
    "not a string": ([pair(0), {"prompt": "x", "answer": 4}], {}, "line 2: 'content' of a message is no text but 4"),
    "too short a row": ([pair(i) for i in range(5)], {"sequence_length": 8}, "5 answers did not fit"),
    "no answers": ([{"prompt": f"x{i}", "answer": ""} for i in range(3)], {}, "3 of 3 chats have no answer"),
    "texts": ([{"text": "x"}], {"kind": "chat"}, "line 1: 'prompt' is missing, 'answer' is missing"),
}


@pytest.mark.parametrize(("records", "settings", "sentence"), BAD_CHATS.values(), ids=BAD_CHATS.keys())
def test_bad_chats_are_refused(tmp_path: Path, records: list[Any], settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        made(tmp_path / "out", lines(tmp_path / "a.jsonl", *records), **settings)
    assert [path.name for path in tmp_path.iterdir()] == ["a.jsonl"]


def test_chats_and_text_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("text")
    with pytest.raises(UserError, match=r"separately; .*b\.txt does not hold records of chats"):
        made(tmp_path / "out", lines(tmp_path / "a.jsonl", pair(0), pair(1)), tmp_path / "b.txt")
    as_text = made(
        tmp_path / "t", lines(tmp_path / "a.jsonl", pair(0)), kind="text", columns={"text": "prompt"}, sequence_length=4
    )
    assert as_text.metadata["kind"] == "text"


def parts(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


@pytest.mark.parametrize(
    "record",
    [
        {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]},
        {"messages": [{"role": "user", "content": parts("q")}, {"role": "assistant", "content": parts("a")}]},
        {"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]},
        {"conversations": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}], "id": 3},
        {"instruction": "q", "input": "", "output": "a", "text": "the same as one text"},
        {"instruction": "q", "output": "a"},
        {"prompt": "q", "completion": "a"},
        {"prompt": [{"role": "user", "content": "q"}], "completion": [{"role": "assistant", "content": "a"}]},
        {"question": "q", "answer": "a"},
    ],
)
def test_published_layouts(record: dict[str, Any], tmp_path: Path) -> None:
    assert read_chat(record) == [ChatMessage("user", "q"), ChatMessage("assistant", "a")]
    found = made(tmp_path / "out", lines(tmp_path / "a.jsonl", record, pair(1), pair(2)))
    assert found.metadata["kind"] == "chat" and found.metadata["documents"] == 3


def test_what_stands_beside_a_chat() -> None:
    alpaca = {"instruction": "q", "input": "on this", "output": "a"}
    assert read_chat(alpaca)[0] == ChatMessage("user", "q\n\non this")
    orca = {"system": "be kind", "question": "q", "answer": "a"}
    assert [message.role for message in read_chat(orca)] == ["system", "user", "assistant"]
    with pytest.raises(UserError, match="'content' of a message is no text"):
        read_chat({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]})
