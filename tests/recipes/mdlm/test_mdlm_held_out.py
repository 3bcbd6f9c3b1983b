"""`samestep evaluate RUN` without tasks: the metrics of what the run held back, on any number of ranks."""

import json
from pathlib import Path
from typing import Any

import pytest

from samestep.cli.main import main
from samestep.recipes.mdlm.corpus import DataConfig, load
from samestep.recipes.mdlm.held_out import measure_held_out
from samestep.train.trained.trained_model import open_trained
from samestep.world.world import World
from toys import run_on_ranks

pytestmark = pytest.mark.timeout(300)


def train(folder: Path, preset: str, *settings: str) -> dict[str, Any]:
    """The last validation of a run."""
    common = [f"out={folder}", "name=run", "log.quiet=true", "log.tensorboard=false", "log.samples=0", "max_steps=4"]
    assert main(["train", "mdlm", f"--preset={preset}", *common, *settings]) == 0
    rows = map(json.loads, (folder / "run" / "metrics.jsonl").read_text().splitlines())
    return [row for row in rows if "val/nll" in row][-1]


def evaluated(folder: Path) -> dict[str, Any]:
    file = folder / "found.json"
    assert main(["evaluate", str(folder / "run"), f"--out={file}", "--device=cpu"]) == 0
    found: dict[str, Any] = json.loads(file.read_text())
    file.unlink()
    return found


@pytest.mark.parametrize("preset", ["verify", "verify-sft"])
def test_without_a_test_part_it_is_validation_again(preset: str, tmp_path: Path) -> None:
    known = train(tmp_path, preset, "pt_checkpoints=false")
    found = evaluated(tmp_path)
    assert found["part"] == "validation" and "which chose the best weights" in found["notes"][0]
    for name in ("nll", "bits_per_byte", "perplexity"):
        assert found[name] == pytest.approx(known[f"val/{name}"], rel=1e-6)


def worker(folder: Path) -> None:
    world = World.join(device="cpu", timeout=60)
    found = measure_held_out(open_trained(str(folder / "run")), None, world)
    (folder / f"{world.rank}.json").write_text(json.dumps(found))
    world.leave()


def test_the_test_part_is_measured_alike_on_two_ranks(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    text = tmp_path / "text.txt"
    text.write_text("".join(f"line {number} of a text; " for number in range(100)))
    train(tmp_path, "verify", f"data.path={text}", "data.limit=null", "data.test_fraction=0.2")
    found = evaluated(tmp_path)
    size = text.stat().st_size
    assert (found["part"], found["tokens"]) == ("test", round(0.2 * size))
    assert found["notes"] == ["the test part, by which nothing was chosen"]
    shown = " ".join(capfd.readouterr().out.split())
    assert "part test" in shown and "by which nothing was chosen" in shown
    run_on_ranks(worker, 2, tmp_path, logs=tmp_path / "logs")
    for rank in (0, 1):
        alone = {name: value for name, value in found.items() if name != "samestep"}
        assert json.loads((tmp_path / f"{rank}.json").read_text()) == alone
    assert main(["evaluate", str(tmp_path / "run"), "--device=cpu", "data.test_fraction=0.5"]) == 2
    assert "Leave out data.test_fraction: what was held back" in capfd.readouterr().err
    text.write_text(text.read_text().replace("line", "LINE"))
    assert main(["evaluate", str(tmp_path / "run"), "--device=cpu"]) == 2
    assert "Bring back the data that" in capfd.readouterr().err


def chats(number: int) -> dict[str, str]:
    return {"prompt": f"how much is {number} and {number}?", "answer": f"it is {2 * number}"}


@pytest.mark.parametrize("kind", ["text", "chat"])
def test_the_test_part_of_a_prepared_folder(kind: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    rows = [chats(n) if kind == "chat" else {"text": f"document {n} of a few, and its end"} for n in range(40)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    prepare = ["data", "prepare", str(tmp_path / "a.jsonl"), "--sequence_length=48"]
    assert main([*prepare, f"--out={tmp_path / 'without'}"]) == 0
    assert main([*prepare, f"--out={tmp_path / 'tokens'}", "--test_fraction=0.2"]) == 0
    assert "for a test" in " ".join(capfd.readouterr().out.split())
    without, corpus = (load(DataConfig(str(tmp_path / name))) for name in ("without", "tokens"))
    assert without.test is None and corpus.test is not None
    assert len(corpus.validation) == len(without.validation), "validation is what it was"
    places = range(len(corpus.validation))
    assert all((corpus.validation[n]["tokens"] == without.validation[n]["tokens"]).all() for n in places)
    assert corpus.train.size + corpus.test.size == without.train.size
    train(tmp_path, "verify-sft" if kind == "chat" else "verify", f"data.path={tmp_path / 'tokens'}", "data.limit=null")
    found = evaluated(tmp_path)
    assert found["part"] == "test"
    assert found["rows" if kind == "chat" else "tokens"] == (8 if kind == "chat" else corpus.test.size)
    assert found["nll"] > 0 and found["bits_per_byte"] > 0
    data = [f"--data_dir={tmp_path / 'tokens'}", "data.test_fraction=0.1", f"out={tmp_path}"]
    assert main(["train", "mdlm", *data]) == 2
    assert "data.test_fraction has no effect: a prepared folder has its own" in capfd.readouterr().err


def test_a_text_of_one_document_is_split_by_place(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_text("a text to prepare. " * 60)
    prepare = ["data", "prepare", str(tmp_path / "a.txt"), f"--out={tmp_path / 'tokens'}", "--sequence_length=16"]
    assert main([*prepare, "--test_fraction=0.2"]) == 0
    corpus = load(DataConfig(str(tmp_path / "tokens")))
    sizes = [part.size for part in (corpus.train, corpus.test, corpus.validation) if part]
    assert sizes == [798, 228, 115], "the last one with the end token"
    assert corpus.test_bytes_per_token == 1
    assert main([*prepare, "--overwrite", "--test_fraction=0.95"]) == 2
    assert "less than 1 together" in capfd.readouterr().err
