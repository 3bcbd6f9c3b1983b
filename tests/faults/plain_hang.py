"""What people write by hand, with the same faults: a loop around DistributedDataParallel, started by plain torchrun.

torchrun --nproc_per_node=2 tests/faults/plain_hang.py FAULT MOMENT
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from faults.stuck import AT, LONG, stick


def main(fault: str, moment: Path) -> None:
    """Train for ever, unless something is stuck."""
    dist.init_process_group("gloo")
    own = dist.new_group(backend="gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(100_000):
        x = torch.rand(4, 1)
        stuck = step == AT and dist.get_rank() == 1
        if stuck:
            moment.write_text(str(time.time()))
            stick(fault)
            if fault in ("data", "save"):
                time.sleep(LONG)
        if not (stuck and fault == "skip"):
            dist.all_reduce(x.mean(), group=own)
        (model(x) - x.sin()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step and step % (AT + 1) == 0:
            dist.barrier()  # rank 0 saves


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
