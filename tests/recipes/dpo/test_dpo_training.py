"""Both stages, run for a few steps as a user would."""

import math
from pathlib import Path

import pytest
import torch
from dpo_runs import FLOAT, rows_of, text_records, train, validations_of, write_records

from hub_server import serving
from player_folders import CHATML, player_folder
from samestep import UserError
from samestep.cli.main import main
from samestep.models.protein_mpnn_files import read_protein_mpnn
from samestep.recipes.dpo.protein_family import find_weights

LN2 = math.log(2)


@pytest.mark.parametrize("reference", ["cached", "live"])
@pytest.mark.parametrize("preset", ["verify", "verify-text"])
def test_the_first_loss_is_ln_2(preset: str, reference: str, tmp_path: Path) -> None:
    rows = train(tmp_path, preset, f"reference={reference}", "objective.label_smoothing=0")
    assert abs(rows[0]["dpo"] - LN2) < 1e-5
    assert abs(rows[-1]["dpo"] - LN2) > 1e-4, "and then it learns"
    assert rows[0]["kl"] < 1e-6 < rows[-1]["kl"]
    log = next((tmp_path / "run" / "logs").glob("*0*")).read_text()
    assert "first batch: the preferred sequences have log-probability" in log and "from ln 2" in log


def test_a_first_step_that_is_skipped_ends_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 x infinity is no number; float32 has no such beta."""
    common = [f"out={tmp_path}", "name=run", "log.tensorboard=false", FLOAT]
    assert main(["train", "dpo", "--preset", "verify", *common, "objective.beta=1e300", "max_steps=1"]) == 0
    said = capsys.readouterr()
    assert "step 1 was skipped" in said.out + said.err and "first batch:" not in said.out


def test_what_is_logged(tmp_path: Path) -> None:
    rows = train(tmp_path, "verify")
    names = {"loss", "dpo", "sft", "accuracy", "margin", "chosen_reward", "rejected_reward", "kl", "recovery"}
    assert names | {"chosen_log_prob", "rejected_log_prob", "grad_norm", "lr"} <= rows[0].keys()
    last = rows[-1]
    assert last["loss"] == pytest.approx(last["dpo"] + 0.1 * last["sft"])
    assert last["margin"] == pytest.approx(last["chosen_reward"] - last["rejected_reward"])
    (_, found) = validations_of(tmp_path / "run")
    assert found["val/loss"] == pytest.approx(found["val/dpo"] + 0.1 * found["val/sft"])
    assert found["val/perplexity"] == pytest.approx(math.exp(found["val/sft"]))
    assert 0 <= found["val/recovery"] <= 1
    shown = [name for name in found if name.startswith("val/")][:5]
    assert shown == ["val/loss", "val/accuracy", "val/margin", "val/perplexity", "val/recovery"]


def test_cached_and_live_references_train_alike(tmp_path: Path) -> None:
    """With one order of decoding for all epochs; live orders differ by epoch."""
    fixed = "decoding_order=left_to_right"
    cached, live = (train(tmp_path, "verify", f"reference={kind}", fixed, name=kind) for kind in ("cached", "live"))
    assert [row["dpo"] for row in cached] == pytest.approx([row["dpo"] for row in live], abs=1e-5)


def test_sampled_sequences_beside_a_cached_reference(tmp_path: Path) -> None:
    rows = train(tmp_path, "verify", "diversity_lambda=0.5", "max_steps=2")
    assert abs(rows[0]["dpo"] - LN2) < 1e-5 and 1 / 21 < rows[0]["diversity"] < 1
    assert rows[1]["loss"] == pytest.approx(rows[1]["dpo"] + 0.1 * rows[1]["sft"] + 0.5 * rows[1]["diversity"])


def test_weight_files_are_those_of_protein_mpnn(tmp_path: Path) -> None:
    train(tmp_path, "verify", "max_steps=7", "schedule=constant")
    run = tmp_path / "run"
    files = {path.name for path in run.glob("*.pt")}
    assert files == {"checkpoint_epoch_1.pt", "checkpoint_epoch_2.pt", "best_model.pt", "latest_model.pt"}
    latest, second = (read_protein_mpnn(run / name) for name in ("latest_model.pt", "checkpoint_epoch_2.pt"))
    assert latest.config.hidden == 16 and latest.config.neighbours == 6
    with pytest.raises(UserError, match=r"with base_model_name \(there are best_model, checkpoint_epoch_1, "):
        find_weights(None, str(run))
    again = train(tmp_path, "verify", f"base_model_dir={run}", "base_model_name=latest_model", "max_steps=1", name="b")
    assert abs(again[0]["dpo"] - LN2) < 1e-5, "it is the reference of the next run"
    assert again[0]["chosen_log_prob"] != pytest.approx(rows_of(run)[0]["chosen_log_prob"], abs=1e-3)
    assert any((latest.weights[name] != second.weights[name]).any() for name in latest.weights)


def test_the_policy_must_be_the_cached_reference(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    common = [f"out={tmp_path}", "name=run", "log.quiet=true", FLOAT]
    assert main(["train", "dpo", "--preset", "verify-text", "until=reference", *common]) == 0
    key = tmp_path / "run" / "artifacts" / "reference" / "reference" / "arrays.json"
    text = key.read_text()
    key.write_text(text.replace('"weights": "', '"weights": "0'))
    assert main(["train", "--resume", str(tmp_path / "run"), "until=null"]) == 2
    assert "were computed with other weights; start" in capfd.readouterr().err
    key.write_text(text)
    assert main(["train", "--resume", str(tmp_path / "run"), "until=null"]) == 0


def test_another_beta_takes_over_the_cached_reference(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tmp_path, "verify-text", "max_steps=1")
    train(tmp_path, "verify-text", "stages_from=run", "beta=0.3", "max_steps=2", "log.quiet=false", name="second")
    assert "taken over" in capfd.readouterr().out
    assert (tmp_path / "second" / "artifacts" / "reference" / "reference" / "arrays.json").is_file()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return player_folder(tmp_path_factory.mktemp("llama"), template=CHATML)


def chats(count: int) -> list[dict[str, object]]:
    return [
        {
            "prompt": [{"role": "user", "content": record["prompt"]}],
            "chosen": [{"role": "assistant", "content": record["chosen"]}],
            "rejected": [{"role": "assistant", "content": record["rejected"]}],
        }
        for record in text_records(count)
    ]


@pytest.mark.parametrize("adapters", [[], ["lora_rank=4", "learning_rate=0.1"]], ids=["full", "lora"])
def test_a_model_of_transformers_with_and_without_padding(adapters: list[str], llama: Path, tmp_path: Path) -> None:
    data = write_records(tmp_path / "chats.jsonl", chats(16))
    settings = [f"base_model_name={llama}", f"train_data={data}", "data.limit=null", "max_steps=3", *adapters]
    runs = [
        train(tmp_path, "verify-text", *settings, f"padding_free={kind}", "reference=live", name=f"run_{kind}")
        for kind in ("false", "true")
    ]
    assert [row["dpo"] for row in runs[0]] == pytest.approx([row["dpo"] for row in runs[1]], abs=1e-5)
    assert abs(runs[0][0]["dpo"] - LN2) < 1e-5 and abs(runs[0][2]["dpo"] - LN2) > 1e-4


@pytest.mark.long
@pytest.mark.timeout(900)
def test_a_model_of_the_hub(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Downloaded once, by one process for both; a resume finds it."""
    data = write_records(tmp_path / "chats.jsonl", chats(16))
    files = {path.name: path.read_bytes() for path in llama.iterdir() if path.is_file()}
    monkeypatch.setenv("HF_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with serving({"org/llama": files}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        settings = ["base_model_name=org/llama", f"train_data={data}", "data.limit=null", "max_steps=2"]
        common = [f"out={tmp_path}", "name=run", "log.quiet=true", "log.every=1", FLOAT]
        assert main(["train", "--nproc", "2", "dpo", "--preset", "verify-text", *settings, *common]) == 0
        assert hub.fetched().count("model.safetensors") == 1
    assert abs(rows_of(tmp_path / "run")[0]["dpo"] - LN2) < 1e-5


def test_a_model_with_dropout_is_trained_without(tmp_path: Path) -> None:
    folder = player_folder(tmp_path / "gpt2", kind="gpt2")
    config = (folder / "config.json").read_text()
    for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop"):
        config = config.replace(f'"{name}": 0.0', f'"{name}": 0.5')
    assert config.count("0.5") >= 3
    (folder / "config.json").write_text(config)
    data = write_records(tmp_path / "texts.json", text_records(16))
    rows = train(tmp_path, "verify-text", f"base_model_name={folder}", f"train_data={data}", "data.limit=null")
    assert abs(rows[0]["dpo"] - LN2) < 1e-5


@pytest.mark.timeout(900)
def test_two_processes_learn_the_default_data(tmp_path: Path) -> None:
    common = [f"out={tmp_path}", "name=run", "log.quiet=true", "epochs=2"]
    assert main(["train", "--nproc", "2", "dpo", *common]) == 0
    found = validations_of(tmp_path / "run")[-1]
    assert found["val/accuracy"] > 0.75 and found["val/margin"] > 0.3
    torch.load(tmp_path / "run" / "best_model.pt", weights_only=True)


@pytest.mark.parametrize(("preset", "other"), [("verify", "text"), ("verify-text", "protein")])
def test_records_of_the_other_family(
    preset: str, other: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    protein = [{"pdb_file": "a.pdb", "preferred_seq": "A", "unpreferred_seq": "C"}]
    data = write_records(tmp_path / "pairs.json", text_records(3) if other == "text" else protein)
    assert main(["train", "dpo", "--preset", preset, f"train_data={data}", f"out={tmp_path}"]) == 2
    assert f"set family={other}: {data} has {other} pairs." in " ".join(capfd.readouterr().err.split())
