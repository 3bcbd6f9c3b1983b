"""The scripts and config files that users know, on 2 CPU processes."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lens_runs import model_folder, rows_of

from samestep.cli.args import RecipeArgs
from samestep.cli.main import main
from samestep.core.config import compose
from samestep.core.json_files import read_json
from samestep.recipes.lens import recipe
from samestep.recipes.lens.config import LensConfig
from samestep.recipes.lens.stages import stages

pytestmark = pytest.mark.timeout(900)
ROOT = Path(__file__).parents[3]
SCRIPTS, CONF = ROOT / "scripts" / "lens", ROOT / "conf"
TRAIN, SUBMIT, LAUNCH, INTEGRATION = (
    SCRIPTS / name
    for name in (
        "01_train_distributed.py",
        "submit_with_config.sh",
        "launch_distributed_train.sh",
        "test_distributed_integration.sh",
    )
)
SHORT = ["preset=verify", "distributed=cpu", "--no-log.tensorboard", "name=a"]


def call(command: Sequence[str | Path], folder: Path, python: str = sys.executable) -> subprocess.CompletedProcess[str]:
    source = Path(sys.modules["samestep"].__file__ or "").parents[1]
    env = {**os.environ, "PYTHON": python, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(source)}
    return subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=280)


def config_of(run: Path) -> dict[str, Any]:
    assert read_json(run / "status.json")["status"] == "done"
    config = read_json(run / "config.json")["config"]
    assert isinstance(config, dict)
    return config


def composed(*args: str) -> LensConfig:
    """What the command line `samestep train lens` makes of these args, without a look at the model."""
    parsed = RecipeArgs.parse(["lens", *args], "train")
    paths = {name.replace("-", "_"): value for name, value in parsed.options.items()}
    folders: dict[str, Any] = {key: Path(paths[key]) for key in ("config", "config_path") if key in paths}
    config = compose(
        recipe.config,
        presets=recipe.presets,
        aliases=recipe.aliases,
        config_name=paths.get("config_name"),
        args=parsed.settings,
        **folders,
    )
    assert isinstance(config, LensConfig)
    return config


@pytest.mark.long
def test_the_launch_script_trains_a_config_file_on_2_processes(tmp_path: Path) -> None:
    found = call([LAUNCH, f"config={CONF / 'lens_small.yaml'}", "num_gpus=2", *SHORT, "t_text=2"], tmp_path)
    assert found.returncode == 0, found.stderr
    assert "0 (2 processes on the CPU)" in found.stdout
    config = config_of(tmp_path / "runs" / "a")
    assert (config["t_text"], config["layer_l"], config["batch_size"]) == (2, 1, 64)
    assert config["distributed"]["mixed_precision"] == "none"


def test_torchrun_trains_with_a_config_of_the_repository_and_familiar_keys(tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", TRAIN]
    keys = ["gradient_accumulation_steps=2", "batch_size=2", "global_batch_size=null", "kl_base_weight=0.5"]
    precision = ["distributed.mixed_precision.enabled=false", "distributed.backend=gloo"]
    found = call([*torchrun, "--config-name=lens_small", *SHORT, *keys, *precision], tmp_path)
    assert found.returncode == 0, found.stderr
    run = tmp_path / "runs" / "a"
    config = config_of(run)
    assert (config["accumulation"], config["kl_base_weight"], config["distributed"]["backend"]) == (2, 0.5, "gloo")
    assert read_json(run / "config.json")["global_batch"] == 2 * 2 * 2


def test_gpt2_with_everything_frozen_trains_from_a_folder(tmp_path: Path) -> None:
    """A random GPT-2; what is around it is trained, and the model itself is in no checkpoint."""
    model = model_folder(tmp_path / "gpt2", "gpt2")
    (tmp_path / "texts.txt").write_text("\n\n".join(f"the {n} cats sat on {n + 1} mats" for n in range(60)))
    small = [f"model_name={model}", "layer_l=1", "data.path=texts.txt", "activation_dumper.seq_len=16", "t_text=2"]
    short = ["max_steps=2", "batch_size=2", "distributed=cpu", "--no-log.tensorboard", "name=a", "log.every=1"]
    found = call([sys.executable, TRAIN, "--nproc=2", "--config-name=gpt2_frozen", *small, *short], tmp_path)
    assert found.returncode == 0, found.stderr
    run = tmp_path / "runs" / "a"
    assert config_of(run)["trainable_components"]["decoder"]["base_model"] is False
    assert [row["step"] for row in rows_of(run, "train")] == [1, 2]


@pytest.mark.parametrize("name", ["gpt2_frozen", "lens_small"])
def test_the_config_files_say_what_they_mean(name: str) -> None:
    """Each key of the list that users know is there, and both ways to name the file give the same."""
    by_name = composed("--config-path", str(CONF), "--config-name", name)
    assert by_name == composed("--config", str(CONF / f"{name}.yaml"))
    text = (CONF / f"{name}.yaml").read_text() + (CONF / "distributed.yaml").read_text()
    keys = ["layer_l", "t_text", "decoder_prompt", "batch_size", "gradient_accumulation_steps", "learning_rate"]
    keys += ["kl_base_weight", "lm_base_weight", "entropy_weight", "mse_weight", "gumbel_tau_schedule"]
    keys += ["alpha_schedule", "trainable_components", "activation_dumper", "backend", "mixed_precision", "enabled"]
    assert not [key for key in keys if f"{key}:" not in text]
    assert by_name.decoder_prompt.count("<embed>") == 1


@pytest.mark.parametrize(("text", "preset"), [("model_name: me/mine", "gpt2"), ("t_text: 3", "tiny")])
def test_a_config_file_without_a_preset(tmp_path: Path, text: str, preset: str) -> None:
    """A model of one's own does not inherit what the small one on bytes is trained with."""
    (tmp_path / "mine.yaml").write_text(text)
    config = composed("--config", str(tmp_path / "mine.yaml"))
    assert config.preset == preset
    assert bool(config.warm_start.max_steps) == bool(config.grpo.max_steps) == (preset == "tiny")
    assert composed("--config", str(tmp_path / "mine.yaml"), "preset=verify").preset == "verify"


def test_the_frozen_one_trains_no_part_of_the_model() -> None:
    config = composed("--config", str(CONF / "gpt2_frozen.yaml"))
    assert (config.model_name, config.layer_l, config.t_text) == ("openai-community/gpt2", 6, 10)
    assert not [part for part in config.trainable_components.trained if "base_model" in part or "head" in part]
    assert config.distributed.mixed_precision == "auto"
    changed = composed("--config", str(CONF / "gpt2_frozen.yaml"), "distributed.mixed_precision.dtype=bfloat16")
    assert changed.distributed.mixed_precision == "bf16"


def submitted(folder: Path, *args: str) -> list[str]:
    found = call([SUBMIT, *args], folder, python="echo")
    assert found.returncode == 0, found.stderr
    return shlex.split(found.stdout)


def test_the_submit_script_tells_the_job_from_the_settings(tmp_path: Path) -> None:
    job = ["config=conf/gpt2_frozen.yaml", "num_gpus_train=8", "num_gpus=2", "nodelist=node[1-2]", "time=2h"]
    more = ["layer_l=5", "--dry-run", "decoder_prompt=say=<embed>"]
    assert submitted(tmp_path, *job, *more) == [
        *("-P", "-m", "samestep", "submit", "lens", "--config=conf/gpt2_frozen.yaml", "--num-gpus-train=8"),
        *("--num-gpus=2", "--nodelist=node[1-2]", "--time=2h", "--num-gpus-eval=8"),
        *("layer_l=5", "--dry-run", "decoder_prompt=say=<embed>"),
    ]
    for without in ("evaluation.rows=0", "num_gpus_eval=1"):
        assert "--num-gpus-eval=8" not in submitted(tmp_path, *job, without)


def test_the_jobs_of_a_submission(tmp_path: Path) -> None:
    job = [f"config={CONF / 'lens_small.yaml'}", "num_gpus_train=8", "num_gpus=2", "nodelist=node1"]
    found = call([SUBMIT, *job, "--on=slurm", "--dry-run", "name=a", "preset=verify"], tmp_path)
    assert found.returncode == 0, found.stderr
    lines = found.stdout.splitlines()
    assert [line for line in lines if "--gpus-per-node" in line] == [f"#SBATCH --gpus-per-node={n}" for n in (2, 8)]
    assert lines.count("#SBATCH --nodelist=node1") == 2
    commands = [line for line in lines if line.startswith("srun")]
    assert [command.endswith("until=dump") for command in commands] == [True, False]
    assert all("/runs/a/job/config " in command for command in commands), "with a copy of the config file"
    assert not os.listdir(tmp_path), "nothing was made"


def test_the_gpus_of_training_are_those_of_its_warm_start_and_rewards() -> None:
    """And they decide the batch: what only computes does not train, and the small model has a batch of its own."""
    found = {stage.name: stage for stage in stages(composed("--config", str(CONF / "lens_small.yaml")))}
    assert list(found) == ["pretokenize", "pretrain", "dump", "warm_start", "train", "grpo", "eval"]
    assert [name for name, stage in found.items() if stage.gpus_of == "train"] == ["warm_start", "grpo"]
    assert [name for name, stage in found.items() if not stage.trains] == ["pretokenize", "dump", "eval"]


def test_eight_gpus_that_train_take_the_rows_of_the_config_file_each(capsys: pytest.CaptureFixture[str]) -> None:
    """32 rows for each of the eight, although evaluation, the last job, runs on one GPU."""
    args = ["submit", "lens", f"--config={CONF / 'gpt2_frozen.yaml'}", "--on=slurm", "--dry-run", "name=a"]
    assert main([*args, "--num-gpus=1", "--num-gpus-train=8", "evaluation.rows=64"]) == 0
    commands = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("srun")]
    assert [command[-1] for command in commands] == ["until=dump", "until=train", f"global_batch_size={8 * 32}"]
    assert all(f"global_batch_size={8 * 32}" in command for command in commands)


@pytest.mark.parametrize(
    ("script", "args"), [(SUBMIT, []), (SUBMIT, ["num_gpus_train=8"]), (LAUNCH, ["num_gpus=0"]), (INTEGRATION, ["two"])]
)
def test_a_wrong_call_is_answered_with_the_usage(script: Path, args: list[str], tmp_path: Path) -> None:
    found = call([script, *args], tmp_path)
    assert (found.returncode, found.stdout) == (2, "")
    assert found.stderr.startswith(f"usage: {script.name}")


def test_the_launch_script_passes_its_settings_on(tmp_path: Path) -> None:
    found = call([LAUNCH, "config=my conf.yaml", "name=b"], tmp_path, python="echo")
    assert found.stdout.split(" ", 1)[1].strip() == "--nproc auto --config=my conf.yaml name=b"


def test_the_python_script_explains_itself_and_needs_the_file_it_names(tmp_path: Path) -> None:
    found = call([sys.executable, TRAIN, "--help"], tmp_path)
    assert (found.returncode, found.stdout.count("--config-name")) == (0, 2)
    wrong = call([sys.executable, TRAIN, "--config-name", "gpt3"], tmp_path)
    assert wrong.returncode == 2
    assert f"There is no file gpt3.yaml in {CONF}" in wrong.stderr
    nothing = call([sys.executable, TRAIN, "--config-name"], tmp_path)
    assert nothing.returncode == 2 and "Traceback" not in nothing.stderr
    (tmp_path / "mine").mkdir()
    shutil.copy(CONF / "distributed.yaml", tmp_path / "mine")
    other = call([sys.executable, TRAIN, "--config-path", "mine", "--config-name", "gpt2_frozen"], tmp_path)
    assert other.returncode == 2 and "There is no file gpt2_frozen.yaml" in other.stderr


@pytest.mark.long
def test_the_integration_test_passes(tmp_path: Path) -> None:
    found = call([INTEGRATION], tmp_path)
    assert found.returncode == 0, found.stdout + found.stderr
    assert found.stdout.splitlines()[-1] == "passed" and "losses and metrics agree to" in found.stdout
    assert not os.listdir(tmp_path)
