"""The nodes of a step whose loss is not finite run again on a GPU, one by one, until one makes such a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Parameter, Value
from mspc.ops.device import Array
from mspc.runtime.faults.finite import NOWHERE, Origin
from mspc.runtime.gpu.launches import arrays_of
from mspc.runtime.gpu.step import GpuStep


def search(step: GpuStep, fed: Sequence[tuple[Parameter, Any, Any]], stored: Mapping[Value, Array]) -> Origin:
    """See `finite.NonFiniteSearch`.

    Args:
        fed: the step's inputs, pinned memory for each, and its values where that memory does not hold them. stored:
        arrays of parameters.
    """
    device, graph, held, first = step.device, step.graph, "", NOWHERE
    # A later step that is under way may have other inputs.
    for parameter, pinned, array in fed:
        if array is not None:
            np.copyto(pinned, array)
        device.send(pinned, stored[parameter])
    device.synchronize()
    for parameter in graph.parameters:
        if not held and not _is_finite(step, parameter):
            kind = {"input": "argument"}.get(parameter.kind, parameter.kind)
            held = f"{kind} {parameter.name!r} held such a value before the step"
    for work in sorted((*step.anew, *step.work), key=lambda work: work.index):
        # Messages of other stages come anew: other values may lie in their places since they were read.
        if not (work.ahead or 0 <= work.index < step.boundary):
            continue
        with device.stream(work.stream):
            work.launch()
            over = device.signal()
        with device.stream("compute"):
            device.wait(over)
        device.synchronize()
        if work.index >= 0 and first == NOWHERE and not _is_finite(step, graph.nodes[work.index]):
            first = work.index
    return Origin(held, int(first))


def _is_finite(step: GpuStep, value: Value) -> bool:
    device = step.device
    for array in arrays_of(step.arrays(value)):
        if array.dtype.kind not in "fV":
            continue
        found = np.empty(array.shape, array.dtype)
        with device.stream("compute"):
            device.receive(device.xp.ascontiguousarray(array), found)
        device.synchronize()
        if not np.isfinite(found).all():
            return False
    return True
