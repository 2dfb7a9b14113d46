"""Asks PyTorch what operators compute, and what their gradients are."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Parameter, Value
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.op import NotDifferentiable, Op
from mspc.runtime.backend import NumPyBackend
from mspc.verify.pytorch.counterparts import counterparts, counterparts_of_draws
from mspc.verify.training_steps.updates import update_formulas

Array = Any
Tensor = Any
REFUSED = (RuntimeError, NotImplementedError, TypeError, IndexError, ValueError)
"""What PyTorch raises for operands that it does not take."""


class TorchJudge:
    """PyTorch as a judge of single operators. torch: the library."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.table = counterparts(torch)
        self.draws = counterparts_of_draws(torch)
        self.updates = update_formulas(torch)

    def tensor(self, array: Array) -> Tensor:
        """A copy of an array."""
        array = np.asarray(array)
        if array.dtype.name == "bfloat16":
            return self.torch.tensor(array.astype(np.float32)).to(self.torch.bfloat16)
        return self.torch.tensor(np.ascontiguousarray(array).reshape(array.shape))

    def array(self, tensor: Tensor, like: Array) -> Array:
        """The tensor's elements, of the element type of another array."""
        tensor = tensor.detach().resolve_conj()
        wide = tensor.to(self.torch.float32) if tensor.dtype == self.torch.bfloat16 else tensor
        return wide.numpy().astype(np.asarray(like).dtype)

    def call(self, op: Any, operands: Sequence[Tensor], results: Sequence[Array]) -> tuple[Tensor | None, ...] | None:
        """What PyTorch makes of the operands, None for what is not judged; None where it has no counterpart. results:
        what mspc made."""
        if op.name in self.draws:
            operands = ([self.tensor(result) for result in results], *operands)
        function = self.draws.get(op.name) or self.table.get(op.name)
        if function is None:
            return None
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of what PyTorch plans to change
                found = function(op, *operands)
        except REFUSED:
            return None
        if found is None:
            return None
        return tuple(found) if isinstance(found, tuple | list) else (found,)

    def updated(self, op: Op, operands: Sequence[Tensor]) -> tuple[Tensor, ...] | None:
        """What the operands that an update overwrites hold afterwards; None where no formula is known."""
        formula = self.updates.get(op.name)
        return None if formula is None else formula(op, *operands)

    def rule(
        self, op: Op, operands: Sequence[Array], results: Sequence[Array], backend: NumPyBackend,
        fixed: Collection[int] = (),
    ) -> list[tuple[Array, Array]]:  # fmt: skip
        """For every operand that the operator has a gradient of, but for the `fixed` ones: (PyTorch's, its own), of
        results weighted at random. Float operands are Float64. Nothing where there is no counterpart."""
        tensors = [self.tensor(operand) for operand in operands]
        for index, tensor in enumerate(tensors):
            tensor.requires_grad_(tensor.is_floating_point() and index not in fixed)
        found = self.call(op, tensors, results)
        judged = [i for i, t in enumerate(found or ()) if t is not None and t.requires_grad]
        if found is None or not judged or isinstance(op.bprop, NotDifferentiable):
            return []
        generator = np.random.default_rng(len(operands))
        weights = {i: generator.uniform(0.5, 1.5, np.shape(results[i])) for i in judged}
        total = sum((found[i] * self.torch.tensor(w)).sum() for i, w in weights.items())
        wanted = [i for i, tensor in enumerate(tensors) if tensor.requires_grad]
        try:
            theirs = self.torch.autograd.grad(total, [tensors[i] for i in wanted], allow_unused=True)
            mine = _gradients(op, operands, len(results), weights, backend)
        except (*REFUSED, MspcError):  # one of the two does not differentiate it
            return []
        pairs = [(theirs[at], mine[i], operands[i]) for at, i in enumerate(wanted) if i not in op.distributions]
        zeros = [np.zeros_like(operand) for _, _, operand in pairs]
        return [
            (zero if tensor is None else self.array(tensor, zero), zero if gradient is None else gradient)
            for (tensor, gradient, _), zero in zip(pairs, zeros, strict=True)
        ]


def _gradients(
    op: Op, operands: Sequence[Array], count: int, weights: Mapping[int, Array], backend: NumPyBackend
) -> list[Array | None]:
    """The gradients that an operator's own rule makes of the weights of its results."""
    graph = Graph("rule")
    b = Builder(graph)
    inputs = [Parameter(f"x{i}", _type_of(operand)) for i, operand in enumerate(operands)]
    out = b.emit(op, *inputs)
    given = {i: Parameter(f"d{i}", _type_of(weight)) for i, weight in weights.items()}
    douts = [given.get(i) for i in range(count)]
    single = isinstance(out.type, TensorType)
    found = op.gradient(b, inputs, out, douts[0] if single else douts)
    values: dict[Value, Array] = dict(zip(inputs, map(np.array, operands), strict=True))
    values |= {given[i]: weight for i, weight in weights.items()}
    for node in graph.nodes:
        values[node] = node.op.kernel(backend)(*[value_at(values, v) for v in node.inputs])
    return [None if value is None else value_at(values, value) for value in found]


def _type_of(array: Array) -> TensorType:
    return TensorType(dtype_of(np.asarray(array).dtype), np.shape(array))


def value_at(values: Mapping[Value, Array], value: Value) -> Array:
    """The value of a node, a parameter or a constant."""
    return value.value if isinstance(value, Constant) else values[value]
