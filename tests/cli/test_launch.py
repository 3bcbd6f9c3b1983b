"""`samestep train --nproc` and `samestep.launch` with real workers: they finish, fail, restart, stop, leave nothing."""

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import samestep
from cli.conftest import EXAMPLE, Shell
from cli.test_train import metrics_of, rows, weights_of
from samestep.core.errors import RunFailed, UserError
from samestep.core.json_files import JsonLines, read_json
from samestep.core.rundir import RunDir
from samestep.launching.call import _recipe
from samestep.why.collect import collect_evidence
from samestep.why.diagnose import diagnose
from samestep.why.records import Diagnosis

pytestmark = pytest.mark.timeout(900)
FAULTY = str(Path(__file__).with_name("faulty.py"))
TROUBLE = str(Path(__file__).with_name("trouble.py"))
PLAIN = ["--no-log.tensorboard", "--log.every", "1", "--distributed.device", "cpu"]
CPU = {"device": "cpu"}
SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "1"}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    temporary = tmp_path_factory.mktemp("t")  # not tmp_path, which is too long for the sockets of data workers
    monkeypatch.setenv("TMPDIR", str(temporary))  # for the processes that are started
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))


def workers(mark: str) -> dict[int, int]:
    """Processes with `mark` on their command line: by rank, the launcher as -1."""
    found = {}
    for path in Path("/proc").iterdir():
        try:
            if path.name.isdigit() and mark.encode() in (path / "cmdline").read_bytes():
                env = dict(
                    entry.split(b"=", 1) for entry in (path / "environ").read_bytes().split(b"\0") if b"=" in entry
                )
                found[int(env.get(b"RANK", b"-1"))] = int(path.name)
        except (OSError, ValueError):  # gone in the meantime
            continue
    return found


@contextmanager
def command(*args: str, nproc: int = 2) -> Iterator[subprocess.Popen[str]]:
    """`samestep train WORDS --nproc N` as a shell starts it; what is left of it in the end is killed."""
    process = subprocess.Popen(
        [sys.executable, "-m", "samestep", "train", *args, *PLAIN, "--nproc", str(nproc)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def result(process: subprocess.Popen[str], timeout: float = 200) -> tuple[int, str]:
    output, _ = process.communicate(timeout=timeout)
    return process.returncode, output


def wait_for(condition: Callable[[], object], seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def stepping(run: str, step: int = 3) -> bool:
    return any(row["step"] >= step for row in rows(Path("runs") / run) if "loss" in row)


def why(run: str) -> Diagnosis:
    return diagnose(collect_evidence(RunDir(Path("runs") / run)))


def test_a_killed_rank_is_restarted_in_the_same_run_and_the_result_is_the_same_bit_for_bit(shell: Shell) -> None:
    settings = ["--epochs", "2", "--batch_size", "2", "--checkpoint.every_steps", "2"]
    assert shell("train", TROUBLE, *PLAIN, *settings, "--name", "uninterrupted", ranks=2)[0] == [0, 0]
    mark = f"--pause={0.05:.17f}"
    with command(TROUBLE, *settings, mark, "--max-restarts", "1") as process:
        wait_for(lambda: stepping("trouble-default-1", 5))
        os.kill(workers(mark)[1], signal.SIGKILL)
        code, output = result(process)
    assert code == 0, output
    assert "samestep: rank 1 on " in output and "was killed by SIGKILL" in output
    assert "restarting from the last checkpoint (restart 1 of 1)" in output
    assert output.count("Traceback") == 0, "rank 0 only lost its peer"
    assert [path.name for path in Path("runs").iterdir() if path.name != "uninterrupted"] == ["trouble-default-1"]
    run = Path("runs/trouble-default-1")
    resumes = [row for row in JsonLines(run / "events.jsonl") if row["kind"] == "resume"]
    assert len(resumes) == 1 and resumes[0]["step"] >= 2
    ended = [row for row in JsonLines(run / "events.jsonl") if row["kind"] == "ended"]
    assert [(row["rank"], row["code"], row["restart"]) for row in ended] == [(1, -signal.SIGKILL, True)]
    assert why("trouble-default-1").verdict == "finished"
    assert metrics_of(run) == metrics_of(Path("runs/uninterrupted"))
    assert weights_of(str(run)) == weights_of("runs/uninterrupted")


def test_sigterm_to_the_launcher_stops_all_ranks_resumably(shell: Shell) -> None:
    name = f"stop-{os.getpid()}"
    settings = ["--max_steps", "100000", "--num_workers", "1"]
    with command(TROUBLE, *settings, "--name", name, "--max-restarts", "3") as process:
        wait_for(lambda: stepping(name))
        process.send_signal(signal.SIGTERM)
        code, output = result(process, timeout=30)
        assert code == 75, output
        assert "stopped by SIGTERM" in output
        wait_for(lambda: not workers(name), 10)
    status = read_json(Path("runs") / name / "status.json")
    assert status["status"] == "preempted" and status["step"] >= 3
    codes, output = shell("train", "--resume", name, "--max_time", "0.5s")
    assert codes == [75]
    assert f"step {status['step']:,}" in output


def test_a_second_ctrl_c_ends_at_once_without_orphans() -> None:
    name = f"twice-{os.getpid()}"
    with command(TROUBLE, "--stuck", "--num_workers", "1", "--name", name, "--grace", "60") as process:
        wait_for(lambda: (read_json(Path("runs") / name / "status.json") or {}).get("stage"))
        time.sleep(1)
        process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        code, output = result(process, timeout=10)
        assert code == 130
        assert "interrupted twice" in output
        wait_for(lambda: not workers(name), 5)
    found = why(name)
    assert (found.verdict, found.reason) == ("killed", "Ctrl-C twice")


def test_workers_of_a_killed_launcher_save_and_go(shell: Shell) -> None:
    name = f"orphans-{os.getpid()}"
    with command(TROUBLE, "--max_steps", "100000", "--num_workers", "1", "--name", name) as process:
        wait_for(lambda: stepping(name))
        process.kill()
        wait_for(lambda: not workers(name), 20)
    assert read_json(Path("runs") / name / "status.json")["status"] == "preempted"
    assert shell("train", "--resume", name, "--max_time", "0.5s")[0] == [75]


def test_out_of_memory_halves_the_micro_batch_and_keeps_the_global_batch(shell: Shell) -> None:
    settings = ["--batch_size", "5", "--checkpoint.every_steps", "1", "--evidence"]
    assert shell("train", TROUBLE, *PLAIN, *settings, "--name", "uninterrupted", "--later", ranks=2)[0] == [0, 0]
    with command(TROUBLE, *settings, "--name", "tight", "--later", "--room", "2") as process:
        code, output = result(process, timeout=90)
    assert code == 0, output
    assert "failed: out of memory with batch_size 5 (OutOfMemoryError: no room for 5 rows)\n" in output
    assert "restarting from the last checkpoint with batch_size 2; the global batch stays 10" in output
    assert "Traceback" not in output
    frozen = read_json(Path("runs/tight/first_launch.json"))
    assert [frozen[stage]["plan"]["steps_per_epoch"] for stage in ("fit", "again")] == [40 // 10] * 2
    assert samples("tight") == samples("uninterrupted")
    for name, tensor in weights_of("runs/uninterrupted").items():
        torch.testing.assert_close(torch.tensor(weights_of("runs/tight")[name]), torch.tensor(tensor))


def samples(run: str) -> dict[tuple[str, int], list[list[int]]]:
    """The rows of every update, as the runtime recorded them; of a repeated step the last time counts."""
    ranks = []
    for rank in range(2):
        lines = JsonLines(Path("runs") / run / "evidence" / f"world_2_rank_{rank}.jsonl")
        ranks.append({(line["stage"], line["step"]): line["ids"] for line in lines if line["kind"] == "update"})
    return {key: ids + ranks[1][key] for key, ids in ranks[0].items()}


def test_out_of_memory_with_one_row_is_said_in_one_sentence(shell: Shell) -> None:
    codes, output = shell("train", TROUBLE, *PLAIN, "--batch_size", "1", "--room", "-1", "--name", "a", ranks=2)
    assert codes == [77, 77]
    assert "out of memory with batch_size 1" in output and "and no smaller one exists" in output
    assert "Traceback" not in output
    codes, output = shell("train", TROUBLE, *PLAIN, "--batch_size", "4", "--room", "2", "--name", "b", ranks=2)
    assert codes == [77, 77]
    assert "samestep train --resume" in output and "runs/b --batch_size 2" in output
    assert shell("train", "--resume", "runs/b", "--batch_size", "2", ranks=2)[0] == [0, 0]
    assert read_json(Path("runs/b/config.json"))["global_batch"] == 8


def test_a_stage_that_begins_after_a_resume_at_other_ranks_keeps_the_global_batch(shell: Shell) -> None:
    settings = ["--batch_size", "2", "--later", "--pause", "0.02", "--name", "a"]
    workers = shell.start("train", TROUBLE, *PLAIN, *settings, ranks=2)
    wait_for(lambda: stepping("a", 1))
    workers.signal(signal.SIGTERM)
    assert workers.wait(30) == [75, 75]
    assert list(read_json(Path("runs/a/first_launch.json"))) == ["fit"], "the second stage must not have begun"
    assert shell("train", "--resume", "a", "--batch_size", "3")[0] == [0]
    frozen = read_json(Path("runs/a/first_launch.json"))
    assert [frozen[stage]["plan"]["steps_per_epoch"] for stage in ("fit", "again")] == [40 // 4] * 2


@pytest.mark.parametrize(
    ("args", "env", "expected"),
    [
        (["--nproc", "none"], {}, "--nproc must be auto or a whole number of at least 1, not 'none'"),
        (["--nproc", "2", "--max-restarts", "-1"], {}, "--max-restarts must be a whole number of at least 0"),
        (["--nproc", "2", "--grace", "soon"], {}, "--grace must be a number of at least 0, not 'soon'"),
        (["--max-restarts", "1"], {}, "--max-restarts is for launching several processes; add --nproc N"),
        (["--nodes", "2"], {}, "--nodes 2 needs --rdzv HOST:PORT on every node"),
        (["--rdzv", "a:1"], {}, "--rdzv is for several nodes; add --nodes N"),
        (["--nproc", "2", "--nodes", "2", "--rdzv", "no.such.host.invalid:7"], {}, "does not resolve on"),
        (["--nodes", "2", "--rdzv", "a:1"], {"RANK": "0"}, "that a launcher has started; leave out --nodes"),
        (["--nproc", "2"], {"RANK": "0", "WORLD_SIZE": "1"}, "that a launcher has started; leave out --nproc"),
        (
            ["--nodes", "2", "--rdzv", "a:1"],
            SRUN,
            "srun has started 2 of these processes, and each is already a rank of the run",
        ),
        (["--nproc", "2"], SRUN, "already a rank of the run; leave out --nproc, or start a single one"),
    ],
)
def test_senseless_launches_are_refused_at_once(
    args: list[str], env: dict[str, str], expected: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture
) -> None:
    from samestep.cli.main import main

    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert main(["train", "mdlm", *args]) == 2
    assert expected in capfd.readouterr().err


@pytest.mark.parametrize(("env", "code"), [({}, 75), (SRUN, 0)])
def test_a_rank_of_srun_that_is_stopped_before_training_does_not_tell_of_a_stop(env: dict[str, str], code: int) -> None:
    """It may be stopped because another one failed, and srun returns the largest code; also after the rendezvous."""
    stopped = """
import os, signal
from samestep.cli.train import _exit_on_stop_request

with _exit_on_stop_request():
    os.environ["RANK"] = "1"
    signal.raise_signal(signal.SIGTERM)
"""
    done = subprocess.run([sys.executable, "-c", stopped], env={**os.environ, **env}, timeout=60)
    assert done.returncode == code


def test_launch_from_python_is_stopped_by_an_interrupt(capsys: pytest.CaptureFixture[str]) -> None:
    name = f"notebook-{os.getpid()}"

    def interrupt() -> None:
        wait_for(lambda: stepping(name))
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    settings = {"max_steps": 100_000, "log": {"every": 1}}
    launched = samestep.launch(TROUBLE, settings, nproc=2, name=name, log={"tensorboard": False}, distributed=CPU)
    assert (launched.exit_code, launched.done) == (75, False)
    assert launched.path == (Path("runs") / name).absolute()
    output = capsys.readouterr().out
    assert "0 (2 processes on the CPU)" in output, "what rank 0 shows is shown here"
    assert "stopped by SIGINT" in output
    assert not workers(name)
    assert not (launched.path / "tensorboard").exists(), "both settings of `log` count"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_the_first_failing_rank_is_the_headline(capsys: pytest.CaptureFixture[str]) -> None:
    from cli.faulty import Faulty

    config = Faulty(global_batch_size=6, broken_row=7, name="a")
    with pytest.raises(RunFailed, match=r"rank . on .*: RuntimeError: row 7 is unreadable"):
        samestep.launch(config, nproc=3, log={"tensorboard": False}, distributed=CPU)
    output = capsys.readouterr().out
    heads = [line for line in output.splitlines() if line.startswith("samestep: rank")]
    assert len(heads) == 1 and heads[0].endswith("failed: RuntimeError: row 7 is unreadable")
    assert output.count("Traceback") == 1, "the other ranks' noise is in their logs"
    assert f"the logs of all ranks are in {Path('runs/a/logs').absolute()}" in output
    assert "row 7 is unreadable" in why("a").sentence and why("a").verdict == "crashed"
    assert not list(Path().glob("samestep-launch-*")), "nothing is left in the temporary folder"


def test_a_users_mistake_is_one_sentence_and_is_not_restarted(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UserError, match=r"^until=nowhere is not a stage of .*; choose one of fit$"):
        samestep.launch(FAULTY, nproc=2, max_restarts=3, until="nowhere", name="a", distributed=CPU)
    output = capsys.readouterr().out
    assert len([line for line in output.splitlines() if line.startswith("samestep: until=nowhere is not")]) == 1
    assert "Traceback" not in output and "restarting" not in output
    assert not Path("runs/a").exists()


def test_workers_find_a_recipe_by_its_module(monkeypatch: pytest.MonkeyPatch) -> None:
    from cli import faulty
    from samestep.recipes.mdlm import MdlmConfig
    from samestep.recipes.mdlm import recipe as mdlm

    assert _recipe(faulty.recipe) == ("cli.faulty", None)
    assert _recipe(mdlm) == ("mdlm", None)
    assert _recipe(MdlmConfig(seed=4)) == ("mdlm", MdlmConfig(seed=4))
    monkeypatch.setitem(sys.modules, "__main__", faulty)
    monkeypatch.setattr(faulty, "__name__", "__main__")
    monkeypatch.setattr(faulty.Faulty, "__module__", "__main__")
    assert _recipe(faulty.recipe) == (FAULTY, None), "a script that is a recipe file too"
    monkeypatch.delattr(faulty, "__file__")
    with pytest.raises(UserError, match=r"put it into a file such as my_recipe\.py"):
        _recipe(faulty.recipe)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((3,), "needs a recipe's name, a Recipe or a configuration, not a int"),
        (("mdlm", 3), "settings are a mapping, a configuration or keywords, not a int"),
    ],
)
def test_launch_from_python_refuses_what_it_cannot_use(arguments: tuple, expected: str) -> None:
    with pytest.raises(UserError, match=expected):
        samestep.launch(*arguments, nproc=2)
    with pytest.raises(UserError, match="--nproc must be"):
        samestep.launch("mdlm", nproc=0)


@pytest.mark.gpu
def test_launch_after_cuda_was_used_here() -> None:
    assert torch.ones(3, device="cuda").sum() == 3
    launched = samestep.launch(str(EXAMPLE), preset="verify", nproc=1, log={"tensorboard": False})
    assert launched.done
    assert torch.ones(3, device="cuda").sum() == 3


@pytest.mark.gpu
def test_a_gpu_that_is_full_gets_half_the_micro_batch(capsys: pytest.CaptureFixture[str]) -> None:
    settings = {"batch_size": 8, "megabytes": 200, "log": {"tensorboard": False}, "name": "a"}
    assert samestep.launch(TROUBLE, settings, nproc=1).done
    output = capsys.readouterr().out
    assert "failed: out of memory with batch_size 8 (OutOfMemoryError: CUDA out of memory" in output
    assert "with batch_size 4; the global batch stays 8" in output
