"""`mspc verify --torch --against torch` compares one device with the module itself: results and all gradients."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mspc.commands.compile import CompileOptions, FoundCall
from mspc.engine.capture import NamedTarget, build_target
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node
from mspc.ops.random.dropout import Dropout
from mspc.runtime.backend import NumPyBackend
from mspc.verify.difference import ComparedValue, coarsest, compare, noise_between
from mspc.verify.one_device import Movement, OneDevice
from mspc.verify.verification import VerifiedProgram, one_device

Array = Any


def check_comparable(program: VerifiedProgram, options: CompileOptions) -> None:
    """Raise MspcError if the program draws random numbers that cannot be given to PyTorch, or if options change its
    results relative to the module."""
    said = options.imported
    if said.precision or said.accumulate != 1:
        raise MspcError(
            "--against torch compares with the module as it is, so it takes no --precision and no --accumulate"
        )
    for node in program.reference.graph.nodes:
        inner = [each for region in node.regions for graph in region.graphs() for each in graph.nodes]
        if not isinstance(node.op, Dropout) and any(getattr(each.op, "seeds", ()) for each in (node, *inner)):
            raise MspcError(
                f"{node.label} draws random numbers, and PyTorch would draw others",
                frames=node.frames,
                notes=["it is given the masks of nn.Dropout alone; call model.eval() in the function to draw none"],
            )


def module_rows(found: FoundCall, program: VerifiedProgram, options: CompileOptions) -> list[ComparedValue]:
    """Return rows that compare the results and gradients of one step with those of the module for the same numbers.
    Raise MspcError if the module is called with other tensors than the program."""
    from mspc.readers.pytorch.network import module_step  # late: it brings PyTorch along

    target, said = found.target, options.imported
    assert isinstance(target, NamedTarget)
    network = next(cell for _, cell in found.captured.target.cells_and_names() if getattr(cell, "is_imported", False))
    device, _, _ = one_device(program, program.reference.graph)
    arrays, weights = device.feeds[0][0], program.weights
    trains = any(node.attrs.get("gradient_for") for node in program.reference.graph.nodes)
    results, gradients, masks = _step(device, weights, arrays)
    theirs = module_step(network, build_target(target), arrays, weights, said.loss, trains, masks)
    moves = [Movement(device.graph, weights, sign) for sign in (1.0, -1.0)]
    others = [_step(device, move.weights, [move.array(each, 0) for each in arrays]) for move in moves]
    least, rows = coarsest(program.reference.graph), list[ComparedValue]()
    for i, (mine, expected) in enumerate(zip(results, theirs.results, strict=True)):
        noise = partial(noise_between, mine, [other[0][i] for other in others])
        rows.append(compare("module", f"result {i}" if len(results) > 1 else "result", expected, _like(mine, expected),
                            least, noise))  # fmt: skip
    for name in dict.fromkeys([*gradients, *theirs.gradients]):
        expected, mine = theirs.gradients.get(name), gradients.get(name)
        if mine is None:  # a parameter that the program does not train
            mine = np.zeros_like(expected)
        expected = np.zeros(mine.shape, np.float32) if expected is None else expected
        noise = partial(noise_between, mine, [other[1][name] for other in others if name in other[1]])
        rows.append(compare("module's gradient", name, expected, _like(mine, expected), least, noise))
    return rows


def _step(
    device: OneDevice, weights: Mapping[str, Array], arrays: Sequence[Array]
) -> tuple[list[Array], dict[str, Array], list[Array]]:
    """Return the results of one step, the gradients that its updates read, by parameter, and the masks of dropout."""
    gradients: dict[str, Array] = {}
    masks: list[Array] = []

    def masked(node: Node, backend: NumPyBackend) -> Callable[..., Any] | None:
        if not isinstance(node.op, Dropout):
            return None
        kernel = node.op.kernel(backend)

        def kept(*operands: Array) -> Any:
            found = kernel(*operands)
            if node.phase == "forward":
                masks.append(np.array(found[1]))
            return found

        return kept

    def note(node: Node, gradient: Array) -> Array:
        gradients[str(node.attrs["gradient_for"])] = np.array(gradient)
        return gradient

    run = replace(device, weights=dict(weights), feeds=[[list(arrays)]], mark="", combine=note, kernels=masked)
    run = run.run()[0][0]
    count = sum(isinstance(key, tuple) and key[0] == "result" for key in run)
    return [run["result", i] for i in range(count)], gradients, masks


def _like(mine: Array, expected: Array) -> Array:
    """Return a value in the dtype of the one with which it is compared; half precision values arrive in Float32."""
    return mine.astype(expected.dtype) if mine.dtype != expected.dtype else mine
