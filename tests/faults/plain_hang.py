"""The same faults in a hand-written loop: DistributedDataParallel, started by plain torchrun.

torchrun --nproc_per_node=2 tests/faults/plain_hang.py FAULT MOMENT
"""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from faults.hang_faults import HANG_SECONDS, HANG_STEP, hang


def main(fault: str, moment: Path) -> None:
    """Train forever, unless a rank hangs."""
    dist.init_process_group("gloo")
    group = dist.new_group(backend="gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1)))
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(100_000):
        x = torch.rand(4, 1)
        hangs = step == HANG_STEP and dist.get_rank() == 1
        if hangs:
            moment.write_text(str(time.time()))
            hang(fault)
            if fault in ("data", "save"):
                time.sleep(HANG_SECONDS)
        if not (hangs and fault == "skip"):
            dist.all_reduce(x.mean(), group=group)
        (model(x) - x.sin()).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if step and step % (HANG_STEP + 1) == 0:
            dist.barrier()  # in place of a save by rank 0


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
