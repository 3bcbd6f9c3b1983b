"""A loop of one's own on any number of processes: torchrun --nproc_per_node=2 examples/own_loop.py"""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from samestep import get_dataloader_for_distributed, init_distributed, setup_distributed_models, sync_metrics

GLOBAL_BATCH = 60

rank, world_size, local_rank = init_distributed(device="cpu")
x = torch.linspace(-3, 3, 200)[:, None]
rows = TensorDataset(x, x.sin())
torch.manual_seed(0)
(net,) = setup_distributed_models(nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1)))
loader = get_dataloader_for_distributed(rows, batch_size=GLOBAL_BATCH // world_size)
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)

for epoch in range(20):
    for inputs, wanted in loader:
        loss = (net(inputs) - wanted).square().mean()
        (loss * loader.weight).backward()  # the gradient of the mean over all rows of the step, on every rank
        optimizer.step()
        optimizer.zero_grad()
        metrics = sync_metrics({"loss": (loss.detach() * loader.rows, loader.rows)})
    if rank == 0:
        print(f"epoch {epoch + 1} loss {metrics['loss']:.6f}")

if rank == 0:
    torch.save(net.state_dict(), "net.pt")  # the same names from one process and from many
torch.distributed.destroy_process_group()
