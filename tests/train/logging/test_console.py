"""What rank 0 shows on a terminal."""

import io
import threading

import pytest

from samestep.train.logging.console import Screen, choose_metrics, format_metrics


def test_a_new_stage_begins_without_the_bars_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    with Screen(visible=True) as screen:
        screen.begin("train", 0, 4)
        assert "0/4" in shown(screen), "before there is any number"
        screen.advance("train", 4, 4, "rows/s 1")
        assert "4/4" in shown(screen)
        screen.banner("samestep · dpo", {"stage": "dpo"})
        assert "4/4" not in shown(screen)
        screen.advance("train", 1, 16, "loss 0.69")
        assert "1/16" in shown(screen)


def shown(screen: Screen) -> str:
    """The bars as they stand."""
    assert screen._bar is not None
    with screen.console.capture() as captured:
        screen.console.print(screen._bar.get_renderable())
    return captured.get()


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (["reward", "win*"], "reward 0.2  win_rate 0.5 (0.4 to 0.6)"),
        (["win_rate", "*"], "win_rate 0.5 (0.4 to 0.6)  loss 1  reward 0.2  lr_low 3"),
        (["nothing"], ""),
        (["win_rate_low"], "win_rate_low 0.4"),
    ],
)
def test_the_chosen_metrics_in_the_order_of_the_choice(shown: list[str], text: str) -> None:
    metrics = {"loss": 1.0, "win_rate": 0.5, "win_rate_low": 0.4, "win_rate_high": 0.6, "reward": 0.2, "lr_low": 3.0}
    assert format_metrics(choose_metrics(metrics, shown)) == text


def test_lines_of_progress_say_how_long_it_takes_still(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    now = [100.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    with Screen(visible=True) as screen:
        for done in (10, 20, 40):
            now[0] += done  # the first steps, which may compile, are not measured
            screen.advance("fit", done, 40, f"loss {done}")
        screen.banner("samestep · toy", {"stage": "other"})
        now[0] += 5
        screen.advance("fit", 1, 40, "loss 1")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fit")]
    assert lines == ["fit 10/40  loss 10", "fit 20/40  loss 20  left 40 s", "fit 40/40  loss 40", "fit 1/40  loss 1"]


def test_only_what_takes_a_while_is_said(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("samestep.train.logging.console.SAY_SECONDS", 0.2)
    said = threading.Event()
    with Screen(visible=True) as screen:
        monkeypatch.setattr(screen, "print", lambda text: (print(text), said.set()))
        with screen.doing("something short"):
            pass
        with screen.doing("something long"):
            assert said.wait(60)
    assert capsys.readouterr().out == "something long ...\n"
