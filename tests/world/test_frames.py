"""Ranks that are at different messages are told so, whichever message it is, and no process aborts."""

from collections.abc import Callable
from pathlib import Path

import pytest

from samestep.core.errors import RunFailed
from samestep.world.world import World
from toys import run_on_ranks


def failure(call: Callable[[], object]) -> str:
    with pytest.raises(RunFailed) as raised:
        call()
    return str(raised.value)


def send_different_messages() -> None:
    world = World.join(device="cpu", timeout=60)
    gather, activity, other = world.async_gather, world.activity, 1 - world.rank
    few, many = [1.0] * 4, [1.0] * 20
    said = failure(gather.submit(many if world.rank else few).sums)
    assert f"ranks {world.rank} and {other} do not do the same: rank {world.rank}, at " in said, said
    assert "test_frames.py:" in said and "sends 4 numbers" in said and "sends 20 numbers" in said
    assert "must not depend on the rank" in said

    if world.rank:
        assert "sends something else" in failure(lambda: world.gather({"a": 1}))
    else:
        assert "rank 1 sends something else" in failure(gather.submit(few).sums)
    assert gather.submit([2.0] * 70).sums() == [4.0] * 70, "more than a frame"

    with activity.stepping("fit", 0, compiles=False):
        for step in range(6):
            for _ in range(0 if world.rank and step == 3 else 1):
                activity.began_update("model")  # line
            activity.stepped(step + 1)
    said = failure(gather.submit(few).sums)
    assert "is at step 6 after 5 updates in this launch" in said and "is at step 6 after 6 updates" in said, said
    own = "no update at step 3, and 1 update at other steps" if world.rank else "1 update at every step"
    assert f"it made {own} (" in said, said
    world.leave()


@pytest.mark.timeout(300)
def test_different_messages_of_two_ranks(tmp_path: Path) -> None:
    run_on_ranks(send_different_messages, 2, logs=tmp_path)
