"""Records from files and from Python's text: nothing is replaced in silence, the split depends on the seed."""

import csv
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samestep.core.errors import UserError
from samestep.data.chosen_rows import ReadOptions
from samestep.data.feed import Feed
from samestep.data.fingerprint import compare_fingerprint, take_fingerprint
from samestep.data.order import Sequential
from samestep.data.order_choice import choose_order
from samestep.recipes.gan.data import (
    DOMAINS,
    PROOFS,
    STORIES,
    DataConfig,
    Domain,
    Record,
    Texts,
    _load,
    find_domain,
    groups_of,
    load,
    pydoc_records,
    register_domain,
)
from samestep.world.world import World

GENRES = ("fable", "crime", "myth")


def stories(count: int = 20) -> list[dict[str, str]]:
    return [
        {"title": f"T{n}", "genre": GENRES[n % 3], "human_story": f'Story {n}, "quoted",\nof two lines. ' + "x" * n}
        for n in range(count)
    ]


def write_csv(path: Path, rows: list[dict[str, str]]) -> str:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0].keys())
        writer.writeheader()
        writer.writerows(rows)
    return str(path)


def write_jsonl(path: Path, rows: list[Any]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def everything(texts: Texts) -> set[Record]:
    return {*texts.train.records, *texts.validation.records}


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_stories_are_read_whole(kind: str, tmp_path: Path) -> None:
    rows = [{**row, "note": ""} for row in stories()]  # other columns may be empty
    path = write_csv(tmp_path / "a.csv", rows) if kind == "csv" else write_jsonl(tmp_path / "a.jsonl", rows)
    texts = load(DataConfig(path), seed=3)
    assert texts.domain == STORIES
    assert {record.human for record in everything(texts)} == {row["human_story"] for row in rows}
    record = next(record for record in everything(texts) if "Story 7," in record.human)
    assert record.prompt == "Write a short story.\nTitle: T7\nGenre: crime\n\nStory:\n"
    assert record.group == "crime"
    assert texts.train.groups == sorted(GENRES) and texts.validation.groups == texts.train.groups
    assert texts.selection == f"20 of 20 records of {path} (stories)"


def test_proofs_are_found_by_their_columns(tmp_path: Path) -> None:
    rows = [{"problem": f"{n} {{is}} even", "human_solution": f"Since {n}.", "source": "own"} for n in range(4)]
    texts = load(DataConfig(write_jsonl(tmp_path / "a.jsonl", rows)), seed=0)
    assert texts.domain == PROOFS
    assert any("Problem:\n2 {is} even\n" in record.prompt for record in everything(texts))


def test_a_byte_order_mark_is_no_part_of_a_name(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(b"\xef\xbb\xbf" + Path(write_csv(tmp_path / "b.csv", stories(3))).read_bytes())
    assert len(everything(load(DataConfig(str(path)), seed=0))) == 3


def test_long_fields_are_read_and_the_limit_is_put_back(tmp_path: Path) -> None:
    before = csv.field_size_limit()
    rows = stories(3)
    rows[0]["human_story"] = "y" * (2 * before)
    texts = load(DataConfig(write_csv(tmp_path / "a.csv", rows)), seed=0)
    assert max(len(record.human) for record in everything(texts)) == 2 * before
    assert csv.field_size_limit() == before


def problems(path: Path, content: bytes | str) -> str:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError) as caught:
        load(DataConfig(str(path)), seed=0)
    return str(caught.value)


HEADER = "title,genre,human_story\n"


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ("", "is empty"),
        (HEADER, "has none"),
        (
            HEADER + 'a,b,"c\nd"\n,b,c\na, ,\n',
            "row 2 (line 4): 'title' is missing\n  row 3 (line 5): 'human_story' is missing",
        ),
        (
            HEADER + "a,b,c\na,b\n\na,b,c,d\n",
            "row 2 (line 3): it has 2 values for 3 columns\n  row 3 (line 5): it has 4 values",
        ),
        ("title,genre,title,human_story,genre\na,b,c,d,e\n", "the header: it has 'title', 'genre' twice"),
        (
            HEADER.encode() + b"a,b,c\na,\xe9,c\n\xff,b,c\n",
            "line 3: it is not UTF-8 at byte 3\n  line 4: it is not UTF-8 at byte 1",
        ),
        (HEADER + 'a,b,c\na,b,"c\nd,e,f\n', "row 2 (line 3): it cannot be read: unexpected end of data"),
        (HEADER + 'a,b,"c"x\n', "row 1 (line 2): it cannot be read: ',' expected after '\"'"),
        ("name,text\na,b\n", "it has 'name', 'text'"),
    ],
)
def test_a_bad_csv_file_is_named_by_row(content: bytes | str, problem: str, tmp_path: Path) -> None:
    sentence = problems(tmp_path / "a.csv", content)
    assert problem in sentence and str(tmp_path / "a.csv") in sentence


def test_a_bad_jsonl_file_is_named_by_line(tmp_path: Path) -> None:
    good = '{"title": "a", "genre": "b", "human_story": "c"}'
    lines = [
        good,
        good[:-1],
        "",
        "[1]",
        good.replace('"c"', "3"),
        good.replace('"title": "a", ', ""),
        good.replace('"c"', "null"),
        good.replace('"c"', '"\\ud800"'),
        good.replace("genre", "title"),
    ]
    sentence = problems(tmp_path / "a.jsonl", "\n".join(lines).encode() + b"\n\xe9\n")
    listed = (
        "line 2: it is not JSON: Expecting ',' delimiter at column 48",
        'line 4: it is no JSON object such as {"text": ...}',
        "line 5: 'human_story' is no text but 3",
        "line 6: 'title' is missing; it has 'genre', 'human_story'",
        "line 7: 'human_story' is missing",
        "line 8: 'human_story' holds half of a surrogate pair",
        "line 9: it cannot be read as JSON: the key 'title' comes twice",
        "line 10: it is not UTF-8 at byte 1",
    )
    head = f"Fix 8 of 9 records of {tmp_path / 'a.jsonl'}, or leave them out with data.skip_invalid=true:"
    assert sentence.splitlines() == [head, *(f"  {line}" for line in listed)]


@pytest.mark.parametrize("line", ["1" * 5000, "[" * 100_000])
def test_json_that_python_cannot_read(line: str, tmp_path: Path) -> None:
    assert "line 1: it cannot be read as JSON: " in problems(tmp_path / "a.jsonl", line)


def test_of_many_problems_the_first_are_listed(tmp_path: Path) -> None:
    sentence = problems(tmp_path / "a.csv", HEADER + "a,b,c\n" + ",b,c\n" * 25)
    assert sentence.count("'title' is missing") == 20 and sentence.endswith("and 5 more problems: 5 about texts")


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.pdf").write_text("%PDF")
    with pytest.raises(UserError, match=r"ends with \.jsonl, \.ndjson"):
        load(DataConfig(str(tmp_path / "a.pdf")), seed=0)
    with pytest.raises(UserError, match="does not exist"):
        load(DataConfig(str(tmp_path / "b.csv")), seed=0)


def test_length_filters_say_what_they_left_out(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", stories())
    lengths = sorted(len(row["human_story"]) for row in stories())
    texts = load(DataConfig(path, min_story_length=lengths[4], max_story_length=lengths[-3], limit=10), seed=0)
    kept = everything(texts)
    assert len(kept) == 10 and all(lengths[4] <= len(record.human) <= lengths[-3] for record in kept)
    assert texts.selection == (
        f"10 of 20 records of {path} (stories); left out: 4 shorter than {lengths[4]} characters, "
        f"4 beyond data.limit; 2 of 20 human texts are longer than {lengths[-3]} characters and were dropped "
        "(data.too_long=drop)"
    )
    with pytest.raises(UserError, match=r"0 of 20 records of .*; left out: 20 shorter than 500 characters\."):
        load(DataConfig(path, min_story_length=500), seed=0)


def test_texts_that_are_too_long_are_cut_or_refused(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", stories())
    most = max(len(row["human_story"]) for row in stories()) - 2
    cut = load(DataConfig(path, max_story_length=most, too_long="truncate"), seed=0)
    assert {record.human for record in everything(cut)} == {row["human_story"][:most] for row in stories()}
    assert cut.selection.endswith(
        f"2 of 20 human texts are longer than {most} characters and were cut (data.too_long=truncate)"
    )
    with pytest.raises(UserError, match=rf"Fix 2 of 20 .*\n  row 19 .*: it has {most + 1} characters"):
        load(DataConfig(path, max_story_length=most, too_long="refuse"), seed=0)
    with pytest.raises(UserError, match=r"a paragraph of .* is too long"):
        load(DataConfig(max_story_length=9, too_long="refuse"), seed=0)


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_a_story_without_a_genre_is_one_too(kind: str, tmp_path: Path) -> None:
    rows = [{**row, "genre": ""} for row in stories(3)] + stories(3)[:1]
    path = write_csv(tmp_path / "a.csv", rows) if kind == "csv" else write_jsonl(tmp_path / "a.jsonl", rows)
    texts = load(DataConfig(path, "creative_writing"), seed=0)
    assert texts.domain == STORIES and len(everything(texts)) == 4
    assert sorted(record.group for record in everything(texts)) == ["fable", *["no genre"] * 3]
    assert {record.prompt for record in everything(texts) if record.group == "no genre"} == {
        f"Write a short story.\nTitle: T{n}\n\nStory:\n" for n in range(3)
    }
    without = [{name: row[name] for name in ("title", "human_story")} for row in stories(3)]
    assert load(DataConfig(write_jsonl(tmp_path / "b.jsonl", without)), seed=0).train.groups == ["no genre"]


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"min_story_length": 0}, "min_story_length must be a whole number of at least 1, not 0"),
        ({"min_story_length": 9, "max_story_length": 8}, "max_story_length to data.min_story_length=9 or more"),
        ({"validation_fraction": 1.0}, "validation_fraction must be a number above 0 and below 1, not 1.0"),
        ({"validation_fraction": 0.5, "test_fraction": 0.5}, "less than 1 together"),
        ({"limit": 1}, "limit must be a whole number of at least 2 or null, not 1"),
    ],
)
def test_settings_out_of_range(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        DataConfig(**settings)


def test_the_split_is_by_record_and_by_seed(tmp_path: Path) -> None:
    rows = stories(200)
    for n in range(100, 200):  # each story twice, under two titles
        rows[n]["human_story"] = rows[n - 100]["human_story"]
    config = DataConfig(write_csv(tmp_path / "a.csv", rows), validation_fraction=0.25)
    texts, again, other = load(config, seed=1), load(config, seed=1), load(config, seed=2)
    assert len(texts.train) + len(texts.validation) == 200 and len(texts.validation) == 50
    assert {r.human for r in texts.train.records}.isdisjoint(r.human for r in texts.validation.records)
    assert texts.validation.records == again.validation.records != other.validation.records
    shuffled = DataConfig(write_csv(tmp_path / "b.csv", rows[::-1]), validation_fraction=0.25)
    assert set(load(shuffled, seed=1).validation.records) == set(texts.validation.records), "whatever their order"
    two = load(DataConfig(config.path, limit=2, validation_fraction=0.9), seed=1)
    assert (len(two.train), len(two.validation)) == (1, 1), "something is left to train on"


def test_a_test_part_is_in_neither_of_the_others(tmp_path: Path) -> None:
    config = DataConfig(write_csv(tmp_path / "a.csv", stories(40)), validation_fraction=0.25)
    whole, split = load(config, seed=1), load(replace(config, test_fraction=0.2), seed=1)
    assert whole.test is None and split.test is not None
    assert split.validation.records == whole.validation.records
    assert set(split.train.records) | set(split.test.records) == set(whole.train.records)
    assert (len(split.train), len(split.validation), len(split.test)) == (22, 10, 8)


def test_python_s_own_text() -> None:
    texts = load(DataConfig(), seed=0)
    assert texts.name == "pydoc_data.topics" and len(everything(texts)) > 400
    record = next(record for record in everything(texts) if record.human.startswith("Assignment is defined recur"))
    assert record.prompt == "Write a paragraph of Python's reference on assignment.\n\n"
    assert all(record.human.endswith(".") and "\n" not in record.human for record in everything(texts))
    with pytest.raises(UserError, match=r"Name the file with data\.path"):
        load(DataConfig(domain="stories"), seed=0)


def test_another_python_s_text_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    for function in (_load, pydoc_records):  # as in several processes
        monkeypatch.setattr(f"samestep.recipes.gan.data.{function.__name__}", function.__wrapped__)
    options = ReadOptions(seed=0)
    before = take_fingerprint(load(DataConfig(), seed=0).train, options)
    assert not compare_fingerprint(before, load(DataConfig(), seed=0).train, options).difference
    topics = sys.modules["pydoc_data.topics"].topics
    monkeypatch.setitem(topics, "assignment", topics["assignment"].replace("recursively", "otherwise"))
    assert "has changed" in compare_fingerprint(before, load(DataConfig(), seed=0).train, options).difference


def test_a_changed_file_is_noticed(tmp_path: Path) -> None:
    options = ReadOptions(seed=0)
    path = write_csv(tmp_path / "a.csv", stories())
    before = take_fingerprint(load(DataConfig(path), seed=0).train, options)
    write_csv(tmp_path / "a.csv", [{**row, "title": "other"} for row in stories()])
    assert "a.csv has changed" in compare_fingerprint(before, load(DataConfig(path), seed=0).train, options).difference


@pytest.mark.parametrize("workers", [0, 1])
def test_a_feed_leads_back_to_its_records(workers: int, tmp_path: Path) -> None:
    rows = load(DataConfig(write_csv(tmp_path / "a.csv", stories())), seed=0).train
    feed = Feed(
        rows, Sequential(len(rows), 4), World.single(), micro_rows=4, length=4, collate=groups_of, workers=workers
    )
    batch = feed[1].batches[0]
    records = rows.of_batch(batch["ids"])
    assert records == rows.records[4:8]
    assert [rows.groups[number] for number in batch["group"].tolist()] == [record.group for record in records]


def test_own_domains(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("samestep.recipes.gan.data.DOMAINS", DOMAINS.copy())
    poems = Domain("poems", prompt_fields=("subject",), human_field="poem", template="On {subject}:\n")
    assert register_domain(poems) is register_domain(poems)
    path = write_jsonl(tmp_path / "a.jsonl", [{"subject": f"s{n}", "poem": f"p{n}"} for n in range(4)])
    assert load(DataConfig(path), seed=0).domain == poems
    assert {record.group for record in everything(load(DataConfig(path), seed=0))} == {"poems"}
    with pytest.raises(UserError, match="another one called 'poems'"):
        register_domain(Domain("poems", ("subject",), "poem", "{subject}"))


@pytest.mark.parametrize("template", ["{subject} {other}", "nothing", "{subject", "{0}", "{subject:{poem}}"])
def test_a_template_names_the_columns_of_the_prompt(template: str) -> None:
    with pytest.raises(UserError, match="template of domain 'poems'"):
        Domain("poems", ("subject",), "poem", template)


def test_a_prompt_does_not_hold_the_answer() -> None:
    with pytest.raises(UserError, match="it is the answer"):
        Domain("poems", ("subject", "poem"), "poem", "{subject} {poem}")


def test_which_domain() -> None:
    both = {*STORIES.columns, *PROOFS.columns}
    with pytest.raises(UserError, match=r"Set data\.domain; f has the columns of 'stories', 'proofs'"):
        find_domain(both, "f")
    assert find_domain(both, "f", "proofs") == PROOFS
    with pytest.raises(UserError, match="'pydoc', 'creative_writing', or to null; it is 'x'"):
        find_domain(both, "f", "x")
    with pytest.raises(UserError, match="lacks 'human_story', and has 'title'"):
        find_domain({"title"}, "f", "stories")


def test_several_files_are_drawn_by_their_weights(tmp_path: Path) -> None:
    many, few = write_csv(tmp_path / "a.csv", stories(20)), write_jsonl(tmp_path / "b.jsonl", stories(26)[20:])
    assert load(DataConfig([many, few]), seed=0).train.order() is None
    texts = load(DataConfig([f"{many}:1", f"{few}:1"]), seed=0)
    records = texts.train.records
    order = choose_order(texts.train, texts.train.order(), 8, 0)
    drawn = [records[index].source for step in range(300) for _, index in order.ids(step)]
    assert sum(drawn) / len(drawn) == pytest.approx(0.5, abs=0.03)
    assert len(everything(texts)) == 26 and f"{many}, {few}" in texts.selection
