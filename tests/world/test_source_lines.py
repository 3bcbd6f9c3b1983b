"""Of a stack, the recipe's line is shown, also where samestep waits below it."""

import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import FrameType

import samestep
from samestep.train.api.loop import run
from samestep.train.learner.learner import Learner
from samestep.world.source_lines import StackFrame, calling_frame, describe, relevant_line

OURS = Path(samestep.__file__).parent
LIBRARY: StackFrame = (threading.__file__, 3, "wait")
UPDATE: StackFrame = (Learner.update.__code__.co_filename, 99, "update")
LOOP: StackFrame = (run.__code__.co_filename, 128, "run")
USERS: StackFrame = ("/mine/recipe.py", 38, "step")
SCRIPT: StackFrame = ("/mine/start.py", 5, "<module>")


def test_the_line_of_a_recipe_comes_before_those_of_samestep() -> None:
    assert relevant_line([LIBRARY, UPDATE, LIBRARY, USERS, LOOP, SCRIPT]) == "/mine/recipe.py:38 in step"
    shipped = (str(OURS / "recipes" / "gan" / "task.py"), 7, "step")
    assert relevant_line([LIBRARY, UPDATE, shipped, LOOP]) == "samestep/recipes/gan/task.py:7 in step"


def test_a_script_that_calls_samestep_is_not_where_it_waits() -> None:
    assert relevant_line([LIBRARY, UPDATE, LOOP, SCRIPT]) == "samestep/train/learner/learner.py:99 in update"
    assert relevant_line([LIBRARY, SCRIPT]) == describe(SCRIPT) and relevant_line([]) == ""


def test_without_a_recipe_an_update_is_called_from_the_next_file() -> None:
    def from_here() -> FrameType:
        return sys._getframe()

    assert calling_frame(from_here())[0] != __file__, "no samestep has called this one"


BUSY = """
import gc, random, signal, sys, threading, time
from samestep.world.source_lines import stacks_of_threads

class Garbage:
    def __init__(self):
        self.itself = self
    def __del__(self):
        time.sleep(0)  # another thread goes on

def work(depth):
    if depth:
        return work(depth - 1)
    Garbage(), Garbage()

def run():
    while True:
        work(random.choice([5, 50, 400, 700]))

signal.alarm(6)  # ends the process, even where the other thread does not let this one go on
threading.Thread(target=run, daemon=True).start()
gc.set_threshold(1)
sys.setswitchinterval(1e-5)
while True:
    stacks_of_threads()
"""


def test_stacks_are_read_while_other_threads_go_on_and_garbage_is_collected() -> None:
    """Python 3.11 crashes within seconds, more often than not, where a collection may begin meanwhile."""
    done = subprocess.run([sys.executable, "-c", BUSY], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGALRM, (done.returncode, done.stderr)
