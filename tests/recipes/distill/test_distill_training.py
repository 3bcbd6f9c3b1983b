"""The stages, run for a few steps as a user would."""

import json
import re
from pathlib import Path

import pytest
from distill_runs import rows_of, train, validations_of, write_records

from samestep.cli.main import main
from samestep.core.json_files import read_json

FEW = "max_steps=2"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages, with mining, of records in a file."""
    folder = tmp_path_factory.mktemp("distill")
    data = write_records(folder / "records.jsonl", 30)
    return train(folder, "verify-mining", f"train_data={data}", "data.limit=null", "data.validation_fraction=0.2")


def test_all_stages_and_what_they_log(run: Path) -> None:
    config = read_json(run / "config.json")["config"]
    assert (config["use_projection"], config["rank"]["info_nce"]) == (False, 0.5)
    align, rank = rows_of(run, "align"), rows_of(run, "rank")
    assert len(align) == len(rank) == 4
    assert {"mse", "cosine_distance", "cosine"} <= align[0].keys()
    assert {"info_nce", "mse", "margin_mse", "kl", "cosent", "cosine"} <= rank[0].keys()
    last = align[-1]
    assert last["loss"] == pytest.approx(0.4 * last["mse"] + 0.6 * last["cosine_distance"])
    assert last["mse"] == pytest.approx(2 * last["cosine_distance"]), "of vectors of length 1"
    weights = {"info_nce": 0.5, "mse": 0.2, "margin_mse": 0.3, "kl": 0.2, "cosent": 0.1}
    assert rank[0]["loss"] == pytest.approx(sum(weight * rank[0][name] for name, weight in weights.items()))
    found = validations_of(run, "rank")[-1]
    assert {"val/ndcg@10", "val/recall@100", "val/cosine", "val/ndcg@10/8", "val/recall@10/4"} <= found.keys()
    assert list(found)[3:6] == ["val/ndcg@10", "val/recall@10", "val/cosine"], "the first ones are shown"


def test_phase_2_begins_with_the_best_of_phase_1(run: Path) -> None:
    log = next((run / "logs").glob("*0*")).read_text() if (run / "logs").is_dir() else ""
    assert (run / "artifacts" / "mine" / "negatives").is_dir()
    first, aligned = rows_of(run, "rank")[0], rows_of(run, "align")
    assert first["cosine"] > aligned[0]["cosine"] + 0.05, log


def test_another_objective_takes_over_vectors_and_negatives(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = run.parent / "records.jsonl"
    settings = [f"train_data={data}", "data.limit=null", "data.validation_fraction=0.2", "rank.kl=1", FEW]
    train(run.parent, "verify-mining", *settings, "stages_from=run", "log.quiet=false", name="second")
    shown = capfd.readouterr().out
    assert shown.count("taken over from") == 3, "teacher, mine, and align, which does not use rank.*"


def test_records_that_the_student_cannot_read_whole_are_dropped(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = write_records(tmp_path / "records.jsonl", 30)
    long = [{"query": f"what is long {n}", "positive": "so long " * 40} for n in range(5)]
    data.write_text("\n".join([data.read_text(), *map(json.dumps, long)]))
    common = [f"train_data={data}", "data.limit=null", "data.validation_fraction=0.1", "skip_phase1=true", FEW]
    train(tmp_path, "verify", *common, "data.too_long=drop", "log.quiet=false")
    shown = capfd.readouterr()
    assert "1 of 83 texts are longer than 24 tokens and were dropped (data.too_long=drop)" in shown.err
    assert "28 records with up to 2 negatives" in shown.out, "33 without those of the long text"
    out = ["--preset", "verify", f"out={tmp_path}", *common, "data.too_long=refuse"]
    assert main(["train", "distill", *out]) == 2
    assert "'so long so long" in capfd.readouterr().err


def test_scores_of_records_are_learned(tmp_path: Path) -> None:
    """Whatever the teacher, the student ranks as the records say."""
    data = write_records(tmp_path / "records.jsonl", 24)
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    scored = [{"query": r["query"], "pos": [r["positive"]], "neg": r["negatives"]} for r in rows]
    data.write_text("\n".join(json.dumps({**r, "pos_scores": [0.1], "neg_scores": [0.9, 0.5]}) for r in scored))
    common = [f"train_data={data}", "data.limit=null", "data.validation_fraction=0.1", "skip_phase1=true"]
    common += ["rank.info_nce=0", "rank.mse=0", "rank.kl=1", "rank.margin_mse=1", "max_steps=12", "phase2_lr=0.01"]
    mine = rows_of(train(tmp_path, "verify", *common, "rank.scores=records", name="records"), "rank")
    theirs = rows_of(train(tmp_path, "verify", *common, name="teacher"), "rank")
    assert mine[0]["margin_mse"] > 2 * theirs[0]["margin_mse"], "the margins are others"
    assert mine[-1]["margin_mse"] < 0.7 * mine[0]["margin_mse"]


def test_single_texts_are_learned_in_phase_1(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    data = write_records(tmp_path / "records.jsonl", 20)
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": f"more {n} of it"}) + "\n" for n in range(9)))
    common = [f"train_data={data}", "data.limit=null", "data.validation_fraction=0.1", "skip_phase2=true", FEW]
    train(tmp_path, "verify", *common, "log.quiet=false", name="without")
    without = capfd.readouterr().out
    train(tmp_path, "verify", *common, f"data.phase1=[{data},{tmp_path / 'texts.jsonl'}]", "log.quiet=false")
    counts = [int(re.findall(r"(\d+) texts, 2 queries", out)[-1]) for out in (without, capfd.readouterr().out)]
    assert counts[1] == counts[0] + 9


def test_skipped_phases(run: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Phase 2 alone begins with the best of an earlier phase 1 with the same models, and says so."""
    settings = [f"train_data={run.parent / 'records.jsonl'}", "data.limit=null", "data.validation_fraction=0.2", FEW]
    ranked = train(run.parent, "verify-mining", *settings, "skip_phase1=true", "log.quiet=false", name="ranked")
    assert "begins with" in capfd.readouterr().out
    first = read_json(ranked / "config.json")["config"]["init_from"]
    assert Path(first).parts[-3:-1] == ("checkpoints", "align")
    assert not rows_of(ranked, "align") and rows_of(ranked, "rank")
    other = train(run.parent, "verify-mining", *settings, "skip_phase1=true", "use_projection=true", name="other")
    assert read_json(other / "config.json")["config"]["init_from"] is None, "that would be another network"
    alone = train(run.parent, "verify-mining", *settings, "skip_phase2=true", name="alone")
    assert rows_of(alone, "align") and not rows_of(alone, "rank")


def test_cached_and_live_teachers_train_alike(tmp_path: Path) -> None:
    modes = {"cached": ["teacher.cache_dtype=float32"], "live": []}
    runs = [train(tmp_path, "verify", f"teacher.mode={mode}", *more, FEW, name=mode) for mode, more in modes.items()]
    for stage in ("align", "rank"):
        cached, live = ([row["loss"] for row in rows_of(run, stage)] for run in runs)
        assert cached == pytest.approx(live, abs=1e-5), stage


@pytest.mark.long
def test_a_local_pool_is_another_loss_and_is_called_so(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    sizes = ["global_batch_size=6", "skip_phase1=true", "max_steps=1", "log.quiet=false"]
    losses = {}
    for pool in ("global", "local"):
        for size in (6, 2):
            name = f"{pool}_{size}"
            run = train(tmp_path, "verify", f"rank.pool={pool}", f"batch_size={size}", *sizes, name=name)
            losses[name] = rows_of(run, "rank")[0]["info_nce"]
    assert losses["global_6"] == pytest.approx(losses["global_2"], abs=1e-6)
    assert losses["local_6"] == pytest.approx(losses["global_6"], abs=1e-6)
    assert losses["local_2"] < losses["local_6"] - 0.1, "fewer passages to tell apart"
    assert "depends on the number of devices" in " ".join(capfd.readouterr().out.split())


def test_vectors_of_another_length_are_refused(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = train(tmp_path, "verify", "until=teacher")
    layout = run / "artifacts" / "teacher" / "vectors" / "arrays.json"
    text = layout.read_text()
    layout.write_text(text.replace('"length": ', '"length": 1'))
    assert main(["train", "--resume", str(run), "until=null"]) == 2
    assert "were computed with another length (1" in " ".join(capfd.readouterr().err.split())
    layout.write_text(text)
    assert main(["train", "--resume", str(run), "until=null"]) == 0


def test_several_files_are_mixed_by_weight(tmp_path: Path) -> None:
    one, two = (write_records(tmp_path / f"{name}.jsonl", count) for name, count in (("one", 12), ("two", 30)))
    settings = [f"data.train=[{one}:3, {two}:1]", "data.limit=null", FEW]
    assert len(rows_of(train(tmp_path, "verify", *settings), "rank")) == 2


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["skip_phase1=true", "skip_phase2=true"], "with both there is nothing to train"),
        (["teacher.mode=live", "mining.negatives=2"], "negatives are mined with cached vectors"),
        (["use_projection=false", "student.shape.width=32"], "Set use_projection=true, or take a smaller student"),
        (["matryoshka_dims=[99]"], "Set student.matryoshka_dims to 24 or less"),
        (["data.validation_fraction=2"], "data.validation_fraction must be a number above 0 and below 1, not '2'"),
        (["rank.info_nce=0", "rank.mse=0", "rank.kl=1", "skip_phase1=true"], "there are none to compare for rank.kl"),
        (["phase1_epochs=0"], "phase1_epochs must be a whole number of at least 1"),
        (["use_projection=perhaps"], "use_projection must be true or false"),
        (["student_model=nowhere/to be found"], "Name an existing folder, or a model of the Hub"),
    ],
)
def test_what_is_refused(settings: list[str], sentence: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "distill", "--preset", "verify", f"out={tmp_path}", *settings]) == 2
    assert sentence in " ".join(capfd.readouterr().err.split())
