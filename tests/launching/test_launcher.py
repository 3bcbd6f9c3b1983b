"""Launching through torch's agent: restarts, requests to stop, the headline; with small workers without torch."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from samestep.core.errors import UserError
from samestep.core.exit_report import ExitReport
from samestep.core.json_files import read_json
from samestep.core.stop_signals import SIGNALS
from samestep.launching import attempt
from samestep.launching.failure import Failure, cause, exit_report_of, headline, tail
from samestep.launching.launcher import Launcher, parse_nproc
from samestep.launching.stop_requests import StopRequests
from toys import gone

pytestmark = pytest.mark.timeout(900)


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], str]:
    """Makes a worker out of a few lines; it runs in a folder of its own and knows its rank and attempt."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)

    def make(body: str) -> str:
        head = """
            import os, signal, sys, time
            from pathlib import Path
            from samestep.core.exit_report import ExitReport
            from samestep.core.json_files import write_atomically
            rank = int(os.environ["RANK"])
            attempt = len(list(Path().glob(f"began_{rank}_*")))
            write_atomically(Path(f"began_{rank}_{attempt}"), str(os.getpid()))
        """
        path = tmp_path / "worker.py"
        path.write_text(textwrap.dedent(head) + textwrap.dedent(body))
        return str(path)

    return make


def attempts() -> int:
    return len(list(Path().glob("began_0_*")))


def wait_for(condition: Callable[[], object], seconds: float = 100) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)


def when(condition: Callable[[], object], *numbers: signal.Signals, apart: float = 0.5) -> threading.Thread:
    """Sends signals to this process, which is the launcher, once the condition holds."""

    def send() -> None:
        wait_for(condition)
        for number in numbers:
            os.kill(os.getpid(), number)
            time.sleep(apart)

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def test_ranks_have_their_environment_and_rank_0_has_the_terminal(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    worker = script("""
        import json
        names = ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "OMP_NUM_THREADS", "SAMESTEP_LAUNCHER"]
        Path(f"env_{rank}").write_text(json.dumps([os.environ[name] for name in names] + sys.argv[1:]))
        print("I am", rank, flush=True)
    """)
    args = ["a=b", "$$", "${local_rank}", "Hello, world"]
    assert Launcher([worker, *args], nproc=2).run() == 0
    assert capfd.readouterr().out == "I am 0\n"
    threads = str(max(1, len(os.sched_getaffinity(0)) // 2))
    for rank in range(2):
        found = json.loads(Path(f"env_{rank}").read_text())
        assert found == ["2", str(rank), "127.0.0.1", threads, "local", *args]
    assert "SAMESTEP_LAUNCHER" not in os.environ, "only the workers have these variables"


def test_a_failed_rank_is_the_headline_and_is_restarted_so_often(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    worker = script("""
        burning = Path(f"burning_{attempt}")
        if rank == 1:
            burning.touch()
            sys.exit("the disk caught fire")
        while not burning.exists():
            time.sleep(0.02)
        time.sleep(1)
        sys.exit(1)
    """)
    launch = Launcher([worker], nproc=2, max_restarts=2)
    assert launch.run() == 1
    assert attempts() == 3
    printed = capfd.readouterr().err
    assert printed.count("samestep: rank 1 on ") == 3
    assert printed.count("  the disk caught fire") == 3
    assert "restart 2 of 2" in printed
    assert "rank 0" not in printed
    kept = Path(printed.rpartition("the logs of all ranks are in ")[2].strip())
    assert "fire" in (kept / "attempt_3" / "rank_1.err").read_text(), "without a run directory the output is kept there"


@pytest.mark.parametrize(("code", "expected"), [(2, 2), (75, 75)])
def test_users_mistakes_and_preemption_are_not_restarted(
    script: Callable[[str], str], code: int, expected: int
) -> None:
    assert Launcher([script(f"sys.exit({code})")], nproc=2, max_restarts=3).run() == expected
    assert attempts() == 1


def test_a_rank_killed_from_outside_is_named_and_restarted(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    worker = script("""
        if attempt == 0 and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        if attempt == 0:
            sys.exit("connection closed by peer")
    """)
    assert Launcher([worker], nproc=2, max_restarts=1).run() == 0
    assert attempts() == 2
    printed = capfd.readouterr().err
    assert "samestep: rank 1 on " in printed and " was killed by SIGKILL" in printed
    assert "samestep: rank 0" not in printed


def test_a_smaller_batch_is_tried_and_does_not_count_as_a_restart(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    worker = script("""
        size = int(sys.argv[-1].removeprefix("--batch_size=")) if len(sys.argv) > 1 else 4
        if size > 1 and rank == 1:
            half = size // 2
            report = ExitReport("no room", 77, rank, "here", retry_batch_size=half, retry_text=f"with {half}")
            assert report.write(os.environ)
            sys.exit(77)
    """)
    assert Launcher([worker], nproc=2, max_restarts=0).run() == 0
    assert attempts() == 3
    printed = capfd.readouterr().err
    assert "restarting from the last checkpoint with 2\n" in printed
    assert "restarting from the last checkpoint with 1\n" in printed


def test_out_of_memory_without_a_smaller_batch_is_not_restarted(script: Callable[[str], str]) -> None:
    assert Launcher([script("sys.exit(77)")], nproc=1, max_restarts=3).run() == 77
    assert attempts() == 1


HANDLES_SIGNALS = """
    def stop(number, frame):
        with open(f"signals_{rank}", "a") as file:
            file.write(signal.Signals(number).name + " ")
        if "stubborn" not in sys.argv:
            time.sleep(0.3 * rank)
            sys.exit(75)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
        signal.signal(number, stop)
    Path(f"ready_{rank}").touch()
    while True:
        time.sleep(0.05)
"""


def ready() -> bool:
    return Path("ready_0").exists() and Path("ready_1").exists()


@pytest.mark.parametrize("number", SIGNALS)
def test_every_rank_is_asked_to_stop_once(script: Callable[[str], str], number: signal.Signals) -> None:
    worker = script(HANDLES_SIGNALS)
    if signal.getsignal(number) is signal.SIG_IGN:  # under nohup, which the launcher respects
        signal.signal(number, signal.SIG_DFL)
    before = signal.getsignal(number)
    sender = when(ready, number)
    assert Launcher([worker], nproc=2, max_restarts=3).run() == 75
    assert [Path(f"signals_{rank}").read_text() for rank in range(2)] == [f"{number.name} "] * 2
    assert attempts() == 1
    assert signal.getsignal(number) is before
    sender.join()


def test_ranks_that_do_not_stop_are_ended_after_the_grace_time(
    script: Callable[[str], str], capfd: pytest.CaptureFixture[str]
) -> None:
    worker = script(HANDLES_SIGNALS)
    sender = when(ready, signal.SIGTERM)
    assert Launcher([worker, "stubborn"], nproc=2, grace=1.0).run() == 75
    assert "rank 0, 1 did not stop within 1 s" in capfd.readouterr().err
    assert all(gone(int(path.read_text())) for path in Path().glob("began_*"))
    sender.join()


def test_a_second_ctrl_c_ends_at_once(script: Callable[[str], str]) -> None:
    worker = script(HANDLES_SIGNALS)
    sender = when(ready, signal.SIGINT, signal.SIGINT)
    began = time.monotonic()
    assert Launcher([worker, "stubborn"], nproc=2, grace=50.0, max_restarts=3).run() == 130
    assert time.monotonic() - began < 30
    assert all(gone(int(path.read_text())) for path in Path().glob("began_*"))
    assert [Path(f"signals_{rank}").read_text() for rank in range(2)] == ["SIGINT "] * 2
    sender.join()


def test_ctrl_c_while_python_itself_starts_in_the_ranks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """They end without a traceback: they get it only when the package is there, which has a way with it."""
    (other := tmp_path / "path").mkdir()
    start = "import os, pathlib, time\npathlib.Path('ready_' + os.environ['RANK']).touch()\ntime.sleep(2)\n"
    (other / "sitecustomize.py").write_text(start)  # what Python imports first
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(other), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.chdir(tmp_path)
    sender = when(ready, signal.SIGINT)
    assert Launcher(["-m", "samestep", "recipes"], nproc=2).run() == 75
    printed = "".join(capfd.readouterr())
    assert "stopping all ranks" in printed and "Traceback" not in printed and "KeyboardInterrupt" not in printed
    sender.join()


def test_a_request_before_the_workers_start_reaches_them(script: Callable[[str], str]) -> None:
    stop = StopRequests(5.0)
    with stop:
        os.kill(os.getpid(), signal.SIGTERM)
        wait_for(lambda: stop.reason)
        worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], start_new_session=True)
        stop.workers_started([worker.pid])
        assert worker.wait(60) == -signal.SIGTERM


def test_the_first_ctrl_c_here_does_not_count_as_a_second_one_after_another_nodes() -> None:
    now = [0.0]
    with StopRequests(5.0, clock=lambda: now[0]) as stop:
        stop.workers_started([])
        stop.request(signal.SIGTERM)
        now[0] = 3.0
        os.kill(os.getpid(), signal.SIGINT)
        wait_for(lambda: stop._first_signal is not None)
        assert not stop.at_once


def test_signals_that_are_ignored_on_purpose_stay_so() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopRequests(5.0) as stop:
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            assert stop.reason is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_hanging_peer_and_all_processes_that_ranks_started_are_ended(
    script: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(attempt, "PEER_SECONDS", 0.5)
    worker = script("""
        import subprocess
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        Path(f"child_{rank}").write_text(str(child.pid))
        if rank == 1:
            sys.exit(3)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        time.sleep(60)
    """)
    assert Launcher([worker], nproc=2).run() == 3
    processes = [int(path.read_text()) for path in (*Path().glob("child_*"), *Path().glob("began_*"))]
    assert len(processes) == 4
    wait_for(lambda: all(gone(process) for process in processes))
    assert "samestep: rank 1 on " in capfd.readouterr().err


def failure(rank: int, code: int, seen: float = 10.0, **fields: object) -> Failure:
    report = ExitReport("text", code, rank, "host", **fields) if fields else None  # type: ignore[arg-type]
    return Failure(rank, code, seen, report)


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([failure(0, 1, time=5.0), failure(1, 1, time=4.0)], 1),
        ([failure(0, 1, time=4.0, echo=True), failure(1, 1, time=5.0)], 1),
        ([failure(0, 1, time=9.9), failure(1, -signal.SIGKILL)], 1),  # a broken connection is noticed at once
        ([failure(0, -signal.SIGABRT, 9.0), failure(1, 1, time=9.5)], 1),
        ([failure(0, 75), failure(1, 1, time=11.0)], 1),
        ([failure(0, 75), Failure(1, -signal.SIGKILL, 9.0, ended_by_us=True)], 0),
        ([failure(0, 75), failure(1, -signal.SIGSEGV, 9.0)], 0),
        ([failure(0, 1, time=9.0, echo=True), failure(1, -signal.SIGTERM, 9.0)], 1),
    ],
)
def test_the_cause_is_distinguished_from_its_echoes(failures: list[Failure], first: int) -> None:
    assert cause(failures).rank == first
    assert cause(failures[::-1]).rank == first


def test_the_headline_is_one_sentence_with_the_end_of_the_traceback(tmp_path: Path) -> None:
    report = ExitReport("ValueError: bad\nworse", 1, 3, "host", traceback="\n".join(f"line {n}" for n in range(500)))
    lines = headline(Failure(3, 1, report=report)).splitlines()
    assert lines[0] == "samestep: rank 3 on host failed: ValueError: bad"
    assert (lines[1], lines[2], lines[-1]) == ("  line 0", "  ...", "  line 499"), "what it is, and its end"
    assert len(lines) < 80
    user = ExitReport("write it otherwise", 2, 1, "host")
    assert headline(Failure(1, 2, report=user)) == "samestep: write it otherwise"
    printed = tmp_path / "rank_1.err"
    printed.write_text("Segmentation fault at line 7\n")
    crash = Failure(1, -signal.SIGSEGV, printed=tail(printed))
    assert "was killed by SIGSEGV" in headline(crash) and "line 7" in headline(crash)
    assert "perhaps by the system" in exit_report_of(Failure(1, -signal.SIGKILL)).text


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", ""])
def test_a_senseless_number_of_processes_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="--nproc must be auto or a whole number"):
        parse_nproc(text)


def test_auto_is_one_process_a_gpu_or_two_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "device_count", lambda: 5)
    assert parse_nproc("auto") == 5
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(torch.xpu, "device_count", lambda: 0)
    assert parse_nproc("auto") == min(2, len(os.sched_getaffinity(0)))


def test_the_status_of_a_run_whose_first_rank_was_killed(script: Callable[[str], str]) -> None:
    worker = script("""
        if rank == 0:
            from samestep.core import launch_env
            launch_env.write_run_path(Path("run"), os.environ)
            Path("run").mkdir()
            Path("run/status.json").write_text('{"status": "running", "stage": "fit", "step": 0, "steps": 9}')
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    """)
    assert Launcher([worker], nproc=1).run() == 1
    status = read_json(Path("run/status.json"))
    assert (status["status"], status["step"]) == ("failed", 0)
    assert "rank 0 on " in status["text"] and "was killed by SIGKILL" in status["text"]


def test_ranks_that_are_ended_after_the_grace_time_leave_no_running_status(script: Callable[[str], str]) -> None:
    worker = script("""
        from samestep.core import launch_env
        launch_env.write_run_path(Path("run"), os.environ)
        Path("run").mkdir()
        Path("run/status.json").write_text('{"status": "running"}')
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        Path("ready_0").touch()
        time.sleep(60)
    """)
    sender = when(lambda: Path("ready_0").exists(), signal.SIGHUP)
    assert Launcher([worker], nproc=1, grace=0.5).run() == 75
    assert read_json(Path("run/status.json")) == {"status": "preempted", "reason": "SIGHUP", "saved": False}
    sender.join()
