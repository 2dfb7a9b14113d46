"""Exports a module with its loss, and writes what PyTorch computes: the loss, all gradients, and changed buffers."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np

GRADIENT, BUFFER, LOSS = "gradient:", "buffer:", "loss"
"""What stands before the names of arrays that PyTorch has computed; others are the tensors of the call."""


def export(module: Any, data: dict[str, Any], target: Path, dtype: str) -> None:
    """Writes `target` (.pt2) and beside it the numbers (.npz). dtype: of the module and its inputs."""
    import torch

    kind = getattr(torch, dtype)
    module = module.to(kind)
    data = {name: value.to(kind) if value.is_floating_point() else value for name, value in data.items()}
    untouched = copy.deepcopy(module)
    program = torch.export.export(module, (), data, strict=False)
    torch.export.save(program, target)
    loss = untouched(**data)[LOSS]
    loss.backward()
    arrays = {name: value.detach().numpy() for name, value in data.items()} | {LOSS: loss.detach().numpy()}
    for name, parameter in untouched.named_parameters():
        if parameter.grad is not None:
            arrays[GRADIENT + name] = parameter.grad.numpy()
    for name, buffer in untouched.named_buffers():
        arrays[BUFFER + name] = buffer.numpy()
    np.savez(target.with_suffix(".npz"), **arrays)
