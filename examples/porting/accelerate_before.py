"""Train a classifier with Accelerate: accelerate launch accelerate_before.py. The port is accelerate_after.py."""

import torch
from accelerate import Accelerator
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 2))


def points() -> tuple[Tensor, Tensor]:
    at = 2 * torch.rand(121, 2, generator=torch.Generator().manual_seed(0)) - 1
    return at, (at.norm(dim=1) < 0.8).long()


torch.manual_seed(0)
net, (at, inside) = network(), points()
accelerator = Accelerator(gradient_accumulation_steps=2)
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.0)
loader = DataLoader(TensorDataset(at[:90], inside[:90]), batch_size=5, shuffle=True)
held_out = DataLoader(TensorDataset(at[90:], inside[90:]), batch_size=5)
net, optimizer, loader, held_out = accelerator.prepare(net, optimizer, loader, held_out)
accuracies = []
for epoch in range(3):
    net.train()
    for x, y in loader:
        with accelerator.accumulate(net):
            loss = cross_entropy(net(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    net.eval()
    with torch.no_grad():
        right = [accelerator.gather_for_metrics(net(x).argmax(1) == y) for x, y in held_out]
    accuracies.append(float(torch.cat(right).float().mean()))
    accelerator.print(f"epoch {epoch + 1}  accuracy {accuracies[-1]:.3f}")
accelerator.wait_for_everyone()
accelerator.save(accelerator.unwrap_model(net).state_dict(), "net.pt")
