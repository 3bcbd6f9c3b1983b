"""What a thread does is noted in its own lane, and every change counts as a move."""

import threading

from samestep.world.watchdog.activity import COMPILING, Watch


def test_activities_nest_and_each_change_is_progress() -> None:
    watch = Watch()
    main = watch.lanes[0]
    seen = [main.activity]
    with watch.stepping("fit", 4, compiles=False):
        seen.append(main.activity)
        with watch.doing("data"):
            seen.append(main.activity)
        seen.append(main.activity)
        before = main.moves
        watch.stepped(5)
        watch.moved()
        assert main.moves == before + 2
    assert seen == ["start", "step", "data", "step"] and main.activity == "start"
    assert (watch.stage, watch.step) == ("fit", 5)


def test_the_first_steps_of_a_compiled_model_compile() -> None:
    watch = Watch()
    seen = []
    with watch.stepping("fit", 0, compiles=True):
        for step in range(COMPILING + 1):
            seen.append(watch.lanes[0].activity)
            watch.stepped(step + 1)
    assert seen == ["compile"] * COMPILING + ["step"]


def test_a_thread_beside_has_a_lane_of_its_own() -> None:
    watch = Watch()
    inside, leave = threading.Event(), threading.Event()

    def save() -> None:
        with watch.beside("save", "save"):
            watch.moved()
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=save)
    thread.start()
    inside.wait()
    names, moves = [lane.name for lane in watch.lanes], [lane.moves for lane in watch.lanes]
    leave.set()
    thread.join()
    assert (names, moves) == (["main", "save"], [0, 1])
    assert [lane.name for lane in watch.lanes] == ["main"]
