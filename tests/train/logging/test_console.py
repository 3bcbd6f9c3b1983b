"""What rank 0 shows on a terminal."""

import io

import pytest

from samestep.train.logging.console import Screen, choose_metrics, format_metrics


def test_a_new_stage_begins_without_the_bars_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # a terminal, for rich
    monkeypatch.setenv("TERM", "xterm")
    out = io.StringIO()
    monkeypatch.setattr("sys.stdout", out)
    with Screen(visible=True) as screen:
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
