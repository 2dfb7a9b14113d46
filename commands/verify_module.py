"""`mspc verify --torch --against torch` holds one device against the module itself: its results and all gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from mspc.commands.compile import CompileOptions, FoundCall
from mspc.engine.capture import NamedTarget, made_by
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node
from mspc.verify.difference import ComparedValue, coarsest, compare, epsilon_of, floats_of, noise_between
from mspc.verify.one_device import ROUNDINGS, OneDevice
from mspc.verify.verification import VerifiedProgram, one_device

Array = Any
RUNS = 2
"""Runs of one device with other roundings, which tell how far rounding moves a value."""


def check_comparable(program: VerifiedProgram, options: CompileOptions) -> None:
    """Raises MspcError: the program draws random numbers, or computes otherwise than the module on purpose."""
    said = options.imported
    if said.precision or said.accumulate != 1:
        raise MspcError(
            "--against torch compares with the module as it is, so it takes no --precision and no --accumulate"
        )
    if any(getattr(node.op, "seeds", ()) for node in program.reference.graph.nodes):
        raise MspcError(
            "the program draws random numbers, as dropout does, and PyTorch would draw others",
            notes=["call model.eval() in the function, or set what is dropped to 0"],
        )


def module_rows(found: FoundCall, program: VerifiedProgram, options: CompileOptions) -> list[ComparedValue]:
    """The rows of the results and gradients of one step, beside those that the module computes of the same numbers.

    Raises:
        MspcError: the module is called with other tensors than the program.
    """
    from mspc.readers.pytorch.module_itself import module_step  # late: it brings PyTorch along

    target, said = found.target, options.imported
    assert isinstance(target, NamedTarget)
    network = next(
        cell for _, cell in found.captured.target.cells_and_names() if getattr(cell, "is_imported", False)
    )
    device, _, _ = one_device(program, program.reference.graph)
    arrays, weights = device.feeds[0][0], program.weights
    trains = any(node.attrs.get("gradient_for") for node in program.reference.graph.nodes)
    theirs = module_step(network, made_by(target), arrays, weights, said.loss, trains)
    results, gradients = _step(device, weights, arrays)
    others = [_step(device, *_moved(device, number)) for number in range(RUNS)]
    least, rows = coarsest(program.reference.graph), list[ComparedValue]()
    for i, (mine, expected) in enumerate(zip(results, theirs.results, strict=True)):
        noise = noise_between(mine, [other[0][i] for other in others])
        rows.append(compare("module", f"result {i}" if len(results) > 1 else "result", expected, _like(mine, expected),
                            least, noise))  # fmt: skip
    for name, mine in gradients.items():
        expected = theirs.gradients.get(name)
        expected = np.zeros(mine.shape, np.float32) if expected is None else expected
        noise = noise_between(mine, [other[1][name] for other in others])
        rows.append(compare("module's gradient", name, expected, _like(mine, expected), least, noise))
    return rows


def _step(
    device: OneDevice, weights: Mapping[str, Array], arrays: Sequence[Array]
) -> tuple[list[Array], dict[str, Array]]:
    """The results of one step, and what its updates read, by the parameters' names."""
    gradients: dict[str, Array] = {}

    def note(node: Node, gradient: Array) -> Array:
        gradients[str(node.attrs["gradient_for"])] = np.array(gradient)
        return gradient

    run = replace(device, weights=dict(weights), feeds=[[list(arrays)]], mark="", combine=note).run()[0][0]
    count = sum(isinstance(key, tuple) and key[0] == "result" for key in run)
    return [run["result", i] for i in range(count)], gradients


def _moved(device: OneDevice, number: int) -> tuple[dict[str, Array], list[Array]]:
    """The weights and inputs, moved by some rounding errors."""
    generator = np.random.default_rng(number)
    amount = ROUNDINGS * max(map(epsilon_of, floats_of(device.graph)), default=0.0)

    def moved(array: Array) -> Array:
        if array.dtype.kind not in "fV":
            return array
        signs = generator.choice([-1.0, 1.0], array.shape)
        return (array.astype(np.float64) * (1 + amount * signs)).astype(array.dtype)

    return {name: moved(array) for name, array in device.weights.items()}, [moved(a) for a in device.feeds[0][0]]


def _like(mine: Array, expected: Array) -> Array:
    """A value in the type of the one that it is held against; those in half precision come in Float32."""
    return mine.astype(expected.dtype) if mine.dtype != expected.dtype else mine
