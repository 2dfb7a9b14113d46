"""Immediate execution of operators outside of networks: with NumPy, or on all ranks of a job for collectives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import ExecutionError, Location, MspcError
from mspc.ir.graph import refuse_kinds
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, TupleType, Type
from mspc.mindspore_api import call_handler, state
from mspc.ops.bases import operand_dtypes, promotes_from
from mspc.ops.collective.base import Collective
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.op import Op
from mspc.ops.operator_arguments import describe, misfit
from mspc.ops.tensor.reshape import Cast

VIEWS = frozenset(
    "BroadcastTo Depend ExpandDims Reshape Slice Split SplitTensor SplitWithSize Squeeze StopGradient "
    "StridedSlice Transpose Unstack".split()
)
"""Operators with results that are views of their first operand in MindSpore: writing to one writes to the other.
Results of other operators may share an operand's array too, such as a rounding of integers; they are independent
values."""


class PrimitiveValueError(MspcError, ValueError):
    """A primitive is made or sharded with an impossible value."""


class PrimitiveTypeError(MspcError, TypeError):
    """A primitive is made or sharded with a value of the wrong type."""


def caller() -> Location | None:
    """Return the current location in the user's program, or None before the session is registered."""
    return _session.caller() if _session.caller else None


@dataclass
class _Session:
    """Functions of the session, which this layer cannot import.

    tensor: the class of eager results; it has `from_array`, `filled`, `type` and `value`. caller: returns the current
    location in the user's program. group_ranks: returns the ranks of a group. derived: makes a tensor of an array and
    of its operands. seeds: returns seeds for a random operator without any. note_views: marks results as views of the
    operands that own their arrays.
    """

    tensor: Any = None
    caller: Callable[[], Location | None] | None = None
    group_ranks: Callable[[str], tuple[int, ...]] | None = None
    derived: Callable[[Any, Iterable[Any]], Any] | None = None
    seeds: Callable[[], tuple[int, int]] | None = None
    note_views: Callable[[Any, Sequence[Any], Sequence[Any]], None] | None = None


_session = _Session()


def register_session(
    tensor: Any, caller: Callable[[], Location | None], group_ranks: Callable[[str], tuple[int, ...]],
    derived: Callable[[Any, Iterable[Any]], Any], seeds: Callable[[], tuple[int, int]],
    note_views: Callable[[Any, Sequence[Any], Sequence[Any]], None],
) -> None:  # fmt: skip
    """Register the functions of the session; called once, when the session is imported."""
    _session.tensor, _session.caller, _session.group_ranks = tensor, caller, group_ranks
    _session.derived, _session.seeds, _session.note_views = derived, seeds, note_views


def ranks_of_group(name: str) -> tuple[int, ...] | None:
    """Return the ranks of a group, or None before the session is registered."""
    return _session.group_ranks(name) if _session.group_ranks is not None else None


class EagerBackend:
    """NumPy without other ranks."""

    def __init__(self) -> None:
        self.xp = np
        self.comm = OneRank()


def run_eagerly(op: Op, args: tuple[Any, ...]) -> Any:
    """Return `op(*args)` on one rank with NumPy. Raise MspcError if the operands do not fit the operator."""
    tensors = tuple(_tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
    if op.seeds and not any(getattr(op, name) for name in op.seeds):
        assert _session.seeds is not None
        op = replace(op, **dict(zip(op.seeds, _session.seeds(), strict=True)))
    operands: Sequence[Any] = tensors
    try:
        op, operands = op.call(*tensors)
        if isinstance(op, Cast) and isinstance(operands[0], _session.tensor) and op.dst_type == operands[0].dtype:
            return operands[0].alias()
        number = op.uniform()
        if number is not None and all(isinstance(x, _session.tensor) for x in operands):
            return _session.tensor.filled(number, op.infer(*(x.type for x in operands)))
        chosen = operands[promotes_from(op) :]
        first = next((x for x in _flat(chosen if promotes_from(op) else tensors) if hasattr(x, "array")), None)
        like = None if first is None else first.array.dtype
        exact = getattr(op, "exact_numbers", ()) if like is not None and like.itemsize == 2 else ()
        arrays = [_operand(op, i, x, np.dtype(np.float32) if i in exact else like) for i, x in enumerate(operands)]
        arrays = [a.reshape(()) if i in getattr(op, "scalars", ()) and a.shape == (1,) else a
                  for i, a in enumerate(arrays)]  # fmt: skip
        kinds = operand_dtypes(op, [_tensor(a).dtype for a in arrays])
        arrays = [a.astype(kind.numpy, copy=False) for a, kind in zip(arrays, kinds, strict=True)]
        types = [_tensor(a).type for a in arrays]
        refuse_kinds(op, types, op.name in _WITHOUT_GRADIENT)
        op.infer(*types)
        op = called(op)
        inferred = op.infer(*types)
        arrays = [np.array(a) if i in op.mutates else a for i, a in enumerate(arrays)]
        if isinstance(op, Collective) and op.communicates and state.current().size > 1:
            result, args = run_on_ranks(op, types, arrays), ()  # a rank owns its part of a global tensor
        else:
            result = op.kernel(EagerBackend())(*arrays)  # type: ignore[arg-type]  # EagerBackend is an ArrayBackend
        for index in op.mutates:
            if isinstance(tensor := operands[index], _session.tensor):
                tensor.array = arrays[index].astype(tensor.dtype.numpy, copy=False)
    except ExecutionError:  # an error of all ranks, which has their locations
        raise
    except MspcError as error:
        if error.location is None:
            raise MspcError(error.message, caller(), error.notes, kind=error.kind or ValueError) from None
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise PrimitiveValueError(misfit(op.name, op.attributes(), operands, error), caller()) from None
    except (TypeError, AttributeError, LookupError, ArithmeticError) as error:
        raise PrimitiveTypeError(misfit(op.name, op.attributes(), operands, error), caller()) from None
    made = _typed(result, inferred, _flat(args))
    if op.name in VIEWS:
        assert _session.note_views is not None
        _session.note_views(made, operands, arrays)
    return made


def _typed(result: Any, inferred: Type, sources: Sequence[Any]) -> Any:
    """Return tensors for a kernel's arrays, in the element types that the operator infers, computed from `sources`."""
    if isinstance(result, tuple):
        kinds = inferred.elements if isinstance(inferred, TupleType) else [inferred] * len(result)
        pairs = zip(cast("tuple[Any, ...]", result), kinds, strict=True)
        return tuple(_typed(array, kind, sources) for array, kind in pairs)
    if isinstance(inferred, TensorType) and np.asarray(result).dtype != inferred.dtype.numpy:
        result = np.asarray(result).astype(inferred.dtype.numpy)
    assert _session.derived is not None
    return _session.derived(result, sources)


def _flat(args: Any) -> list[Any]:
    found: list[Any] = []
    for arg in args:
        found += _flat(arg) if isinstance(arg, (tuple, list)) else [arg]
    return found


def _operand(op: Op, index: int, value: Any, like: Any) -> Any:
    if hasattr(value, "array"):
        return value.array
    if isinstance(value, np.ndarray):
        return cast(Any, value)
    if not _is_numeric(value):
        message = f"{op.name}: {op.operand(index)} must be a tensor or a number, not {describe(value)}"
        raise MspcError(message, kind=TypeError)
    if isinstance(value, float) and like is not None and like.kind in "iub":
        like = np.dtype(np.float32)
    if isinstance(value, int) and not isinstance(value, bool) and like is not None and like.kind == "b":
        like = np.dtype(np.int64)
    if like is None:
        like = np.float32 if isinstance(value, float) else None
    return np.asarray(value, dtype=like)


def _is_numeric(value: Any) -> bool:
    """Return whether an operand that is no tensor is a number, or lists of numbers."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        return True
    try:
        return isinstance(value, list | tuple) and np.asarray(value).dtype.kind in "biuf"
    except ValueError:
        return False


def _tensor(array: Any) -> Any:
    return _session.tensor.from_array(array)


def called(op: Op) -> Op:
    """Return the operator for a call on this rank: a collective then knows its rank.

    Raises:
        MspcError: RuntimeError if `init()` was not called. ValueError if this rank, or a rank that is named, is not in
            the group.
    """
    if not isinstance(op, Collective) or op.over_mesh:
        return op
    session = state.current()
    if not session.initialized:
        raise MspcError(
            f"{op.name} was called before init()",
            notes=["call mindspore.communication.init() first"],
            kind=RuntimeError,
        )
    # The rank is read only if it matters: a script that reads it is compiled for each rank.
    mistake = op.mistake_in_group()
    if not mistake and len(op.members) < session.size:
        mistake = op.mistake_on(session.rank)
    if mistake:
        notes = ["ranks are numbered as in the job of all ranks; create_group() makes a group of others"]
        raise MspcError(mistake, notes=notes, kind=ValueError)
    return op.on_rank(session.rank) if op.differs_by_rank else op


def run_on_ranks(op: Op, types: Sequence[Type], arrays: Sequence[Any]) -> Any:
    """Return the result of a collective on this rank, together with the other ranks that call it. Raise MspcError if
    they call another operator, or with other tensors."""
    assert isinstance(op, Collective)
    return call_handler.current().collective(op, types, arrays)


_WITHOUT_GRADIENT = frozenset(
    """ACos Acosh AddExt Asin Asinh Atan Atanh BatchMatMul BatchMatMulExt Cos Cosh CumProd CumSum
    EmbeddingLookup Equal Exp Expm1 Gather GatherD GatherNd Identity IndexSelect Inv IsFinite IsInf IsNan
    Log Log1p MaskedFill MatMul MatMulExt MeanExt NotEqual Pow Reciprocal ReduceAll ReduceAny
    ReduceMean ReduceProd RepeatInterleaveInt RepeatInterleaveTensor ReverseV2 Rsqrt ScatterAdd ScatterNd ScatterNdAdd
    ScatterNdSub ScatterNdUpdate ScatterSub ScatterUpdate Select Sign Sin Sinh SplitTensor SplitWithSize Sqrt
    Square SubExt Tan Tanh TensorScatterAdd TensorScatterSub TensorScatterUpdate Tril Triu UnsortedSegmentSum
    Assign AssignAdd AssignSub InplaceCopy""".split()
)
"""Operators with kernels for complex numbers, but gradients without."""
