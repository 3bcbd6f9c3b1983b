"""`samestep watch`: a run in the terminal while it trains."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from report.made_runs import make_run
from samestep.cli.main import main

COMMAND = [sys.executable, "-m", "samestep"]


class Terminal:
    """A process with a terminal of its own, and what it has written there."""

    def __init__(self, *args: str, cwd: Path, lines: int = 24, columns: int = 80) -> None:
        own, its = pty.openpty()
        fcntl.ioctl(its, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        environment |= {"TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8"}
        streams = {"stdin": its, "stdout": its, "stderr": its}
        self.process = subprocess.Popen([*COMMAND, *args], cwd=cwd, env=environment, start_new_session=True, **streams)
        os.close(its)
        self._own, self.text = own, ""

    def read_until(self, wanted: str, seconds: float = 60) -> None:
        """Read until a text is there, or the process has ended."""
        until = time.monotonic() + seconds
        while wanted not in self.text and time.monotonic() < until:
            if not select.select([self._own], [], [], 0.1)[0]:
                continue
            try:
                self.text += os.read(self._own, 65536).decode(errors="replace")
            except OSError:  # it has ended
                break
        assert wanted in self.text, self.text

    def end(self) -> int:
        try:
            while select.select([self._own], [], [], 20)[0] and (more := os.read(self._own, 65536)):
                self.text += more.decode(errors="replace")
        except OSError:
            pass
        os.close(self._own)
        return self.process.wait(20)


def test_a_run_that_is_done_is_shown_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_run(tmp_path / "runs", steps=40).path.parents[1])
    assert main(["watch", "demo-1"]) == 0
    shown = capsys.readouterr().out
    assert "demo-1  mdlm  done" in shown and "best val/nll 0.05 at 40" in shown
    assert "val/nll  0.05" in shown and "(2 to 40)" in shown and "checkpoint at step 20" in shown
    assert main(["watch", "demo-1", "--once", "--metric", "l*", "--last", "10"]) == 0
    shown = capsys.readouterr().out
    assert "loss" in shown and "(32 to 40)" in shown and "(2 to 40)" not in shown and "val/nll  0.05" not in shown


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ([], "one run is expected, not 0"),
        (["a", "b"], "one run is expected, not 2"),
        (["demo-1", "--fast"], "there is no option --fast"),
        (["demo-1", "--every", "0s"], "too short"),
        (["demo-1", "--every", "often"], "is not a duration"),
        (["demo-1", "--last", "-3"], "a number of steps"),
        (["demo-1", "--metric"], "--metric needs a value; see samestep watch --help"),
        (["demo-2"], "demo-1"),
        (["demo-1", "--metric", "nll"], "there is no metric 'nll'"),
    ],
)
def test_what_is_refused(
    args: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(make_run(tmp_path / "runs").path.parents[1])
    assert main(["watch", *args]) == 2
    assert said in capsys.readouterr().err


def test_damaged_and_hostile_files_are_shown_as_far_as_they_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = make_run(tmp_path / "runs", evil="x")
    hostile = "\x1b]0;owned\x07[bold]\nnew line"
    rows = [{"stage": "fit", "step": step, "epoch": 0, hostile: 1.0, "loss": "high"} for step in range(9)]
    run.metrics.write_text("".join(json.dumps(row) + "\n" for row in rows) + "{half")
    run.rank_speeds.write_bytes(b"\xff\x00\n[]\n" * 10)
    run.watch.mkdir()
    beat = {"rank": 0, "host": hostile, "pid": 1, "time": 1.0, "activity": hostile, "step": 3, "stage": "fit"}
    run.heartbeat(0).write_text(json.dumps(beat))
    run.heartbeat(1).write_text("{")
    with open(run.events, "a") as file:
        file.write(json.dumps({"time": 2.0, "kind": "ended", "text": hostile}) + "\n")
    terminal = Terminal("watch", run.path.name, "--once", cwd=run.path.parents[1], lines=40, columns=120)
    assert terminal.end() == 0
    assert "\x1b]0" not in terminal.text and "\\x1b]0;owned" in terminal.text and "[bold]" in terminal.text
    assert "Traceback" not in terminal.text


@pytest.mark.parametrize(("lines", "columns"), [(24, 80), (60, 200), (8, 30), (3, 10)])
def test_it_fits_the_terminal(tmp_path: Path, lines: int, columns: int) -> None:
    run = make_run(tmp_path / "runs", steps=40, ranks=4)
    terminal = Terminal("watch", run.path.name, "--once", cwd=tmp_path, lines=lines, columns=columns)
    assert terminal.end() == 0
    shown = terminal.text.splitlines()
    assert len(shown) <= max(lines, 14) and "Traceback" not in terminal.text


@pytest.mark.timeout(240)
def test_a_run_is_followed_until_it_ends(tmp_path: Path) -> None:
    train = ["train", "mdlm", "preset=tiny", "name=a", "max_steps=100000", "log.every=1", "log.samples=0"]
    training = subprocess.Popen([*COMMAND, *train], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    until = time.monotonic() + 100
    while not (tmp_path / "runs/a/metrics.jsonl").exists() and time.monotonic() < until:
        time.sleep(0.2)
    left = Terminal("watch", "a", "--every", "0.5s", cwd=tmp_path)
    left.read_until("running")
    os.killpg(left.process.pid, signal.SIGINT)  # Ctrl-C
    assert left.end() == 0 and training.poll() is None
    stays = Terminal("watch", "a", "--every", "0.5s", cwd=tmp_path)
    stays.read_until("running")
    training.terminate()
    training.communicate(timeout=100)
    assert stays.end() == 0
    assert "preempted" in stays.text
    assert "Traceback" not in left.text + stays.text


@pytest.mark.timeout(120)
def test_the_end_of_a_run_that_failed_is_explained(tmp_path: Path) -> None:
    run = make_run(tmp_path / "runs")
    run.status.write_text(json.dumps({"status": "running", "stage": "fit", "step": 40, "steps": 90}))
    lock = {"host": os.uname().nodename, "pid": 2**22 + 1}
    (run.path / "lock").write_text(json.dumps(lock))
    done = subprocess.run([*COMMAND, "watch", "demo-1"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "killed" in done.stdout
    why = subprocess.run([*COMMAND, "why", "demo-1"], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    sentence = why.stdout.splitlines()[1].strip()
    assert "killed by a user" in sentence and sentence in done.stdout
