"""A module computes a step by PyTorch itself, with the inputs and weights that an exported program has, to judge it."""

from __future__ import annotations

import importlib
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.readers.pytorch.network import ImportedNetwork
from mspc.readers.pytorch.program import NodeResult

Array = Any


@dataclass(frozen=True)
class ModuleStep:
    """What PyTorch has computed. results: those that the network returns, in order, or the loss alone. gradients: of
    the loss, by the names of parameters; empty where nothing is differentiated."""

    results: list[Array]
    gradients: dict[str, Array]


def module_step(
    network: ImportedNetwork, made: Any, arrays: Sequence[Array], weights: Mapping[str, Array], loss: str, trains: bool,
    masks: Sequence[Array] = (),
) -> ModuleStep:
    """One forward pass, and backward where it `trains`.

    Args:
        network: the exported program. made: what a function gave: the module, with the inputs of an example. arrays:
            the tensors that the network is called with, labels last where the loss needs some. weights: of parameters
            and buffers by name, which the module gets. loss: `cross_entropy`, `mse`, or anything else for the result.
        masks: what the program's calls of dropout keep, in order.

    Raises:
        MspcError: the module is called with other tensors than the program, or draws otherwise.
    """
    torch, tree = importlib.import_module("torch"), importlib.import_module("torch.utils._pytree")
    parts = cast(Sequence[Any], made if isinstance(made, tuple) else (made,))
    module, inputs, named = (*parts, *((), {})[len(parts) - 1 :])
    inputs = (inputs,) if isinstance(inputs, torch.Tensor) else tuple(inputs)
    external = loss in ("cross_entropy", "mse")
    given = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays[: len(arrays) - external]]
    leaves, spec = tree.tree_flatten((inputs, dict(named)))
    places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
    if len(places) != len(given):
        raise MspcError(f"the module takes {len(places)} tensors, and the program was exported with {len(given)}")
    for place, tensor in zip(places, given, strict=True):
        leaves[place] = tensor.to(leaves[place].dtype)
    same = network.program.same
    with torch.no_grad():
        for name, tensor in (*module.named_parameters(), *module.named_buffers()):
            if same.get(name, name) in weights:
                tensor.copy_(torch.from_numpy(np.array(weights[same.get(name, name)])).to(tensor.dtype))
        for name, part in network.program.parts.items():
            own = module.get_parameter(part.whole).narrow(part.dim, part.begin, part.end - part.begin)
            own.copy_(torch.from_numpy(np.array(weights[name])).to(own.dtype))
    inputs, named = tree.tree_unflatten(leaves, spec)
    with _masked(torch, masks):
        found = [leaf for leaf in tree.tree_flatten(module(*inputs, **named))[0] if isinstance(leaf, torch.Tensor)]
    users = [each for each in network.program.outputs if each.kind in ("user", "loss")]
    tensors = [each for each in users if isinstance(each.value, NodeResult)]
    results = [found[tensors.index(each)] for each in network.results if each in tensors]
    if external:
        results = [_loss(torch, loss, results[0], torch.from_numpy(np.ascontiguousarray(arrays[-1])))]
    gradients: dict[str, Array] = {}
    if trains:
        results[0].backward()
        gradients = {
            same.get(name, name): _array(parameter.grad)
            for name, parameter in module.named_parameters()
            if parameter.grad is not None
        }
        for name, part in network.program.parts.items():
            whole = module.get_parameter(part.whole).grad
            if whole is not None:
                gradients[name] = _array(whole.narrow(part.dim, part.begin, part.end - part.begin))
    return ModuleStep([_array(each) for each in results], gradients)


@contextmanager
def _masked(torch: Any, masks: Sequence[Array]) -> Generator[None]:
    """Let dropout of modules keep the elements of these masks, one call after the other. Raises MspcError."""
    functional, own, used = torch.nn.functional, torch.nn.functional.dropout, 0

    def dropout(input: Any, p: float = 0.5, training: bool = True, inplace: bool = False) -> Any:
        nonlocal used
        if not training or p == 0.0:
            return input
        used += 1
        if used > len(masks) or tuple(input.shape) != masks[used - 1].shape:
            raise MspcError(f"call {used} of dropout in the module has no counterpart in the program")
        return input * torch.from_numpy(masks[used - 1].astype(np.float32)).to(input.dtype) / (1 - p)

    functional.dropout = dropout
    try:
        yield
    finally:
        functional.dropout = own
    if used < len(masks):
        raise MspcError(f"the program has {len(masks)} masks of dropout, and the module calls it {used} times")


def _loss(torch: Any, name: str, result: Any, labels: Any) -> Any:
    """A loss of a result and labels, as `training.LOSSES` has it."""
    functional = torch.nn.functional
    if name == "mse":
        return functional.mse_loss(result, labels)
    if result.ndim == 3:
        result, labels = result.reshape(-1, result.shape[-1]), labels.reshape(-1)
    return functional.cross_entropy(result, labels)


def _array(tensor: Any) -> Array:
    """As NumPy has it; of half-precision numbers those in Float32."""
    found = tensor.detach()
    return (found.float() if str(found.dtype) in ("torch.bfloat16", "torch.float16") else found).numpy()
