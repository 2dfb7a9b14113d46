"""`Primitive`: an operator as users hold it, with a strategy and an instance name around the frozen Op.

`ops.MatMul` is a subclass of Primitive made for the Op of that name. Inside `construct` the front end
reads the primitive; called anywhere else it runs at once with NumPy.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from mspc.api.ops.compile_time import constexpr as constexpr
from mspc.api.ops.compile_time import primexpr as _primexpr  # noqa: F401  # scripts import both from here
from mspc.ir.diagnostics import MspcError
from mspc.ir.location import Location
from mspc.ir.named_layout import NamedLayout
from mspc.ir.text.attribute_types import fields_of
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.arguments import describe
from mspc.ops.collective.base import Collective
from mspc.ops.op import Op
from mspc.ops.promotion import operand_dtypes, promotes_from

Strategies = tuple[Any, ...] | None


class PrimitiveValueError(MspcError, ValueError):
    """A primitive is made or sharded with an impossible value."""


class PrimitiveTypeError(MspcError, TypeError):
    """A primitive is made or sharded with a value of the wrong type."""


class Primitive:
    """An operator of a network.

    op: the operator with its attributes.
    in_strategy, out_strategy: what `shard()` asked for: a tuple with one tuple of ints, or one
        NamedLayout, per tensor.
    instance_name: the attribute of the cell that holds it.
    attrs: facts set with `add_prim_attr`.
    """

    op_class: type[Op] | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self).op_class
        if cls is None:
            raise PrimitiveTypeError(
                "Primitive has no operator; write ops.MatMul() or another operator's name"
            )
        self.op: Op = _make(cls, args, kwargs)
        self._start()

    def _start(self) -> None:
        self.in_strategy: Strategies = None
        self.out_strategy: Strategies = None
        self.instance_name = ""
        self.attrs: dict[str, Any] = {}

    @staticmethod
    def of(op: Op) -> Primitive:
        """The primitive around an operator that exists already."""
        primitive = object.__new__(primitive_class(type(op)))
        primitive.op = op
        primitive._start()
        return primitive

    @property
    def name(self) -> str:
        return self.op.name

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Say how the inputs (and outputs) are cut, and return the primitive.

        Args:
            in_strategy: a tuple with one entry per tensor input: a tuple with the number of cuts of
                every dimension,
                or a Layout called with axis names. `((2, 4), (4, 1))`.
            out_strategy: the same for the outputs.

        Raises:
            TypeError: an entry is neither. ValueError: a number of cuts below 1, or tuples and layouts mixed.
        """
        label = f"{self.name}.shard"
        if in_strategy is None and out_strategy is not None:
            raise PrimitiveValueError(f"{label}: out_strategy needs an in_strategy", location=_caller())
        self.in_strategy = check_strategy(in_strategy, f"{label}: in_strategy")
        self.out_strategy = check_strategy(out_strategy, f"{label}: out_strategy")
        return self

    def add_prim_attr(self, name: str, value: Any) -> Primitive:
        """Attach a fact that the dumps show, and return the primitive."""
        self.attrs[name] = value
        return self

    def del_prim_attr(self, name: str) -> Primitive:
        self.attrs.pop(name, None)
        return self

    def recompute(self, mode: bool = True) -> Primitive:
        """Ask for the result to be computed again in the backward part instead of being kept."""
        return self.add_prim_attr("recompute", mode)

    def set_prim_instance_name(self, name: str) -> Primitive:
        self.instance_name = name
        return self

    def set_device(self, device_target: str) -> Primitive:
        return self.add_prim_attr("primitive_target", device_target)

    def set_stage(self, stage: int) -> Primitive:
        return self.add_prim_attr("stage", stage)

    def __getattr__(self, name: str) -> Any:
        # Attributes of the operator (`matmul.transpose_b`); reached only when the primitive has
        # none of this name.
        if name.startswith("_") or name == "op":
            raise AttributeError(name)
        try:
            return getattr(self.op, name)
        except AttributeError:
            raise AttributeError(f"{self.op.name} has no attribute {name!r}") from None

    def applied(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Primitive, Sequence[Any]]:
        """(the primitive to run, its operands) of a call.

        Raises:
            TypeError: an operand is named.
        """
        if kwargs:
            raise PrimitiveTypeError(f"{self.name} takes its operands by position, not by name: {', '.join(kwargs)}")
        return self, args

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run now, on Tensors, arrays and numbers; returns a Tensor or a tuple of Tensors."""
        try:
            primitive, operands = self.applied(args, kwargs)
        except PrimitiveTypeError as error:
            raise PrimitiveTypeError(error.message, _caller(), error.notes) from None
        return run_eagerly(primitive.op, tuple(operands))

    def __repr__(self) -> str:
        return repr(self.op)


@functools.cache
def primitive_class(op_class: type[Op]) -> type[Primitive]:
    """The class that users know by the operator's name."""
    return type(
        op_class.__name__,
        (Primitive,),
        {"op_class": op_class, "__doc__": op_class.__doc__, "__module__": "mspc.ops"},
    )


def _make(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Op:
    try:
        op = cls(*map(frozen, args), **{key: frozen(value) for key, value in kwargs.items()})
        by_position = [field.name for field in fields(cls) if not field.kw_only]  # type: ignore[arg-type]  # a dataclass
        _check_types(op, [*by_position[: len(args)], *kwargs])
        group = getattr(op, "group", None)
        if isinstance(op, Collective) and isinstance(group, str) and _session.group_ranks is not None:
            return op.with_ranks(_session.group_ranks(group), group)
        return op
    except MspcError:
        raise
    except TypeError as error:
        text = re.sub(r"^\w+\.__init__\(\)", cls.__name__, str(error))
        known = ", ".join(field.name for field in fields(cls)) or "no attributes"  # type: ignore[arg-type]  # a dataclass
        raise PrimitiveTypeError(text, _caller(), [f"{cls.__name__} takes {known}"]) from None


def _check_types(op: Op, given: list[str]) -> None:
    """Raises TypeError where an attribute that the user gave is not of its field's type."""
    known = fields_of(type(op))
    for name in given:
        value = getattr(op, name)
        if not known[name].fits(value):
            message = f"{op.name}: {name} must be {known[name].annotation}, not {describe(value)}"
            raise PrimitiveTypeError(message, _caller())


def frozen(value: Any) -> Any:
    """A value of an attribute in its stored form: lists become tuples, numbers of NumPy plain ones."""
    if isinstance(value, list):
        return tuple(frozen(item) for item in cast("list[Any]", value))
    return cast("Any", value).item() if isinstance(value, np.generic) else value


_EXAMPLE = "write one tuple per tensor, for example ((2, 4), (4, 1))"


def check_strategy(strategy: Any, what: str) -> Strategies:
    """A strategy in its stored form: entries are tuples of ints, tuples of these (for an input that is a
    tuple of tensors), or NamedLayouts.

    Raises:
        TypeError: no tuple of tuples (or layouts). ValueError: cuts below 1, tuples and layouts mixed.
    """
    if strategy is None:
        return None
    if not isinstance(strategy, (tuple, list)):
        message = f"{what} must be a tuple of tuples or of Layouts, not {strategy!r}"
        raise PrimitiveTypeError(message, _caller(), [_EXAMPLE])
    entries: list[Any] = list(cast("tuple[Any, ...] | list[Any]", strategy))
    named = [isinstance(entry, NamedLayout) for entry in entries if entry != ()]
    if any(named) and not all(named):
        message = f"{what} mixes tuples and Layouts: {_shown(entries)}"
        raise PrimitiveValueError(message, _caller(), ["use one kind"])
    if entries and all(isinstance(entry, int) for entry in entries):
        message = f"{what}: entry 0 is {entries[0]}, not a tuple of ints or a Layout"
        raise PrimitiveTypeError(message, _caller(), [f"write ({_shown(entries)},)"])
    return tuple(_checked_entry(entry, f"{what}: entry {i}") for i, entry in enumerate(entries))


def _checked_entry(entry: Any, what: str) -> Any:
    if isinstance(entry, NamedLayout):
        return entry
    if not isinstance(entry, (tuple, list)):
        message = f"{what} is {entry!r}, not a tuple of ints or a Layout"
        raise PrimitiveTypeError(message, _caller(), [_EXAMPLE])
    cuts: list[Any] = list(cast("tuple[Any, ...] | list[Any]", entry))
    if any(isinstance(cut, (tuple, list, NamedLayout)) for cut in cuts):
        return check_strategy(entry, what)
    for cut in cuts:
        if isinstance(cut, bool) or not isinstance(cut, (int, np.integer)):
            raise PrimitiveTypeError(f"{what} holds {cut!r}, not a number of cuts", _caller(), [_EXAMPLE])
        if cut < 1:
            raise PrimitiveValueError(f"{what} cuts a dimension {cut} ways; 1 is the least", _caller())
    return tuple(int(cut) for cut in cuts)


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_shown, cast('tuple[Any, ...]', value)))})"
    return str(value)


def _caller() -> Location | None:
    return _session.caller() if _session.caller else None


@dataclass
class _Session:
    """What the session tells this layer, which cannot import it.

    tensor: the class of eager results; it has `from_array`, `filled`, `type` and `value`. caller: where the user's
    program stands. group_ranks: the ranks of a group. derived: makes a tensor of an array and of what it came from.
    seeds: those of a random operator that was given none.
    """

    tensor: Any = None
    caller: Callable[[], Location | None] | None = None
    group_ranks: Callable[[str], tuple[int, ...]] | None = None
    derived: Callable[[Any, Iterable[Any]], Any] | None = None
    seeds: Callable[[], tuple[int, int]] | None = None


_session = _Session()


def register_session(
    tensor: Any, caller: Callable[[], Location | None], group_ranks: Callable[[str], tuple[int, ...]],
    derived: Callable[[Any, Iterable[Any]], Any], seeds: Callable[[], tuple[int, int]],
) -> None:  # fmt: skip
    """Told once, when the session is imported."""
    _session.tensor, _session.caller, _session.group_ranks = tensor, caller, group_ranks
    _session.derived, _session.seeds = derived, seeds


class EagerBackend:
    """NumPy without other ranks."""

    def __init__(self) -> None:
        self.xp = np
        self.comm: Any = OneRank()


class OneRank:
    """Collectives of a single rank: everything is there already."""

    def all_reduce(self, array: Any, op: str, ranks: Any) -> Any:
        return array

    def all_gather(self, array: Any, ranks: Any, axis: int) -> Any:
        return array

    def reduce_scatter(self, array: Any, op: str, ranks: Any, axis: int) -> Any:
        return array

    def all_to_all(self, array: Any, ranks: Any, split_dim: int, concat_dim: int) -> Any:
        return array

    def broadcast(self, array: Any, root: int, ranks: Any) -> Any:
        return array

    def barrier(self, ranks: Any) -> None:
        return None


def run_eagerly(op: Op, args: tuple[Any, ...]) -> Any:
    """`op(*args)` on one rank with NumPy.

    Raises:
        MspcError: the operands do not fit the operator.
    """
    tensors = tuple(_tensor(arg) if isinstance(arg, np.ndarray) else arg for arg in args)
    if op.seeds and not any(getattr(op, name) for name in op.seeds):
        assert _session.seeds is not None
        op = replace(op, **dict(zip(op.seeds, _session.seeds(), strict=True)))
    try:
        op, operands = op.call(*tensors)
        number = op.uniform()
        if number is not None and all(isinstance(x, _session.tensor) for x in operands):
            return _session.tensor.filled(number, op.infer(*(x.type for x in operands)))
        chosen = operands[promotes_from(op) :]
        first = next((x for x in _flat(chosen if promotes_from(op) else tensors) if hasattr(x, "value")), None)
        like = None if first is None else first.value.dtype
        arrays = [_operand(op, i, x, like) for i, x in enumerate(operands)]
        kinds = operand_dtypes(op, [_tensor(a).dtype for a in arrays])
        arrays = [a.astype(kind.numpy, copy=False) for a, kind in zip(arrays, kinds, strict=True)]
        types = [_tensor(a).type for a in arrays]
        inferred = op.infer(*types)
        arrays = [np.array(a) if i in op.mutates else a for i, a in enumerate(arrays)]
        result = op.kernel(EagerBackend())(*arrays)  # type: ignore[arg-type]  # EagerBackend is an ArrayBackend
        _write_back(op, operands, arrays)
    except MspcError as error:
        if error.location is None:
            raise MspcError(error.message, _caller(), error.notes, kind=error.kind or ValueError) from None
        raise
    except (ValueError, OverflowError, IndexError) as error:
        raise PrimitiveValueError(f"{op.name}: {error}", _caller()) from None
    except TypeError as error:
        raise PrimitiveTypeError(f"{op.name}: {error}", _caller()) from None
    return _typed(result, inferred, _flat(args))


def _typed(result: Any, inferred: Type, sources: Sequence[Any]) -> Any:
    """Tensors of a kernel's arrays, in the element types that the operator states, computed from `sources`."""
    if isinstance(result, tuple):
        kinds = inferred.elements if isinstance(inferred, TupleType) else [inferred] * len(result)
        pairs = zip(cast("tuple[Any, ...]", result), kinds, strict=True)
        return tuple(_typed(array, kind, sources) for array, kind in pairs)
    if isinstance(inferred, TensorType) and np.asarray(result).dtype != inferred.dtype.numpy:
        result = np.asarray(result).astype(inferred.dtype.numpy)
    assert _session.derived is not None
    return _session.derived(result, sources)


def _write_back(op: Op, operands: Sequence[Any], arrays: Sequence[Any]) -> None:
    """Give the tensors that the operator has overwritten their new values, wherever these live."""
    for index in op.mutates:
        tensor = operands[index]
        if isinstance(tensor, _session.tensor):
            tensor.value = arrays[index].astype(tensor.dtype.numpy, copy=False)


def _flat(args: Any) -> list[Any]:
    found: list[Any] = []
    for arg in args:
        found += _flat(arg) if isinstance(arg, (tuple, list)) else [arg]
    return found


def _operand(op: Op, index: int, value: Any, like: Any) -> Any:
    if hasattr(value, "value"):
        return value.value
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
    """Whether an operand that is no tensor is a number, or lists of numbers."""
    if isinstance(value, np.ndarray | np.generic | bool | int | float):
        return True
    try:
        return isinstance(value, list | tuple) and np.asarray(value).dtype.kind in "biuf"
    except ValueError:
        return False


def _tensor(array: Any) -> Any:
    return _session.tensor.from_array(array)
