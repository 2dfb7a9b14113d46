"""Judges a program's values and gradients by PyTorch: its text runs as plain Python on PyTorch's tensors.

`x += y` is read as `x = x + y`, as graphs have it: PyTorch would change the tensor itself.
"""

from __future__ import annotations

import ast
from typing import Any

import numpy as np
import torch

from tests.control.cells import Cell, names
from tests.control.plain import Arrays, executed
from tests.control.program import ControlProgram


class _Rebinding(ast.NodeTransformer):
    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AST:
        read = ast.parse(ast.unparse(node.target), mode="eval").body
        return ast.copy_location(ast.Assign([node.target], ast.BinOp(read, node.op, node.value)), node)


class Differentiated:
    """A program as PyTorch runs it."""

    def __init__(self, program: ControlProgram) -> None:
        tree = ast.fix_missing_locations(_Rebinding().visit(ast.parse(program.text)))
        code = compile(tree, f"<program {program.seed}>", "exec")
        self.namespace = executed(program.text, program.seed, names(_tensor, _ops(), _TYPES), code)
        self.states = list(program.states)

    def values(self) -> Arrays:
        """The results, and the states behind them, as `Plain.values`."""
        net = self.namespace["net"]
        with torch.no_grad():
            found = net(*self.namespace["arguments"])
        found = found if isinstance(found, tuple) else (found,)
        arrays = {f"result {i}": result.numpy() for i, result in enumerate(found)}
        if isinstance(net, Cell):
            arrays |= {f"{name} behind it": net.parameters[name].value.numpy() for name in self.states}
        return arrays

    def gradients(self, moved: float = 0.0) -> Arrays:
        """`total`, and its gradients in the float arguments and in what is trained. moved: as `Plain.values` has it."""
        generator = np.random.default_rng(0)
        arguments = list(self.namespace["arguments"])
        floats = [i for i, argument in enumerate(arguments) if argument.is_floating_point()]
        for i in floats:
            signs = torch.tensor(generator.choice((-1.0, 1.0), tuple(arguments[i].shape)))
            arguments[i] = (arguments[i] * (1 + signs * moved)).requires_grad_()
        net = self.namespace["net"]
        trained = net.trainable() if isinstance(net, Cell) else {}
        for parameter in trained.values():
            parameter.value = parameter.value.clone().requires_grad_()
        total = self.namespace["total"](*arguments)
        sources = [*(arguments[i] for i in floats), *(parameter.value for parameter in trained.values())]
        if total.requires_grad:
            found = torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)
        else:
            found = [torch.zeros_like(source) for source in sources]
        labels = [*"xys", *trained]
        arrays = {f"gradient in {label}": g.numpy() for label, g in zip(labels, found, strict=True)}
        return arrays | {"total": total.detach().numpy()}


_TYPES = {"float64": torch.float64, "int32": torch.int32, "int64": torch.int64}


def _tensor(value: Any, kind: Any) -> Any:
    return torch.tensor(value, dtype=kind)


def _ops() -> dict[str, Any]:
    same = ("tanh", "sin", "cos", "exp", "logical_not", "logical_and", "logical_or", "add", "sub", "mul", "matmul")
    found: dict[str, Any] = {name: getattr(torch, name) for name in same}
    return found | {"expand_dims": torch.unsqueeze, "stop_gradient": torch.Tensor.detach}
