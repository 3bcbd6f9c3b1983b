"""Each thread has an activity of its own, and every change counts as progress."""

import threading

from samestep.world.activity import COMPILE_STEPS, ActivityTracker


def test_activities_nest_and_each_change_is_progress() -> None:
    tracker = ActivityTracker()
    main = tracker.threads[0]
    seen = [main.activity]
    with tracker.stepping("fit", 4, compiles=False):
        seen.append(main.activity)
        with tracker.doing("data"):
            seen.append(main.activity)
        seen.append(main.activity)
        before = main.progress
        tracker.stepped(5)
        tracker.made_progress()
        assert main.progress == before + 2
    assert seen == ["start", "step", "data", "step"] and main.activity == "start"
    assert (tracker.stage, tracker.step) == ("fit", 5)


def test_the_first_steps_of_a_compiled_model_compile() -> None:
    tracker = ActivityTracker()
    seen = []
    with tracker.stepping("fit", 0, compiles=True):
        for step in range(COMPILE_STEPS + 1):
            seen.append(tracker.threads[0].activity)
            tracker.stepped(step + 1)
    assert seen == ["compile"] * COMPILE_STEPS + ["step"]


def test_a_side_thread_has_an_activity_of_its_own() -> None:
    tracker = ActivityTracker()
    inside, leave = threading.Event(), threading.Event()

    def save() -> None:
        with tracker.side_thread("save", "save"):
            tracker.made_progress()
            inside.set()
            leave.wait(20)

    thread = threading.Thread(target=save)
    thread.start()
    inside.wait()
    names, progress = [thread.name for thread in tracker.threads], [thread.progress for thread in tracker.threads]
    leave.set()
    thread.join()
    assert (names, progress) == (["main", "save"], [0, 1])
    assert [thread.name for thread in tracker.threads] == ["main"]
