"""The table of all kinds, and the message about unknown ones."""

from __future__ import annotations

import re
from collections import Counter

from mspc.ir.diagnostics import Location, MspcError
from mspc.readers.stablehlo.kinds.contractions import CONTRACTION_KINDS
from mspc.readers.stablehlo.kinds.exchanges import EXCHANGE_KINDS
from mspc.readers.stablehlo.kinds.indexing import INDEXING_KINDS
from mspc.readers.stablehlo.kinds.kind import Function, Kinds, symbol
from mspc.readers.stablehlo.kinds.reductions import REDUCTION_KINDS
from mspc.readers.stablehlo.kinds.scalar_kinds import ELEMENTWISE_KINDS
from mspc.readers.stablehlo.kinds.shapes import SHAPE_KINDS
from mspc.readers.stablehlo.module import HloModule, HloOperation, OtherType

KINDS: Kinds = {
    **ELEMENTWISE_KINDS, **SHAPE_KINDS, **REDUCTION_KINDS, **CONTRACTION_KINDS, **INDEXING_KINDS, **EXCHANGE_KINDS,
}  # fmt: skip
"""Functions by the names of operations, without `stablehlo.` or `mhlo.`."""
STRUCTURAL = frozenset((
    "constant", "while", "if", "case", "func.call", "call", "return", "func.return", "sdy.return", "composite",
    "sdy.sharding_constraint", "sdy.manual_computation", "custom_call", "fusion",
))  # fmt: skip
"""Operations that the walk of a program reads itself."""
IDENTITIES = frozenset(("Sharding", "annotate_device_placement", "xla.sdy.FuncResultSharding"))
"""Targets of custom calls that say where values are, and compute nothing."""
MANUAL_ENDS = ("SPMDFullToShardShape", "SPMDShardToFullShape")
"""Targets of custom calls before and after the function of a manual computation, as the older partitioner reads it."""
_LAPACK = re.compile(r"lapack_[sdcz](\w+)_ffi")
_MAX_LISTED = 20


def name_of(operation: HloOperation) -> str:
    """Return the name of an operation in the table; `lapack.getrf` for a call of `lapack_dgetrf_ffi`."""
    name = operation.name.removeprefix("stablehlo.").removeprefix("mhlo.")
    routine = _LAPACK.fullmatch(symbol(operation, "call_target_name")) if name == "custom_call" else None
    return name if routine is None or (own := f"lapack.{routine[1]}") not in KINDS else own


def kind_of(operation: HloOperation) -> Function | None:
    """Return the function of an operation, None if it is not known."""
    return KINDS.get(name_of(operation))


def is_known(operation: HloOperation) -> bool:
    """Return whether an operation is read."""
    name = name_of(operation)
    if name == "custom_call":
        return symbol(operation, "call_target_name") in (*IDENTITIES, *MANUAL_ENDS)
    return name in KINDS or name in STRUCTURAL


def place_of(module: HloModule, operation: HloOperation) -> Location:
    """Return the line of the source from which an operation comes, else its line of the text."""
    if operation.origin is not None and operation.origin.frames:
        return operation.origin.frames[0]
    return module.location(operation.place)


def check_kinds(module: HloModule) -> None:
    """Raise MspcError if there are unknown kinds or types, all of which are named with counts and lines."""
    first: dict[str, HloOperation] = {}
    counts: Counter[str] = Counter()
    for function in module.functions.values():
        for operation in function.body.all_operations():
            name = "" if is_known(operation) else operation.name
            if name == "stablehlo.custom_call":
                name = f"{name} @{symbol(operation, 'call_target_name')}"
            others = [each for each in operation.types if isinstance(each, OtherType)]
            if not name and others and operation.name not in ("func.call", "call"):
                name = f"results of type {others[0]}"
            if name:
                first.setdefault(name, operation)
                counts[name] += 1
    if not first:
        return
    lines = [
        f"{name}: {counts[name]} time{'s' if counts[name] > 1 else ''}, first at {place_of(module, operation)}"
        for name, operation in list(first.items())[:_MAX_LISTED]
    ]
    if len(first) > _MAX_LISTED:
        lines.append(f"and {len(first) - _MAX_LISTED} more kinds")
    count = "an operation that is" if len(first) == 1 else f"{len(first)} kinds of operations that are"
    place = place_of(module, next(iter(first.values())))
    raise MspcError(f"{module.file} has {count} not known: {', '.join(first)}", place, lines, code="E0702")
