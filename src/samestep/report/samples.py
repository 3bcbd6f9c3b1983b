"""Samples of a run in a page, by the kind that they were written with. What is read here may be damaged, or hostile:
texts are escaped, pictures are read only from the run's folder of them, and all of it is bounded.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from samestep.core.json_files import Json
from samestep.core.pages.html import Html, element, note, png_image, png_size, section
from samestep.core.pages.tables import Column, Table
from samestep.core.rundir import RunDir
from samestep.report.shown import shown_sample
from samestep.train.record.damaged_files import Reader, Types
from samestep.train.record.samples import MOST_HITS, MOST_TEXT, MOST_TEXTS, TIE, TYPES

READ = 16 << 20
"""Bytes at the end of samples.jsonl that are read."""
MOST_NAMES, MOST_STEPS, MOST_ROWS = 32, 8, 8
"""Names that are shown, steps of each, the newest and some before it, and samples of a step."""
MOST_PICTURE, MOST_PICTURES, MOST_PIXELS = 1 << 20, 3 << 20, 4096
"""Bytes of one picture and of all in a page, and pixels of a side."""
_WIDTH = 60
"""Letters of a sequence on a line."""
_PLACE: Types = {"stage": str, "step": int, "name": str, "kind": str}
_HIT: Types = {"text": str, "score": float, "relevant": bool, "ranks": dict}
Row = Mapping[str, Any]


@dataclass(frozen=True)
class NamedSamples:
    """The samples of one name in a stage."""

    stage: str
    name: str
    steps: Mapping[int, Sequence[Row]]
    """The newest step first, and how many rows each has at most."""
    left_out: int = 0
    """Steps that are not shown."""


def read_samples(rundir: RunDir, reader: Reader) -> list[NamedSamples]:
    """What a page shows of samples.jsonl; what cannot be used is named by the reader."""
    found: dict[tuple[str, str], dict[int, list[Row]]] = {}
    for row in sample_rows(rundir, reader):
        found.setdefault((row["stage"], row["name"]), {}).setdefault(row["step"], []).append(row)
    pictures = _Pictures(rundir, reader)
    groups = []
    for (stage, name), steps in list(found.items())[:MOST_NAMES]:
        chosen = _spread(sorted(steps, reverse=True))
        read = {step: [_read_row(rundir, row, reader, pictures) for row in steps[step][:MOST_ROWS]] for step in chosen}
        groups.append(NamedSamples(stage, name, read, len(steps) - len(chosen)))
    return groups


def sample_rows(rundir: RunDir, reader: Reader) -> Iterator[dict[str, Json]]:
    """The rows at the end of samples.jsonl that say what they are; of their fields only these are checked."""
    for row in reader.rows(rundir.samples, _PLACE, READ):
        if any(row.get(name) is None for name in _PLACE):
            reader.add(rundir.samples, "rows in it do not say what they are")
        elif row["kind"] not in TYPES:
            reader.add(rundir.samples, f"it has samples of an unknown kind: {row['kind'][:40]}")
        else:
            yield row


def _spread(steps: Sequence[int]) -> list[int]:
    """The newest step and others, evenly spread over all of them."""
    last = min(len(steps), MOST_STEPS) - 1
    return [steps[number * (len(steps) - 1) // last] for number in range(last + 1)] if last > 0 else list(steps)


def _read_row(rundir: RunDir, row: Row, reader: Reader, pictures: "_Pictures") -> Row:
    """A row whose fields have the types that they should have."""
    read: dict[str, Json] = reader.typed(rundir.samples, dict(row), TYPES[row["kind"]])
    if row["kind"] == "hits":
        read["hits"] = reader.objects(rundir.samples, read.get("hits"), _HIT)[:MOST_HITS]
    if row["kind"] == "image":
        read["content"], read["missing"] = pictures.read(read.get("image") or "")
    return read


class _Pictures:
    """Reads pictures until the page has enough of them."""

    def __init__(self, rundir: RunDir, reader: Reader) -> None:
        self._rundir, self._reader, self._room = rundir, reader, MOST_PICTURES

    def read(self, name: str) -> tuple[bytes, str]:
        """A picture; or why it is not shown."""
        folder = self._rundir.sample_images("").resolve()
        try:
            path = (self._rundir.path / name).resolve()
            if not path.is_relative_to(folder) or not path.is_file():
                return b"", self._named(name, "is not there")
            size = path.stat().st_size
            if size > min(self._room, MOST_PICTURE):
                return b"", f"{name} is left out: it has {size / 1e6:.1f} MB"
            content = path.read_bytes()
        except (OSError, ValueError):  # a name that no file can have
            return b"", self._named(name, "cannot be read")
        if not 0 < max(png_size(content)) <= MOST_PIXELS:
            return b"", self._named(name, "is no PNG file of a usual size")
        self._room -= size
        return content, ""

    def _named(self, name: str, why: str) -> str:
        self._reader.add(self._rundir.samples, f"the picture {name[:80]} {why}")
        return f"{name[:80]} {why}"


def shown_samples(runs: Sequence[tuple[str, Sequence[NamedSamples]]]) -> Iterator[Html]:
    """A section for each run that has samples."""
    for run, groups in runs:
        if groups:
            title = f"Samples of {run}" if len(runs) > 1 else "Samples"
            yield section(title, *(part for group in groups for part in _group(group)))


def _group(group: NamedSamples) -> Iterator[Html]:
    """The newest step open, older ones folded."""
    yield element("h3", f"{_text(group.name)} (stage {_text(group.stage)})")
    for place, (step, rows) in enumerate(group.steps.items()):
        opened = {"open": ""} if place == 0 else {}
        shown = [element("div", *_SHOW[row["kind"]](row), kind="sample") for row in rows]
        yield element("details", element("summary", f"step {step:,}"), *shown, **opened)
    if group.left_out:
        yield note(f"{group.left_out:,} more steps are in samples.jsonl")


def _show_text(row: Row) -> Iterator[Html]:
    prompt = [element("span", _text(row.get("prompt")), kind="faint")] if row.get("prompt") else []
    yield element("pre", *prompt, _text(row.get("text")), kind="sample")


def _show_pair(row: Row) -> Iterator[Html]:
    if row.get("prompt"):
        yield element("pre", _text(row["prompt"]).rstrip(), kind="sample faint")
    texts = _mapping(row.get("texts"))
    scores, verdicts = _mapping(row.get("scores")), (row.get("verdicts") or [])[:2]
    columns = [
        element("div", element("b", _text(who) + (f"  {_number(scores[who])}" if who in scores else "")), _text(text))
        for who, text in texts.items()
    ]
    yield element("div", *columns, kind="columns")
    names = [_text(who) for who in texts]
    said = [f"{_verdict(verdict)} (with {first} first)" for verdict, first in zip(verdicts, names, strict=False)]
    if said:
        yield note("the judge preferred ", ", ".join(said))


def _verdict(verdict: Json) -> str:
    if verdict is None:
        return "no answer that could be read"
    return "neither" if verdict == TIE else _text(verdict)


def _show_alignment(row: Row) -> Iterator[Html]:
    """Lines below each other; letters that differ from those of the first sequence are marked."""
    sequences, recovery = _mapping(row.get("sequences")), _mapping(row.get("recovery"))
    if row.get("title"):
        yield note(_text(row["title"]))
    texts = {_text(name)[:24]: _text(text) for name, text in sequences.items()}
    first, wide = next(iter(texts.values()), ""), max(map(len, texts), default=0)
    lines: list[str] = []
    for start in range(0, max(map(len, texts.values()), default=0), _WIDTH):
        lines.append(f"{'':{wide}}  {start + 1}\n")
        for name, letters in texts.items():
            part = zip_longest(letters[start : start + _WIDTH], first[start : start + _WIDTH], fillvalue="")
            lines += [f"{name:{wide}}  ", *_marked(part), "\n"]
    yield element("pre", *lines, kind="sample aligned")
    if recovery:
        shares = (f"{_text(name)} {_number(share)}" for name, share in recovery.items())
        yield note(f"recovery of {next(iter(texts), '')}: ", ", ".join(shares))


def _marked(letters: Iterator[tuple[str, str]]) -> Iterator[str]:
    """Neighbours that differ in one mark."""
    run = ""
    for letter, wanted in letters:
        if letter != wanted:
            run += letter
            continue
        if run:
            yield element("mark", run)
        run = ""
        yield letter
    if run:
        yield element("mark", run)


def _show_hits(row: Row) -> Iterator[Html]:
    hits = row["hits"]
    others = list(dict.fromkeys(who for hit in hits for who in _mapping(hit.get("ranks"))))[:MOST_TEXTS]
    columns = [Column("", is_number=True), Column("score", is_number=True), Column("relevant")]
    columns += [*(Column(f"rank: {_text(who)}", is_number=True) for who in others), Column("passage")]
    rows = []
    for place, hit in enumerate(hits, 1):
        ranks = _mapping(hit.get("ranks"))
        relevant = element("b", "yes") if hit.get("relevant") else ""
        start = [str(place), _number(hit.get("score")), relevant, *(_number(ranks.get(who)) for who in others)]
        rows.append([*start, _text(hit.get("text"), 400)])
    yield element("p", element("b", _text(row.get("query"))))
    yield element("div", Table(columns, rows).html("ruled"), kind="scroll")


def _show_explanation(row: Row) -> Iterator[Html]:
    before, token = element("span", _text(row.get("before")), kind="faint"), element("mark", _text(row.get("token")))
    yield element("div", before, token, kind="code")
    error = f"  (error {_number(row['error'])})" if row.get("error") is not None else ""
    yield element("pre", _text(row.get("explanation")), element("span", error, kind="faint"), kind="sample")


def _show_image(row: Row) -> Iterator[Html]:
    caption = _text(row.get("caption"))
    if row["content"]:
        yield png_image(row["content"], "sample", caption)
    else:
        yield element("p", _text(row["missing"]), kind="trouble")
    if caption:
        yield element("p", caption, kind="note")


_SHOW: Mapping[str, Callable[[Row], Iterator[Html]]] = {
    "text": _show_text,
    "pair": _show_pair,
    "alignment": _show_alignment,
    "hits": _show_hits,
    "explanation": _show_explanation,
    "image": _show_image,
}


def _text(value: Json, most: int = MOST_TEXT + 100) -> str:
    """A text of a run as a page shows it."""
    text = "" if value is None else shown_sample(str(value)[: most + 1])
    return text if len(text) <= most else f"{text[:most]} ..."


def _number(value: Json) -> str:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:.4g}" if is_number else _text(value, 20)


def _mapping(value: Json) -> dict[str, Json]:
    return dict(list(value.items())[:MOST_TEXTS]) if isinstance(value, dict) else {}
