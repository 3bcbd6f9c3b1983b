"""Samples of every kind in a page: escaped, bounded, and read from the run's own folder alone."""

import base64
from pathlib import Path
from typing import Any

import pytest
import torch

from page_parts import PageParts
from report.made_runs import lines, make_run
from samestep import samples
from samestep.core.rundir import RunDir
from samestep.report import samples as drawing
from samestep.report.html_report import report_page
from samestep.report.run_report import read_report
from samestep.train.logging.images import image_array, png_file
from train.record.test_samples import EVERY

HOSTILE = "</script><img src=x onerror=alert(1)>"
PNG = png_file(image_array("a", torch.zeros(3, 4, 5)))


def page_of(run: RunDir) -> str:
    return report_page([read_report(run)])


def write(run: RunDir, found: list[dict[str, Any]], step: int = 1) -> None:
    lines(run.samples, [{"stage": "fit", "step": step, "name": row["kind"], **row} for row in found])


def every(image: str = "samples/fit/a.png") -> list[dict[str, Any]]:
    rows = [{"kind": sample.kind, **sample.fields()} for sample in EVERY]
    return [{**row, "image": image} if row["kind"] == "image" else row for row in rows]


def picture(run: RunDir, content: bytes, name: str = "a.png") -> None:
    run.sample_images("fit").mkdir(parents=True, exist_ok=True)
    (run.sample_images("fit") / name).write_bytes(content)


def test_every_kind_is_drawn(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    picture(run, PNG)
    write(run, every())
    parts = PageParts(page_of(run))
    assert parts.attributes["img", "src"] == [f"data:image/png;base64,{base64.b64encode(PNG).decode()}"]
    text = "\n".join(text for kind in ("pre", "div", "p", "td", "span", "mark", "b") for text in parts.texts[kind])
    for shown in ("an answer", "two", "the judge preferred human (with human first), no answer", "0.6667", "a passage"):
        assert shown in text
    assert "A" in parts.texts["mark"], "the residue that differs"
    assert not [each for each in parts.texts["p"] if "samples.jsonl" in each], "nothing is damaged"


def test_the_newest_step_is_open_and_older_ones_are_folded(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rows = [{"stage": "fit", "step": n, "name": "a", "kind": "text", "text": f"text {n}"} for n in range(1, 101)]
    lines(run.samples, rows)
    page = page_of(run)
    assert len(PageParts(page).attributes["details", "open"]) == 1
    assert page.index("text 100") < page.index("text 1<")
    assert page.count('<pre class="sample">') == drawing.MOST_STEPS
    assert "92 more steps are in samples.jsonl" in page


def hostile(value: Any) -> Any:
    """The same shape with another text everywhere."""
    if isinstance(value, dict):
        return {HOSTILE: HOSTILE, **{name: hostile(inner) for name, inner in value.items()}}
    return [hostile(inner) for inner in value] if isinstance(value, list) else HOSTILE


def test_texts_stay_texts(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rows = [{**hostile(row), "stage": HOSTILE, "step": 1, "name": HOSTILE, "kind": row["kind"]} for row in every()]
    lines(run.samples, rows)
    parts = PageParts(page_of(run))
    assert "img" not in parts.names and parts.names.count("script") == 2
    assert not [name for _, name in parts.attributes if name.startswith("on") or name in ("style", "src", "href")]
    assert any(HOSTILE in text for text in parts.texts["pre"])


def test_what_is_damaged_is_named_and_the_rest_is_shown(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    for value in (None, 3, "text", [], [[{}]], {}, {"a": {"b": []}}, {"a": None}, float("nan")):
        fields = {name for row in every() for name in row} - {"kind"}
        write(run, [{"kind": kind, **dict.fromkeys(fields, value)} for kind in drawing.TYPES])
        assert "<h2>Samples</h2>" in page_of(run), value
    write(run, [{"kind": "dance"}, {"kind": "text", "text": "still here"}])
    with open(run.samples, "a") as file:
        file.write('{"stage": "fit", "st\n[1]\n{"stage": "fit"}\n')
    page = page_of(run)
    assert "still here" in page and "unknown kind: dance" in page
    run.samples.unlink()
    run.samples.mkdir()
    assert "samples.jsonl: it cannot be read" in page_of(run)


@pytest.mark.parametrize("where", ["../../secret.png", "/etc/passwd", "samples/fit/link.png", "samples/fit/gone.png"])
def test_a_picture_from_elsewhere_is_not_shown(tmp_path: Path, where: str) -> None:
    run = make_run(tmp_path / "runs")
    (tmp_path / "secret.png").write_bytes(PNG)
    picture(run, PNG)
    (run.sample_images("fit") / "link.png").symlink_to(tmp_path / "secret.png")
    write(run, every(where))
    page = page_of(run)
    assert "data:image/png" not in page
    assert f"the picture {where} is not there" in page


@pytest.mark.parametrize(
    "content", [b"GIF89a" + bytes(99), PNG[:16] + b"\x7f" * 8 + PNG[24:], PNG[:20], PNG + bytes(1 << 20)]
)
def test_a_picture_that_is_none_or_too_large_is_named(tmp_path: Path, content: bytes) -> None:
    run = make_run(tmp_path)
    picture(run, content)
    write(run, every())
    page = page_of(run)
    assert "data:image/png" not in page
    assert "samples/fit/a.png is no PNG" in page or "samples/fit/a.png is left out: it has 1.0 MB" in page


def test_many_large_pictures_and_long_texts_stay_a_small_page(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    rows = []
    for number in range(30):
        picture(run, PNG + bytes(400_000), f"{number}.png")
        rows += [{"kind": "image", "step": number, "image": f"samples/fit/{number}.png"}]
        rows += [{"kind": "text", "step": number, "text": "x" * 100_000} for _ in range(20)]
    write(run, rows)
    assert len(page_of(run)) < 5_000_000


def test_secrets_and_home_folders_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "very-private-words")
    run, token = make_run(tmp_path), "hf_" + "a1B2" * 8
    text = f"see https://example.org/a and /home/anna/texts, {token} or very-private-words"
    write(run, [{"kind": "text", **samples.Text(text).fields()}])
    page = page_of(run)
    assert "see https://example.org/a and ~/texts, (hidden) or (hidden)" in page
