"""Convolutions and their gradients get kernels of compiled functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from mspc.ir.types import TensorType
from mspc.ops.convolution.base import Convolution
from mspc.ops.convolution.convolve import InputGradient, WeightGradient
from mspc.ops.convolution.window import Window
from mspc.ops.cpu.loops.addresses import Addresses
from mspc.ops.cpu.loops.convolve.source import OF_IMAGES, OF_WEIGHTS
from mspc.ops.cpu.loops.convolve.tables import ConvolutionTables, StridedOperand, of_images, of_weights, strided
from mspc.ops.cpu.loops.kernel import Function, Kernel, shared
from mspc.ops.cpu.scratch import scratch

_FASTER = 8
"""Multiplications of a convolution that take the time of one operation of a loop over elements."""
PACKED_FOR = 1 << 8
"""Positions of all images that do not make up for packing the weights, which are more than the images then."""


class ConvolutionSource(NamedTuple):
    """text: C++ of a function, called NAME. order: the operator's operands as the function takes them."""

    text: str
    tables: ConvolutionTables
    order: tuple[int, int]
    only_finite: bool


def compiled_convolution(op: Convolution, types: Sequence[TensorType], result: TensorType) -> ConvolutionSource | None:
    """How an operator on operands of these types is compiled; None where it is not: other element types than Float32,
    what has no elements, and what is faster otherwise."""
    if any(type.dtype.name != "Float32" or not type.size for type in (*types, result)):
        return None
    first, second = (strided(type.shape, op.channels_last) for type in types)
    made = strided(result.shape, op.channels_last)
    groups = op.group
    if isinstance(op, WeightGradient):
        along = op.along(second.sizes[5 - op.dims :])
        return ConvolutionSource(OF_WEIGHTS, of_weights(second, first, made, along, groups), (1, 0), False)
    gradient = isinstance(op, InputGradient)
    along = op.along((made if gradient else first).sizes[5 - op.dims :])
    if groups == 1 and better_in_blas(along, first if gradient else made):
        return None
    return ConvolutionSource(OF_IMAGES, of_images(first, second, made, along, groups, gradient), (0, 1), gradient)


def better_in_blas(along: Sequence[Window], result: StridedOperand) -> bool:
    """Whether a convolution with this result, or the gradient of its image, is faster as NumPy makes it."""
    positions = math.prod(result.sizes) // result.sizes[1]
    return all(window.size == 1 for window in along) or positions <= PACKED_FOR


def convolution_kernel(made: ConvolutionSource, result: TensorType, function: Function, plain: Kernel) -> Kernel:
    """The kernel `function(*operands, out=None)`. plain: NumPy's, which leaves padding out of the images' gradient,
    where factors that are not finite would make NaN of it."""
    tables = made.tables
    addresses = Addresses(6)
    flag = np.zeros(1, np.int64)
    addresses.hold(4, tables.numbers)
    addresses.hold(5, flag)

    prepare = shared(function, tables.prepared, tables.ready)
    run = shared(function, tables.parts, tables.multiplications // _FASTER, tables.prepared)

    def kernel(*operands: Any, out: Any = None) -> Any:
        found = np.empty(result.shape, result.dtype.numpy) if out is None else out
        target = found if found.flags.c_contiguous else np.empty(result.shape, result.dtype.numpy)
        for place, operand in enumerate(made.order):
            addresses.read(place, operands[operand], result.dtype.numpy)
        addresses.put(2, target)
        ready = scratch("packed", (tables.ready,), np.float32)  # a name, as nothing else holds a large one
        addresses.put(3, ready)
        flag[0] = 0
        prepare(addresses.table)
        if made.only_finite and flag[0]:
            target[...] = plain(*operands)
        else:
            run(addresses.table)
        addresses.release()
        if target is not found:
            np.copyto(found, target)
        return found

    return kernel
