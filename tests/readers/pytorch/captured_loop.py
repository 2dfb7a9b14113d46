"""A loop of two steps with gradients accumulated and clipped, in DistributedDataParallel if there are several ranks.

The backend of torch.compile captures the second step. Argument: "item" to read the loss.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import mspc.capture

torch.manual_seed(0)
network: nn.Module = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 8))
x, y = torch.randn(2, 8, 8), torch.randn(2, 8, 8)
if dist.is_initialized():
    network = DistributedDataParallel(network)
    own = slice(dist.get_rank() * 4, dist.get_rank() * 4 + 4)
    x, y = x[:, own], y[:, own]
optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
optimizer.optim = "an attribute of the script"
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
model = torch.compile(network, backend=mspc.capture.backend())
for _ in range(2):
    optimizer.zero_grad()
    for at in range(2):
        loss = ((model(x[at]) - y[at]) ** 2).mean() / 2
        loss.backward()
    if sys.argv[1:] == ["item"]:
        print(loss.item())
    nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    optimizer.step()
    schedule.step()
