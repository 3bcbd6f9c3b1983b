"""Running code of a recipe only to see what it does: whatever it changed is put back, and nothing is written."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import torch

from samestep.train.session.context import ReadyStage
from samestep.train.session.unchanged import unchanged


@contextmanager
def dry_run(ready: ReadyStage) -> Iterator[ExitStack]:
    """Inside, the recipe's objects may be used: random generators, buffers, their attributes and state are put back
    afterwards. Nothing is recorded, compiled or logged. The stack is for more that ends with it."""
    bench = ready.bench
    with ExitStack() as stack:
        stack.enter_context(unchanged([ready.task, *ready.hooks], ready.recipe_state.values(), ready.loop.random))
        stack.enter_context(torch.compiler.set_stance("force_eager"))
        for learner in bench.learners:
            stack.enter_context(learner.uncompiled())
        if ready.recorder:
            stack.enter_context(ready.recorder.silent())
        logs, bench.sample_logs, bench.is_trial = bench.sample_logs, (), True
        stack.callback(setattr, bench, "sample_logs", logs)
        stack.callback(setattr, bench, "is_trial", False)
        yield stack
