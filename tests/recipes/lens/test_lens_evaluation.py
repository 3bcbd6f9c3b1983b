"""The evaluation of a lens: metrics by hand, the last stage of a run, and `samestep evaluate`."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lens_runs import rows_of, train

from samestep import CausalConfig, CausalTransformer, World
from samestep.cli.main import main
from samestep.core.errors import UserError
from samestep.core.json_files import read_json
from samestep.kit.language_model import ByteModel
from samestep.recipes.lens.config import EvaluationConfig
from samestep.recipes.lens.evaluation import RECORDS, RESULTS, visible
from samestep.recipes.lens.language_model import context_of
from samestep.recipes.lens.measuring import (
    BASELINES,
    METHODS,
    Measuring,
    SpreadRows,
    compute_values,
    explained_variance,
    fit,
    results_of,
    variance_of,
)
from samestep.recipes.lens.network import Lens
from samestep.recipes.lens.parts import LensShape

CPU = torch.device("cpu")


class Table:
    """Rows that are their own number."""

    def __len__(self) -> int:
        return 10

    def rows(self, indices: np.ndarray) -> dict[str, torch.Tensor]:
        """The numbers."""
        return {"value": torch.from_numpy(np.asarray(indices))}


def evaluate(run: Path, *options: str) -> dict[str, Any]:
    """What `samestep evaluate` writes."""
    out = run.parent / "out.json"
    assert main(["evaluate", str(run), "--which", "best", "--out", str(out), *options]) == 0
    found = json.loads(out.read_text())
    assert isinstance(found, dict)
    return found


@pytest.fixture(scope="module", params=["verify", "verify-live"])
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a dump and copies of the model, and one with neither, but with adapters."""
    return train(tmp_path_factory.mktemp("lens"), request.param)


def test_metrics_by_hand() -> None:
    error, kl = torch.ones(2, len(METHODS)), torch.ones(2, len(METHODS))
    where = {name: number for number, name in enumerate(METHODS)}
    error[:, where["mean"]] = torch.tensor([4.0, 6.0])
    error[:, where["zero"]] = torch.tensor([10.0, 20.0])
    error[:, where["sampled"]] = torch.tensor([1.0, 4.0])
    kl[:, where["mean"]], kl[:, where["sampled"]], kl[:, where["greedy"]] = 2.0, 0.5, 0.0
    found = results_of({"error": error, "kl": kl, "same": torch.tensor([True, False])}, variance=4.0)
    sampled = found["methods"]["sampled"]
    assert sampled["fve"] == pytest.approx(1 - 2.5 / 4)
    assert sampled["relative_error"] == pytest.approx((0.1 + 0.2) / 2)
    assert sampled["kl_recovered"] == pytest.approx(0.75)
    assert found["methods"]["greedy"]["kl_recovered"] == 1
    assert found["methods"]["mean"]["kl_recovered"] == 0
    assert found["methods"]["mean"]["fve"] == pytest.approx(1 - 5 / 4), "the mean of training is not that of these rows"
    assert found["methods"]["zero"]["fve"] == pytest.approx(1 - 15 / 4)
    assert found["same_tokens"] == 0.5


def test_linear_lens_finds_a_linear_map() -> None:
    generator = torch.Generator().manual_seed(0)
    features = torch.randn(400, 5, generator=generator, dtype=torch.float64)
    weight, bias = torch.randn(5, 5, generator=generator, dtype=torch.float64), torch.arange(5.0).double()
    found = fit(features, features @ weight + bias, CPU)
    torch.testing.assert_close(found.mean, (features @ weight + bias).mean(0))
    torch.testing.assert_close(found.linear(features), features @ weight + bias, rtol=0, atol=0.02)
    constant = fit(torch.ones(7, 5), torch.full((7, 5), 3.0), CPU)
    torch.testing.assert_close(constant.linear(torch.ones(1, 5)), torch.full((1, 5), 3.0)), "nothing to learn from"


def test_rows_are_spread_and_in_order() -> None:
    spread = SpreadRows(Table(), 4)
    assert spread.rows(np.arange(4))["value"].tolist() == [0, 2, 5, 7]
    assert len(SpreadRows(Table(), 40)) == 10
    found = compute_values(spread, lambda batch: {"twice": 2 * batch["value"]}, 3, World.single())
    assert found["twice"].tolist() == [0, 4, 10, 14]


def test_a_text_is_read_to_its_length() -> None:
    """Padding behind a text changes nothing."""
    torch.manual_seed(0)
    shape = CausalConfig(d_model=16, n_layers=2, n_heads=2, mlp_hidden_size=32, max_sequence_length=16)
    for bos in (None, 256):
        lens = Lens(CausalTransformer(shape), LensShape(layer=0, t_text=3, bos=bos, trains_prompt=False), ([1], [2]))
        text = torch.tensor([[5, 6, 7, 9], [8, 9, 9, 9]])
        found = lens({"text": text, "length": torch.tensor([3, 1])}, Lens.read)["rebuilt"]
        torch.testing.assert_close(found[:1], lens.rebuild(text[:1, :3]))
        torch.testing.assert_close(found[1:], lens.rebuild(text[1:, :1]))
        assert not torch.allclose(found[:1], lens.rebuild(text[:1]))


def test_behaviour_of_what_is_put_in_the_place_of_an_activation() -> None:
    torch.manual_seed(0)
    shape = CausalConfig(d_model=16, n_layers=2, n_heads=2, mlp_hidden_size=32, max_sequence_length=16, init_std=0.5)
    lens = Lens(CausalTransformer(shape), LensShape(layer=0, t_text=3), ([1], [2]))
    batch = {"tokens": torch.randint(256, (3, 8)), "position": torch.tensor([2, 5, 7])}
    own = lens(batch, Lens.activation)["activation"]
    kl = lens({**batch, "values": torch.stack([own, torch.zeros_like(own)], 1)}, Lens.behaviour)["kl"]
    torch.testing.assert_close(kl[:, 0], torch.zeros(3), rtol=0, atol=1e-6)
    assert (kl[:, 1] > 1e-4).all()


def test_the_linear_lens_names_no_more_tokens_than_there_are() -> None:
    shape = CausalConfig(d_model=16, n_layers=2, n_heads=2, mlp_hidden_size=32, max_sequence_length=500)
    lens = Lens(CausalTransformer(shape), LensShape(layer=0, t_text=400), ([1], [2]))
    found = lens({"activation": torch.randn(2, 16)}, Lens.logit_lens)["features"]
    torch.testing.assert_close(found[0], found[1])


def test_context() -> None:
    model = ByteModel(CausalConfig())
    tokens = [model.bos or 0, *b"one two", model.pad, model.pad]
    assert context_of(model, tokens, 4) == {"before": "one", "token": " ", "after": "two"}
    assert visible("a\nb\x01é") == "a⏎b·é"


def test_the_fraction_of_variance_explained() -> None:
    """That of the rows that are measured: 0 where each is their mean, 1 where nothing is wrong."""
    rows = torch.tensor([[1.0, 2.0], [3.0, 6.0], [5.0, 1.0]])
    assert variance_of(rows) == pytest.approx((4 + 0 + 4 + 1 + 9 + 4) / 3)
    assert explained_variance(variance_of(rows), variance_of(rows)) == 0 and explained_variance(0.0, 2.0) == 1


def test_without_a_test_part_validation_is_measured_and_said(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The same rows, weights, noise and definitions, hence the same metrics."""
    run = train(tmp_path, "verify", "data.test_fraction=0", "log.quiet=false")
    shown = " ".join(capfd.readouterr().out.split())
    results = read_json(run / "artifacts" / "eval" / "results.json")
    best = max(rows_of(run, "train", "val/fve"), key=lambda row: row["val/fve"])
    assert (results["rows"], results["part"], results["stage"]) == (7, "validation", "train")
    assert results["methods"]["sampled"]["relative_error"] == pytest.approx(best["val/mse"], rel=1e-9)
    assert results["methods"]["sampled"]["fve"] == pytest.approx(best["val/fve"], rel=1e-9)
    sentence = "the validation part, which chose the best weights, so metrics are a little too good"
    assert sentence in shown
    assert main(["evaluate", str(run), "--which", "best"]) == 0
    assert sentence in " ".join(capfd.readouterr().out.split())


def test_the_stage_measures_the_best_weights(run: Path) -> None:
    results = read_json(run / "artifacts" / "eval" / "results.json")
    assert (results["rows"], results["part"], results["stage"]) == (7, "test", "train")
    assert set(results["methods"]) == set(METHODS) >= set(BASELINES)
    rows = {path.stem: np.load(path) for path in (run / "artifacts" / "eval" / "rows").glob("[!.]*.npy")}
    errors = {name: rows["error"][:, number] for number, name in enumerate(METHODS)}
    assert (errors["best_of_n"] <= errors["sampled"]).all() and (errors["best_of_n"] < errors["sampled"]).any()
    same = rows["same"].astype(bool)
    np.testing.assert_allclose(errors["round_trip"][same], errors["sampled"][same], rtol=1e-9)
    assert (np.abs(errors["shuffled"] - errors["sampled"]) > 1e-6).all()
    records = [
        json.loads(line) for line in (run / "artifacts" / "eval" / "explanations.jsonl").read_text().splitlines()
    ]
    assert [record["row"] for record in records] == list(range(7))
    assert (run / "artifacts" / "eval" / "explanations.html").read_text().startswith("<!doctype html>")


def test_an_evaluation_that_was_killed_goes_on_and_finds_the_same(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measure, seen, calls = Measuring.__call__, 0, 1

    def counted(self: Measuring, batch: Any) -> Any:
        nonlocal seen
        if seen == calls:
            raise RuntimeError("killed")
        seen += 1
        return measure(self, batch)

    monkeypatch.setattr(Measuring, "__call__", counted)
    preset = read_json(run / "config.json")["config"]["preset"]
    killed = train(tmp_path, preset, code=1)
    assert seen == 1 and not (killed / "artifacts" / "eval" / RESULTS).exists()
    calls = 10**6
    assert main(["train", "--resume", str(killed)]) == 0
    for name in (RESULTS, RECORDS):
        assert (killed / "artifacts" / "eval" / name).read_text() == (run / "artifacts" / "eval" / name).read_text()


def test_the_verb_finds_the_same_metrics(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results = read_json(run / "artifacts" / "eval" / "results.json")
    found = evaluate(run)
    about = "stage 'train', 7 activations of layer 0 of built-in: the test part, by which nothing was chosen"
    assert about in " ".join(capsys.readouterr().out.split())
    assert (found["part"], found["stage"], found["variance"]) == ("test", "train", pytest.approx(results["variance"]))
    for method in METHODS:
        assert found["methods"][method] == pytest.approx(results["methods"][method], rel=1e-9)
    page = run.parent / "page.html"
    few = evaluate(run, "--limit", "3", "--best_of", "4", "--html", str(page))
    assert few["rows"] == 3 == len(few["explanations"]) and few["best_of"] == 4
    assert "best of 4" in page.read_text()


def test_options_that_cannot_be(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--limit", "0"]) == 2
    assert "limit must be a whole number of at least 1" in capsys.readouterr().err
    for path, sentence in (("nowhere/x.html", "Make the folder of --html"), (".", "Name a file with --html")):
        assert main(["evaluate", str(run), "--html", path]) == 2
        assert sentence in capsys.readouterr().err
    with pytest.raises(UserError, match="best_of must be a whole number of at least 1, not 0"):
        EvaluationConfig(best_of=0)
