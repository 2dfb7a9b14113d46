"""Regions of scalars as programs, which the library runs for arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ops.math.xla_elementwise import ELEMENTWISE, Program
from mspc.readers.stablehlo.emitter import HloEmitter, Known, tensor
from mspc.readers.stablehlo.kinds.kind import symbol, word
from mspc.readers.stablehlo.kinds.scalar_kinds import ORDERS
from mspc.readers.stablehlo.module import HloOperation, HloRegion

_KEPT = ("reshape", "broadcast_in_dim", "optimization_barrier", "copy", "bitcast", "sharding_constraint", "custom_call")
"""Operations that change no number of shape ()."""


def program_of(e: HloEmitter, region: HloRegion) -> Program:
    """Return the program of a region. Raise MspcError if it has an operation that is not elementwise."""
    builder = _Builder(e, len(region.arguments))
    found = builder.results(region, list(range(builder.count)))
    return tuple(builder.instructions), tuple(found)


class _Builder:
    def __init__(self, e: HloEmitter, count: int) -> None:
        self.e, self.count = e, count
        self.instructions: list[tuple[Any, ...]] = []

    def add(self, name: str, operands: tuple[int, ...], settings: tuple[Any, ...] = ()) -> int:
        self.instructions.append((name, operands, settings))
        return self.count + len(self.instructions) - 1

    def results(self, region: HloRegion, given: list[int]) -> list[int]:
        numbers = dict(zip(region.arguments, given, strict=True))

        def number(name: str) -> int:
            if name not in numbers:
                numbers[name] = self.outside(name)
            return numbers[name]

        for operation in region.operations:
            operands = tuple(number(name) for name in operation.operands)
            if operation.name in ("stablehlo.return", "func.return", "return", "mhlo.return"):
                return list(operands)
            found = self.of_operation(operation, operands)
            numbers.update(zip(operation.results, found, strict=False))
        raise MspcError("a region returns nothing")

    def outside(self, name: str) -> int:
        """Return the number of a value from outside of the region, which must be known."""
        value = self.e.program.lookup(name)
        if not isinstance(value, Known) or value.base.size != 1:
            raise MspcError(f"a region reads {name} from outside of it, which is no known number")
        return self.constant(value.base)

    def constant(self, array: Any) -> int:
        array = np.asarray(array)
        dtype = "bfloat16" if array.dtype.kind == "V" or array.dtype.name == "bfloat16" else array.dtype.name
        return self.add("constant", (), (dtype, array.reshape(-1)[:1].tobytes().hex()))

    def of_operation(self, operation: HloOperation, operands: tuple[int, ...]) -> list[int]:
        name = operation.name.partition(".")[2] or operation.name
        if name == "constant":
            return [self.constant(self.e.program.constant_of(operation))]
        if name in _KEPT:
            return list(operands)
        if name in ("func.call", "call"):
            return self.results(self.e.program.function(symbol(operation, "callee")).body, list(operands))
        if name == "fusion":
            return self.results(operation.regions[0], list(operands))
        if name == "compare":
            direction = word(operation, "comparison_direction", tuple(ORDERS))
            kind = word(operation, "compare_type", ("FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED", "NOTYPE"), "NOTYPE")
            return [self.add(name, operands, (direction, kind) if kind == "TOTALORDER" else (direction,))]
        if name in ("convert", "bitcast_convert"):
            return [self.add(name, operands, (tensor(operation.types[0]).dtype.name.lower(),))]
        if name not in ELEMENTWISE:
            raise MspcError(f"a region has {operation.name}, which is no elementwise operation")
        return [self.add(name, operands)]
