"""Training steps in PyTorch: eager or compiled, with fused optimizers; halves by autocast."""

from __future__ import annotations

import importlib
from typing import Any

import torch

from benchmarks.gpu.networks.program import Program, Task, resident
from benchmarks.gpu.networks.start import Optimizer, first_values


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
    optimizer = optimizer_of(task.optimizer, network.parameters())
    data = [on_device(value, task, channels_last) for value in task.data]

    def loss_of(*data: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device, torch.bfloat16, enabled=task.dtype == "bf16"):
            return network(*data)

    forward = torch.compile(loss_of, mode=task.mode) if task.mode else loss_of

    def step() -> torch.Tensor:
        optimizer.zero_grad(set_to_none=True)
        loss = forward(*data)
        loss.backward()
        if task.optimizer.clip is not None:
            torch.nn.utils.clip_grad_norm_(network.parameters(), task.optimizer.clip)
        optimizer.step()
        return loss.detach().clone()

    wait = torch.cuda.synchronize if task.device == "gpu" else lambda: None
    peak = torch.cuda.max_memory_allocated if task.device == "gpu" else resident
    return Program(step, float, wait, peak, {name: tuple(p.shape) for name, p in network.named_parameters()})
