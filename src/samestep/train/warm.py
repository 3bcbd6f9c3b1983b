"""Why a learner makes one discarded pass before its first update at 3 or more ranks.

DDP rebuilds its buckets after the first backward pass, in the order in which gradients became ready. From 3 ranks on,
the order of additions in an all-reduce depends on where a value lies in its bucket, so a fresh process would reduce
its first step in another order than a process that is already running: resume would not be bit-exact. One pass
before anything counts puts every process, fresh or resumed, into the final layout.
"""

import random
from collections.abc import Callable

import numpy as np
import torch
from torch import nn


def warm_up(module: nn.Module, backward: Callable[[], object]) -> None:
    """Run `backward` for its side effect on the reducer alone: gradients, buffers and random state are put back."""
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    devices = [p.device for p in module.parameters() if p.device.type == "cuda"][:1]
    drawn = random.getstate(), np.random.get_state()
    with torch.random.fork_rng(devices=devices):
        backward()
    random.setstate(drawn[0])
    np.random.set_state(drawn[1])
    for name, buffer in module.named_buffers():
        buffer.copy_(buffers[name])
    module.zero_grad(set_to_none=True)
