"""Copies between device and host, and splits that a user wrote by hand."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import NamedLayout
from mspc.ir.types import TensorType
from mspc.ops.control.structural import constrained
from mspc.ops.device import Array, Copy, Device, Launch
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RequestedSharding, sample
from mspc.ops.optim.optimizer import Assign
from mspc.sharding.rules import broadcast_rule


class HostCopy(Op, abstract=True):
    """A copy of operand 0 in the other memory, equal bit for bit."""

    any_types = True
    takes_complex = True
    traffic = "host_copies"
    bprop = NotDifferentiable("copies between device and host are decided after all gradients are taken")
    samples = (sample((8, 16), gradient=False), sample((16,), gradient=False))

    def rule(self, input: TensorType) -> str:
        return broadcast_rule((input.shape,))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return types[0].nbytes

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return xp.array(inputs[0])

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        def kernel(source: Any, out: Any) -> Any:
            np.copyto(out, source)
            return out

        return kernel


class ToHost(HostCopy):
    """The value in the host's memory."""

    def launch(self, device: Device, out: Any, source: Array) -> Launch | None:
        return lambda: device.receive(source, out)


class FromHost(HostCopy):
    """A value of the host's memory on the device."""

    def launch(self, device: Device, out: Any, source: Array) -> Launch | None:
        return lambda: device.send(source, out)


class AwaitHost(HostCopy):
    """The host copy that ToHost or AssignOnHost started, once it is complete: the copied tensor may then be
    overwritten."""

    may_alias = True
    has_side_effect = True  # must run without readers, too: overwriting the source waits for it

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return 0

    def compute(self, xp: Any, *inputs: Any) -> Any:
        return inputs[0]

    def kernel_into(self, be: ArrayBackend) -> Callable[..., Any] | None:
        return None

    def launch(self, device: Device, out: Any, *inputs: Array) -> Launch | None:
        return _nothing


class AssignOnHost(Assign):
    """A parameter that lives on the host = a value on the device."""

    traffic = "host_copies"
    cuda_update = ""
    neutral: ClassVar[Mapping[int, float | None]] = {}
    bprop = NotDifferentiable("copies between device and host are decided after all gradients are taken")
    samples = (sample((8, 16), (8, 16), gradient=False), sample((16,), (16,), gradient=False))

    def touched_bytes(self, types: Sequence[TensorType], results: Sequence[TensorType]) -> int | None:
        return types[0].nbytes

    def launch(
        self, device: Device, out: Any, *inputs: Array, copies: Mapping[int, Copy] | None = None
    ) -> Launch | None:
        target, source = inputs
        return lambda: device.receive(source, target)


def _nothing() -> None:
    """Launch nothing: streams wait."""

REQUESTS = ("manual_split", "manual_split_with_offset")


def gathered_by_hand(
    b: Builder, op: Op, axis: int, offset: int, asked: RequestedSharding, inputs: Sequence[Value]
) -> Sequence[Value] | None:
    """Return the look-up `op` in a table that is stored in slices, None if there is no such attribute.

    Raises:
        MspcError: the attribute does not fit the strategy or the table.
    """
    attribute = next((name for name in REQUESTS if asked.attrs.get(name) not in (None, False)), None)
    if attribute is None:
        return None
    label = f"{op.name}: {attribute}"
    ins = asked.in_strategy
    if ins is None or len(ins) != 2 or any(isinstance(entry, NamedLayout) for entry in ins):
        raise MspcError(f"{label} needs a strategy of two tuples", notes=["shard the operator, as in ((2, 1), (1, 2))"])
    table, ids = ins
    sizes = _rows(label, attribute, asked.attrs[attribute])
    if axis != 0:
        raise MspcError(f"{label} needs axis 0, not {axis}")
    if offset != 0:
        raise MspcError(f"{label} needs offset 0, not {offset}")
    if not table or len(sizes) != table[0] or not ids or table[0] != ids[-1]:
        raise MspcError(
            f"{label} has {len(sizes)} parts, but the strategy shards the table {table[0] if table else 1} ways and "
            f"the fields {ids[-1] if ids else 1} ways"
        )
    used, ranks = math.prod(table), b.graph.attrs.get("ranks", 1)
    if used < ranks:
        raise MspcError(f"{label} needs a part for each of the {ranks} ranks, but the strategy {table} has {used}")
    rows = inputs[0].shape[0]
    if sum(sizes) != rows:
        raise MspcError(f"{label} has {sum(sizes)} rows in all, the table {rows}")
    found = b.emit(op, constrained(b, inputs[0], table), inputs[1])
    found.in_strategy, found.out_strategy = ((1, *table[1:]), ids), asked.out_strategy
    return (found,)


def _rows(label: str, attribute: str, given: object) -> list[int]:
    """Return the rows of every part. Raise MspcError if the attribute is not a valid division."""
    wanted = "numbers of rows" if attribute == "manual_split" else "pairs (rows, offset)"
    entries = cast("Sequence[object]", given) if isinstance(given, (tuple, list)) else ()
    sizes: list[int] = []
    for entry in entries:
        if attribute == "manual_split":
            size = entry
        else:
            pair = cast("Sequence[object]", entry) if isinstance(entry, (tuple, list)) else ()
            size = pair[0] if len(pair) == 2 else None
        if isinstance(size, int) and size > 0:
            sizes.append(size)
    if not isinstance(given, (tuple, list)) or len(sizes) != len(entries):
        raise MspcError(f"{label} must be a tuple of {wanted}, not {given!r}")
    return sizes
