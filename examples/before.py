"""A plain PyTorch loop, for one device: python examples/before.py. With samestep it becomes after.py."""

import torch
from torch import nn

torch.manual_seed(0)
x = torch.linspace(-3, 3, 1000)[:, None]
y = x.sin()
net = nn.Sequential(nn.Linear(1, 32), nn.Tanh(), nn.Linear(32, 1))
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
for epoch in range(20):
    for rows in torch.randperm(len(x)).split(50):
        loss = (net(x[rows]) - y[rows]).square().sum(1).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
    with torch.no_grad():
        print(f"epoch {epoch + 1}  error {(net(x) - y).square().sum(1).mean():.5f}")
torch.save(net.state_dict(), "net.pt")
