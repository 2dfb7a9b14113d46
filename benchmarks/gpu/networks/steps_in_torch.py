"""Training steps in PyTorch: eager or compiled, with fused optimizers; halves by autocast."""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.gpu.networks.program import Program, Task, next_line, resident
from benchmarks.gpu.networks.sizes import Optimizer, first_values


def optimizer_of(said: Optimizer, parameters: Any) -> torch.optim.Optimizer:
    if said.kind == "adamw":
        return torch.optim.AdamW(parameters, said.rate, weight_decay=said.weight_decay, fused=True)
    if said.kind == "adam":
        return torch.optim.Adam(parameters, said.rate, fused=True)
    return torch.optim.SGD(parameters, said.rate, said.momentum, fused=True)


def on_device(value: Any, task: Task, channels_last: bool) -> torch.Tensor:
    tensor = torch.from_numpy(value).to("cuda" if task.device == "gpu" else "cpu")
    if channels_last and tensor.ndim == 4:
        return tensor.to(memory_format=torch.channels_last)
    return tensor if tensor.is_floating_point() else tensor.long()


def spread(task: Task, network: Any, device: str) -> tuple[Any, ...]:
    """Make the network one rank's of several, as `torch.distributed.run` has started them.

    Returns (the rank's part of the data, what is around a step, the next line on all ranks, whether this is the first
    rank, the mean of a loss over the ranks). Without tensor parallel ranks gradients are reduced by `replicate`, DDP's
    form that changes a module in place; with them by `fully_shard`, whose parameters stay gathered for the gradient.
    """
    from torch import distributed
    from torch.distributed._composable import replicate
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    rank = distributed.get_rank()
    if device == "cuda":
        torch.cuda.set_device(rank)
        network.cuda()
    mesh = init_device_mesh(device, tuple(task.ranks[:2]), mesh_dim_names=("data", "tensor"))
    around: Callable[[], Any] = contextlib.nullcontext
    if task.ranks.tensor > 1:
        module = importlib.import_module(f"benchmarks.gpu.networks.{task.network}.shard_in_torch")
        module.shard(network, mesh["tensor"])
        around = module.surroundings
        for layer in [*network.layers, network]:
            fully_shard(layer, mesh=mesh["data"], reshard_after_forward=False)
    else:
        replicate(network, device_mesh=mesh["data"])
    place, count = rank // task.ranks.tensor, task.ranks.data
    waiting = distributed.new_group(backend="gloo")  # NCCL would keep the GPU busy that others are timed on
    given = [value[len(value) // count * place : len(value) // count * (place + 1)] for value in task.data]

    def line() -> str:
        said = [next_line() if not rank else ""]
        distributed.broadcast_object_list(said, group=waiting)
        return said[0]

    def mean(loss: Any) -> float:
        total = (loss.full_tensor() if hasattr(loss, "full_tensor") else loss).clone()
        distributed.all_reduce(total, group=mesh["data"].get_group())
        return float(total) / count

    return given, around, line, not rank, mean


def built(task: Task) -> Program:
    """The program of a task."""
    if task.device == "gpu" and not torch.cuda.is_available():
        raise ModuleNotFoundError("PyTorch finds no GPU")
    device = "cuda" if task.device == "gpu" else "cpu"
    allowed = task.dtype != "f32"
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = allowed
    torch.backends.cudnn.benchmark = True
    module = importlib.import_module(f"benchmarks.gpu.networks.{task.network}.in_torch")
    channels_last = getattr(module, "CHANNELS_LAST", False)
    network = module.Network(task.sizes)
    values = first_values({name: tuple(parameter.shape) for name, parameter in network.named_parameters()})
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            parameter.copy_(torch.from_numpy(values[name]))
    network = network.to(device).train()
    if channels_last:
        network = network.to(memory_format=torch.channels_last)
    given: Any = task.data
    around: Callable[[], Any] = contextlib.nullcontext
    line, speaks, mean = next_line, True, float
    if task.ranks.count > 1:
        given, around, line, speaks, mean = spread(task, network, device)
    optimizer = optimizer_of(task.optimizer, network.parameters())
    data = [on_device(value, task, channels_last) for value in given]

    def loss_of(*data: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=task.dtype == "bf16"), around():
            return network(*data)

    forward = torch.compile(loss_of, mode=task.mode) if task.mode else loss_of

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*data)
        with around():
            loss.backward()
        if task.optimizer.clip is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), task.optimizer.clip)
        optimizer.step()
        return loss.detach().clone()

    wait = torch.cuda.synchronize if task.device == "gpu" else lambda: None
    peak = torch.cuda.max_memory_allocated if task.device == "gpu" else resident
    shapes = {name.removeprefix("module."): tuple(p.shape) for name, p in network.named_parameters()}
    return Program(step, mean, wait, peak, shapes, line, speaks)
