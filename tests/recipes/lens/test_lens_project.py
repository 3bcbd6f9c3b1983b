"""The project of lens: every command that its users know works as typed."""

import json
from pathlib import Path
from typing import Any

import pytest
from lens_runs import model_folder

from projects import Typed, make_project, project_for_settings, really, typed
from samestep.cli.args import SubmitArgs, parse_train
from samestep.cli.main import main
from samestep.core.errors import EXIT_USER
from samestep.core.json_files import read_json
from samestep.recipes.lens.stages import stages

pytestmark = pytest.mark.timeout(900)
TRAIN = "scripts/01_train_distributed.py"
SUBMIT = "./scripts/submit_with_config.sh"
LAUNCH = "./scripts/launch_distributed_train.sh"
GPT2 = "--config-path=../conf --config-name=gpt2_frozen"
SMALL = (
    "model_name=../gpt2 layer_l=1 data.path=data/texts.jsonl activation_dumper.seq_len=16 t_text=2 max_steps=2 "
    "batch_size=2 evaluation.rows=8 distributed=cpu --no-log.tensorboard name=a"
)


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    return project_for_settings("lens", tmp_path / "my-lens", monkeypatch)


def jobs(found: Typed, capsys: pytest.CaptureFixture[str]) -> tuple[list[str], str]:
    """The scripts that a submission to SLURM makes, as lines, and what it warns of."""
    assert found.done.returncode == 0, found.done.stderr
    capsys.readouterr()
    assert main([*found.samestep[0], "--on=slurm", "--dry-run", "name=a"]) == 0
    output = capsys.readouterr()
    return output.out.splitlines(), output.err


def test_frozen_gpt2(project: Path) -> None:
    config: Any = typed(f"torchrun --nproc_per_node=8 {TRAIN} {GPT2}", project).config()
    assert (config.model_name, config.layer_l, config.t_text) == ("openai-community/gpt2", 6, 10)
    assert not [part for part in config.trainable_components.trained if "base_model" in part or "head" in part]
    assert (config.batch_size, config.global_batch_size, config.accumulation) == (32, None, 1)
    assert (config.epochs, config.max_steps, config.learning_rate) == (3, None, 1e-4)
    assert (config.distributed.backend, config.distributed.mixed_precision) == ("auto", "auto")
    assert config.decoder_prompt.count("<embed>") == 1


def test_the_small_one_without_a_file(project: Path) -> None:
    config: Any = typed(f"python {TRAIN}", project).config()
    assert (config.preset, config.model_name, config.layer_l, config.batch_size) == ("tiny", None, 1, 64)
    assert (config.global_batch_size, config.distributed.mixed_precision) == (None, "none")
    found = {stage.name: stage for stage in stages(config)}
    assert list(found) == ["pretokenize", "pretrain", "dump", "warm_start", "train", "grpo", "eval"]
    assert [name for name, stage in found.items() if stage.gpus_of == "train"] == ["warm_start", "grpo"]
    assert [name for name, stage in found.items() if not stage.trains] == ["pretokenize", "dump", "eval"]


@pytest.mark.parametrize(
    ("folder", "command"),
    [
        (".", f"{TRAIN} --config-name gpt2_frozen"),
        ("scripts", f"01_train_distributed.py {GPT2}"),
        ("..", f"my-lens/{TRAIN} --config_path ../conf --config_name=gpt2_frozen"),
        ("..", f"my-lens/{TRAIN} --config-path $PWD/my-lens/conf --config-name=gpt2_frozen"),
        (".", f"{TRAIN} --config conf/gpt2_frozen.yaml"),
    ],
)
def test_the_folder_of_config_files_is_relative_to_the_script(
    project: Path, monkeypatch: pytest.MonkeyPatch, folder: str, command: str
) -> None:
    monkeypatch.chdir(project / folder)
    assert typed(f"cd {folder} && python {command}", project).config().layer_l == 6


def test_keys_of_older_files(project: Path) -> None:
    (project / "conf" / "older.yaml").write_text(
        "defaults: [distributed]\n"
        "model_name: me/mine\n"
        "distributed: {backend: gloo, mixed_precision: {enabled: true, dtype: float16}}\n"
        "gumbel_tau_schedule: {type: cosine, start_value: 0.9, end_value: 0.4, num_steps: 700}\n"
        "alpha_schedule: {type: linear, start_value: 0.1, end_value: 0.8, num_steps: -1}\n"
        "max_train_steps: 1234\n"
        "log_interval: 7\n"
        "gradient_accumulation_steps: 2\n"
        "wandb: {project: lenses}\n"
    )
    config: Any = typed(f"python {TRAIN} --config-path=../conf --config-name=older", project).config()
    tau, alpha = config.gumbel_tau_schedule, config.alpha_schedule
    assert (tau.type, tau.start, tau.end, tau.num_steps) == ("cosine", 0.9, 0.4, "700")
    assert (alpha.type, alpha.start, alpha.end, alpha.num_steps) == ("linear", 0.1, 0.8, "-1")
    assert (config.max_steps, config.log.every, config.accumulation) == (1234, 7, 2)
    assert (config.distributed.backend, config.distributed.mixed_precision) == ("gloo", "fp16")
    assert config.log.wandb_project == "lenses"
    line = f"python {TRAIN} --config-name=older max_train_steps=5 gumbel_tau_schedule.start_value=0.8 log_interval=3"
    changed: Any = typed(line, project).config()
    assert (changed.max_steps, changed.gumbel_tau_schedule.start, changed.log.every) == (5, 0.8, 3)
    assert changed.gumbel_tau_schedule.end == 0.4


def test_distributed_yaml_is_the_one_beside_the_file(project: Path) -> None:
    file = project / "conf" / "distributed.yaml"
    file.write_text(file.read_text().replace("backend: auto", "backend: gloo"))
    assert typed(f"python {TRAIN} {GPT2}", project).config().distributed.backend == "gloo"


@pytest.mark.parametrize(
    "args",
    [
        GPT2 + " --num-gpus=8 name=b",
        "--config-name gpt2_frozen --num-gpus 8 name=b",
        "config=conf/gpt2_frozen.yaml num_gpus=8 name=b",
    ],
)
def test_the_launch_script(project: Path, args: str) -> None:
    found = typed(f"{LAUNCH} {args}", project)
    assert "--nproc" in found.samestep[0] and found.samestep[0][found.samestep[0].index("--nproc") + 1] == "8"
    config: Any = found.config()
    assert (config.layer_l, config.name) == (6, "b")
    assert "auto" in typed(LAUNCH, project).samestep[0]


def test_eight_gpus_are_a_whole_node_and_a_batch_eight_times_as_large(
    project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines, _ = jobs(typed(f"{SUBMIT} config=conf/gpt2_frozen.yaml num_gpus_train=8", project), capsys)
    assert [line for line in lines if line.startswith("#SBATCH --gpus-per-node")] == [
        f"#SBATCH --gpus-per-node={n}" for n in (1, 8)
    ]
    assert lines.count("#SBATCH --nodes=1") == 2 and lines.count("#SBATCH --exclusive") == 1
    commands = [line for line in lines if line.startswith("srun")]
    assert all(f"global_batch_size={8 * 32}" in command for command in commands)
    assert all("/runs/a/job/config " in command for command in commands), "with a copy of the config file"
    assert not (project / "runs").exists(), "nothing was made"


def test_dump_and_training_on_different_numbers_of_gpus(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    lines, _ = jobs(typed(f"{SUBMIT} config=conf/gpt2_frozen.yaml num_gpus=8 num_gpus_train=4", project), capsys)
    assert [line for line in lines if "--gpus-per-node" in line] == [f"#SBATCH --gpus-per-node={n}" for n in (8, 4)]
    commands = [line.split() for line in lines if line.startswith("srun")]
    assert "until=dump" in commands[0] and "until=dump" not in commands[1]
    assert all(f"global_batch_size={4 * 32}" in command for command in commands)


def test_a_node_is_taken_and_several_for_one_job_are_ignored(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job = f"{SUBMIT} config=conf/gpt2_frozen.yaml"
    lines, warning = jobs(typed(f"{job} num_gpus_train=4 nodelist=node001", project), capsys)
    assert lines.count("#SBATCH --nodelist=node001") == 2 and "nodelist" not in warning
    lines, warning = jobs(typed(f"{job} num_gpus_train=8 nodelist=node001,node002", project), capsys)
    assert not [line for line in lines if "nodelist" in line]
    assert "--nodelist node001,node002 is ignored: it names several nodes" in warning


def test_options_of_the_job_and_settings(project: Path) -> None:
    line = (
        f"{SUBMIT} config=conf/gpt2_frozen.yaml num_gpus_train=8 time=2h mem=64G layer_l=5 'decoder_prompt=say=<embed>'"
    )
    found = SubmitArgs.parse(typed(line, project).samestep[0][1:], {})
    assert (found.job.time, found.job.mem, found.stage_gpus) == ("2h", "64G", {"train": 8, "eval": 8})
    config: Any = parse_train(found.training)[2]
    assert (config.layer_l, config.decoder_prompt) == (5, "say=<embed>")
    for without in ("evaluation.rows=0", "num_gpus_eval=1"):
        assert "--num-gpus-eval=8" not in typed(f"{line} {without}", project).samestep[0]


@pytest.mark.parametrize("command", [f"python {TRAIN} {GPT2}", f"{SUBMIT} config=conf/gpt2_frozen.yaml"])
def test_a_run_is_resumed_and_dumps_again_as_it_was_said(project: Path, command: str) -> None:
    """The config of the command counts, so a run with other settings is refused as ever."""
    (project / "old" / "first").mkdir(parents=True)
    refused = typed(f"{command} resume_checkpoint=old/first", project)
    assert (refused.done.returncode, refused.samestep) == (EXIT_USER, [])
    assert "resume_checkpoint=old/first names no run" in refused.done.stderr
    (project / "old" / "first" / "config.json").write_text("{}")
    (args,) = typed(f"{command} resume_checkpoint=old/first force_redump=true", project).samestep
    assert args[-3:] == ["name=first", f"out={project / 'old'}", "activation_dumper.source=null"]
    (args,) = typed(f"{command} resume_checkpoint=null force_redump=false layer_l=2", project).samestep
    assert args[-1] == "layer_l=2" and not [arg for arg in args if arg.startswith(("force_", "resume_"))]


def test_the_first_line_says_what_differs(project: Path) -> None:
    for found in (typed(f"python {TRAIN}", project).done.stdout, typed(f"{SUBMIT} config=a.yaml", project).done.stderr):
        assert len(found.splitlines()) == 1 and "dump" in found and "README.md" in found


@pytest.mark.parametrize("command", ["python {}", "torchrun --nproc_per_node=2 {}"])
@pytest.mark.parametrize("test", ["basic", "all"])
def test_the_checks_of_the_machine(project: Path, command: str, test: str) -> None:
    found = typed(command.format(f"scripts/test_distributed_training.py --test {test}"), project)
    assert found.samestep == [["doctor", "--test", test]]
    assert found.launchers == ([("torchrun", ["--nproc_per_node=2"])] if "torchrun" in command else [])


@pytest.mark.parametrize(
    "command", [SUBMIT, f"{SUBMIT} num_gpus_train=8", f"{LAUNCH} num_gpus=0", f"{LAUNCH} --num-gpus"]
)
def test_a_wrong_call_is_answered_with_the_usage(project: Path, command: str) -> None:
    found = typed(command, project)
    assert (found.done.returncode, found.done.stdout, found.samestep) == (EXIT_USER, "", [])
    assert found.done.stderr.startswith("usage: ")


def test_a_file_that_is_not_there(project: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(typed(f"python {TRAIN} --config-name gpt3", project).samestep[0]) == EXIT_USER
    assert f"There is no file gpt3.yaml in {project / 'conf'}" in capsys.readouterr().err
    bare = typed(f"python {TRAIN} --config-name", project)
    assert (bare.done.returncode, bare.samestep, len(bare.done.stderr.splitlines())) == (EXIT_USER, [], 1)


@pytest.mark.parametrize(("text", "preset"), [("model_name: me/mine", "gpt2"), ("t_text: 3", "tiny")])
def test_a_config_file_without_a_preset(project: Path, text: str, preset: str) -> None:
    """A model of one's own does not inherit what the small one on bytes is trained with."""
    (project / "mine.yaml").write_text(text)
    config: Any = typed(f"python {TRAIN} --config mine.yaml", project).config()
    assert config.preset == preset
    assert bool(config.warm_start.max_steps) == bool(config.grpo.max_steps) == (preset == "tiny")
    assert typed(f"python {TRAIN} --config mine.yaml preset=verify", project).config().preset == "verify"


def test_torchrun_trains_a_frozen_model_with_a_file_of_the_project(tmp_path: Path) -> None:
    """A random GPT-2; what is around it is trained."""
    project = make_project("lens", tmp_path / "my-lens")
    model_folder(tmp_path / "gpt2", "gpt2")
    command = f"torchrun --nproc_per_node=2 {TRAIN} {GPT2} {SMALL}"
    done = really(command, project)
    assert "0 (2 processes on the CPU)" in done.stdout
    run = project / "runs" / "a"
    assert read_json(run / "status.json")["status"] == "done"
    assert read_json(run / "config.json")["global_batch"] == 2 * 2
    rows = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    assert [row["step"] for row in rows if row["stage"] == "train" and "val/loss" in row][-1] == 2
    assert (run / "artifacts" / "eval" / "explanations.jsonl").is_file()


LOOP = """
import torch
from torch import nn

from samestep import UserError
from lens.training.distributed import (
    get_dataloader_for_distributed,
    init_distributed,
    setup_distributed_models,
    sync_metrics,
)

rank, world_size, local_rank = init_distributed()
torch.manual_seed(rank)
device, dataset = torch.device("cpu"), torch.arange(10.0).reshape(5, 2)
decoder, encoder, orig = nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False)
decoder, encoder, orig = setup_distributed_models(decoder, encoder, orig, device, rank, world_size)
loader = get_dataloader_for_distributed(dataset, 2 // world_size, world_size, rank, False)
seen = 0.0
for x in loader:
    loss = (decoder(encoder(x)) - orig(x)).square().mean()
    (loss * loader.weight).backward()
    seen += float(x[: loader.rows].sum())
metrics = sync_metrics({"seen": seen * world_size, "bias": float(decoder.module.bias.grad.sum())}, world_size)
if rank == 0:
    print(f"bias {metrics['bias']:.4f}, rows {metrics['seen']:.1f}")
if world_size > 1:
    try:
        sync_metrics({}, 1)
    except UserError as error:
        print(f"refused on {rank}: {error}\\n", end="")
torch.distributed.destroy_process_group()
"""


def test_a_loop_with_the_older_functions(tmp_path: Path) -> None:
    """Calls by position; 1 and 2 processes see every row and sum the same gradient."""
    project = make_project("lens", tmp_path / "my-lens")
    (project / "loop.py").write_text(LOOP)
    found = {n: really(f"torchrun --nproc_per_node={n} loop.py", project, CUDA_VISIBLE_DEVICES="") for n in (1, 2)}
    first = {n: next(line for line in done.stdout.splitlines() if "bias" in line) for n, done in found.items()}
    assert first[1] == first[2] and "rows 45.0" in first[1] and "bias 0.0000" not in first[1]
    assert "refused on 1: this is rank 1 of 2, but world_size=1 is given" in found[2].stdout


@pytest.mark.long
def test_the_integration_test_passes(tmp_path: Path) -> None:
    project = make_project("lens", tmp_path / "my-lens")
    before = sorted(project.rglob("*"))
    done = really("./scripts/test_distributed_integration.sh", project)
    assert done.stdout.splitlines()[-1] == "passed" and "losses and metrics agree to" in done.stdout
    assert sorted(project.rglob("*")) == before


def test_what_the_integration_test_does(project: Path) -> None:
    """One process and two, which are compared; here nothing has trained, so it fails."""
    found = typed("./scripts/test_distributed_integration.sh", project)
    assert found.done.returncode != 0
    nprocs = [args[args.index("--nproc") + 1] for args in found.samestep]
    assert [args[0] for args in found.samestep] == ["doctor", "train", "train"] and nprocs == ["2", "1", "2"]
    wrong = typed("./scripts/test_distributed_integration.sh two", project)
    assert (wrong.done.returncode, wrong.samestep) == (EXIT_USER, [])
