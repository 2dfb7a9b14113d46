"""A network of PyTorch in pipeline stages, each sharded by FSDP, whose first step is captured.

Arguments: stages, data, schedule, fault. Stages keep the names that the whole network has.
"""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

import mspc.capture

STAGES, DATA, SCHEDULE, FAULT = int(sys.argv[1]), int(sys.argv[2]), (sys.argv[3:] or [""])[0], (sys.argv[4:] or [""])[0]
WIDTH, ROWS, LAYERS, PARTS = 8, 16, 4, 4
SCHEDULES = {"gpipe": ScheduleGPipe, "1f1b": Schedule1F1B, "interleaved": ScheduleInterleaved1F1B}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(self.norm(x))))


class Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: torch.Tensor) -> torch.Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx, gradient: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(gradient)


class Network(nn.Module):
    """The layers, or those of a stage."""

    def __init__(self, stage: int = 0, stages: int = 1) -> None:
        super().__init__()
        count = LAYERS // stages
        torch.manual_seed(0)
        whole = [Layer() for _ in range(LAYERS)]
        self.layers = nn.ModuleDict({str(i): whole[i] for i in range(stage * count, (stage + 1) * count)})

        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for layer in self.layers.values():
            x = layer(x)
        if FAULT == "dropped" and "1" in self.layers and self.calls % PARTS == 0:
            x = Dropped.apply(x)  # the gradient of one micro-batch
        return x


def by_hand(network: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor | None:
    """Run one of two stages, all micro-batches forward and then backward; return the loss on the second."""
    peer = (dist.get_rank() + DATA) % (2 * DATA)
    is_last = peer < dist.get_rank()
    buffers = [torch.empty_like(part) for part in x.chunk(PARTS)]
    if is_last:
        for work in [dist.irecv(buffer, peer) for buffer in buffers]:
            work.wait()
        if FAULT == "swapped":
            buffers[:2] = buffers[1::-1]
        inputs = [buffer.requires_grad_() for buffer in buffers]
        losses = [mean_square(network(a), b) / PARTS for a, b in zip(inputs, y.chunk(PARTS), strict=True)]
        for a, loss in zip(inputs, losses, strict=True):
            loss.backward()
            dist.isend(a.grad, peer).wait()
        return torch.stack(losses).sum()
    outputs = [network(part) for part in x.chunk(PARTS)]
    works = [dist.irecv(buffer, peer) for buffer in buffers]  # before the sends: no rank waits here
    works += [dist.isend(out.detach(), peer) for out in outputs]
    for out, buffer, work in zip(outputs, buffers, works, strict=False):
        work.wait()
        out.backward(buffer)
    return None


def mean_square(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return ((x - y) ** 2).mean()


x, y = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
if STAGES == 1:
    network = Network()
    optimizer = torch.optim.AdamW(network.parameters(), lr=0.01)
    mspc.capture.step(network, {"x": x}, lambda out: mean_square(out, y), optimizer)
else:
    mesh = init_device_mesh("cpu", (STAGES, DATA), mesh_dim_names=("stage", "data"))
    group, own = mesh["stage"].get_group(), mesh["stage"].get_local_rank()
    chunks = 2 if SCHEDULE == "interleaved" else 1
    numbers = [own + STAGES * i for i in range(chunks)]
    networks = [Network(number, STAGES * chunks) for number in numbers]
    if DATA > 1:
        for network in networks:
            fully_shard(network, mesh=mesh["data"])
    part = dist.get_rank() % DATA * (ROWS // DATA)
    x, y = x[part : part + ROWS // DATA], y[part : part + ROWS // DATA]
    parts = [
        PipelineStage(network, number, STAGES * chunks, torch.device("cpu"), group=group)
        for network, number in zip(networks, numbers, strict=True)
    ]
    kind = SCHEDULES.get(SCHEDULE, ScheduleGPipe)
    schedule = kind(parts if chunks > 1 else parts[0], PARTS, loss_fn=mean_square, scale_grads=FAULT != "scale")

    def passes() -> torch.Tensor | None:
        if SCHEDULE == "hand":
            return by_hand(networks[0], x, y)
        losses: list[torch.Tensor] = []
        schedule.step(*([x] if own == 0 else []), target=y, losses=losses)
        return torch.stack(losses).mean() if losses else None

    optimizer = torch.optim.AdamW([each for network in networks for each in network.parameters()], lr=0.01)
    mspc.capture.step(networks, {"x": x, "y": y}, optimizer=optimizer, run=passes)
