"""`Primitive`: an operator for users, with a strategy and an instance name around the frozen Op.

`ops.MatMul` is a subclass of Primitive made for the Op of that name. Inside `construct` the front end reads the
primitive; called anywhere else it runs at once with NumPy.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any, Self, cast

import numpy as np

from mspc.ir.diagnostics import MspcError, value_repr
from mspc.ir.graph import OFFLOAD
from mspc.ir.layout import NamedLayout
from mspc.ir.text.facts import fields_of
from mspc.ir.text.limits import MAX_DIMENSIONS, MAX_RANKS
from mspc.ir.text.printer import value_text
from mspc.mindspore_api import state
from mspc.mindspore_api.ops.eager import PrimitiveTypeError, PrimitiveValueError, caller, ranks_of_group, run_eagerly
from mspc.mindspore_api.placement import note_place, note_target
from mspc.mindspore_api.setting_kind import checked, note_asked, place_of_caller, say_once
from mspc.mindspore_api.settings import OFFLOADED_CELLS, STAGE
from mspc.ops.collective.base import Collective
from mspc.ops.op import Op
from mspc.ops.operator_arguments import describe

Strategies = tuple[Any, ...] | None

_WITHOUT_EFFECT = {
    "manual_split": "all slices of a table have one size, which the strategy gives",
    "manual_split_with_offset": "all slices of a table have one size, which the strategy gives",
    "skip_redistribution": "tensors are redistributed if layouts differ, and results are those of one device",
}
"""Attributes that mean something to MindSpore, and why nothing here."""


class OperatorMarks:
    """Marks of scripts on operators, as attributes."""

    def add_prim_attr(self, name: str, value: Any) -> Self:
        """Add an attribute, and return the operator."""
        raise NotImplementedError

    def set_stage(self, stage: int) -> Self:
        """Set the pipeline stage of the operator, independent of its cell's."""
        return self.add_prim_attr("stage", stage)

    def add_pipeline_stage(self, stage: int) -> Self:
        """Call `set_stage`."""
        return self.set_stage(stage)

    def set_device(self, device_target: str) -> Self:
        """Call `add_prim_attr` with the attribute `primitive_target`."""
        return self.add_prim_attr("primitive_target", device_target)

    def recompute(self, mode: bool = True) -> Self:
        """Request that the result is recomputed in the backward part instead of being saved."""
        return self.add_prim_attr("recompute", mode)


class Primitive(OperatorMarks):
    """Operator of a network.

    op: the operator with its attributes.
    in_strategy, out_strategy: the strategies given to `shard()`: a tuple with one tuple of ints, or one NamedLayout,
    per tensor.
    instance_name: the attribute of the cell that contains it.
    attrs: facts set with `add_prim_attr`.
    """

    op_class: type[Op] | None = None
    is_shared = False
    """Whether all cells of a process share one object, such as a function, which has no attribute name."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        cls = type(self).op_class
        if cls is None:
            raise PrimitiveTypeError("Primitive has no operator; write ops.MatMul() or another operator's name")
        is_own = args or kwargs or issubclass(cls, Collective)
        self.op: Op = _make(cls, args, kwargs) if is_own else _made_of_nothing(cls)
        self._start()
        self._mistake = _sequence_mistake(cls, args, kwargs)

    def _start(self) -> None:
        self.in_strategy: Strategies = None
        self.out_strategy: Strategies = None
        self.instance_name = ""
        self.attrs: dict[str, Any] = {}
        self._mistake = ""  # an error of the constructor, raised when the operator is called

    @staticmethod
    def of(op: Op) -> Primitive:
        """Return the primitive for an existing operator."""
        primitive = object.__new__(primitive_class(type(op)))
        primitive.op = op
        primitive._start()
        return primitive

    @property
    def name(self) -> str:
        return self.op.name

    def shard(self, in_strategy: Any = None, out_strategy: Any = None) -> Primitive:
        """Set the strategies of the inputs (and outputs), and return the primitive.

        Args:
            in_strategy: a tuple with one entry per tensor input: a tuple with the number of slices of every dimension,
                or a Layout called with axis names. `((2, 4), (4, 1))`.
            out_strategy: the same for the outputs.

        Raises TypeError if an entry is neither; ValueError for a number of slices below 1, or tuples and layouts mixed.
        """
        label = f"{self.name}.shard"
        if in_strategy is None and out_strategy is not None:
            raise PrimitiveValueError(f"{label}: out_strategy needs an in_strategy", location=caller())
        self.in_strategy = check_strategy(in_strategy, f"{label}: in_strategy")
        self.out_strategy = check_strategy(out_strategy, f"{label}: out_strategy")
        return self

    def add_prim_attr(self, name: str, value: Any) -> Self:
        """Attach a fact that the dumps show, and return the primitive. Raise TypeError if the name is no string, or
        dumps cannot show the value."""
        if not isinstance(name, str):
            raise PrimitiveTypeError(f"{self.name}.add_prim_attr: the name must be a string, not {name!r}", caller())
        frozen_value = frozen(value)
        try:
            value_text(frozen_value)
        except TypeError:
            message = f"{self.name}.add_prim_attr: {name} must be plain values, not {describe(value)}"
            raise PrimitiveTypeError(message, caller(), ["numbers, strings, and tuples and dicts of them"]) from None
        self.attrs[name] = frozen_value
        if name == "stage":  # as Cell.pipeline_stage for a cell
            found = checked(f"{self.name}.set_stage", STAGE, {"pipeline_stage": value})
            note_asked(state.current().asked, "", STAGE, found, f"{self.name}.set_stage({value})")
        if name == "primitive_target":
            note_target(f"{name}={value!r}", value)
        if name in _WITHOUT_EFFECT and value:
            why = _WITHOUT_EFFECT[name]
            say_once(f"attribute {name}", f"{place_of_caller()}{name}={value!r} changes nothing here: {why}")
        return self

    def del_prim_attr(self, name: str) -> Primitive:
        self.attrs.pop(name, None)
        return self

    def _offload(self, backward_prefetch: Any = "Auto") -> Primitive:
        """Offload the operator's result as `Cell.offload` does."""
        label = f"{self.name}._offload"
        found = checked(label, OFFLOADED_CELLS, {"backward_prefetch": backward_prefetch}, f"{label}()")
        return self.add_prim_attr(OFFLOAD, found["backward_prefetch"])

    def set_prim_instance_name(self, name: str) -> Primitive:
        self.instance_name = name
        return self

    def place(self, role: str, rank_id: int) -> None:
        """Check a process for the operator; a warning says that it changes nothing. Raise TypeError or ValueError for
        invalid arguments."""
        note_place(f"{self.name}.place", role, rank_id)

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
        """Return (the primitive to run, its operands) of a call. Raise TypeError if an operand is named, or an
        attribute was a list instead of a tuple, or the other way round."""
        if self._mistake:
            raise PrimitiveTypeError(self._mistake)
        if not kwargs:
            return self, args
        operator = type(self.op)
        names = operator.operand_names
        if not names and not operator.settings and operator.call is Op.call:
            names = tuple(inspect.signature(operator.rule).parameters)[1:]
        behind = names[len(args) : len(args) + len(kwargs)]
        if set(behind) != set(kwargs):
            text = f"{self.name} has no operand of this name, or has it by position: {', '.join(kwargs)}"
            raise PrimitiveTypeError(text, notes=[f"it takes {', '.join(names)}"] if names else [])
        return self, (*args, *(kwargs[name] for name in behind))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run now, on Tensors, arrays and numbers; returns a Tensor or a tuple of Tensors."""
        try:
            primitive, operands = self.applied(args, kwargs)
        except PrimitiveTypeError as error:
            raise PrimitiveTypeError(error.message, caller(), error.notes) from None
        return run_eagerly(primitive.op, tuple(operands))

    def __repr__(self) -> str:
        return repr(self.op)


@functools.cache
def primitive_class(op_class: type[Op]) -> type[Primitive]:
    """Return the class that users know by the operator's name."""
    return type(
        op_class.__name__,
        (Primitive,),
        {"op_class": op_class, "__doc__": op_class.__doc__, "__module__": "mspc.ops"},
    )


def _make(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Op:
    try:
        args, kwargs = _by_field(cls, args, kwargs)
        op = cls(*map(frozen, args), **{key: frozen(value) for key, value in kwargs.items()})
        by_position = [field.name for field in fields(cls) if not field.kw_only]  # type: ignore[arg-type]  # a dataclass
        if not cls.checks_where_called:
            check_types(op, [*by_position[: len(args)], *kwargs])
        group = getattr(op, "group", None)
        if isinstance(op, Collective) and isinstance(group, str):
            ranks = _ranks_of(cls.__name__, group)
            return op if ranks is None else op.with_ranks(ranks, group)
        return op
    except MspcError:
        raise
    except TypeError as error:
        text = re.sub(r"^\w+\.__init__\(\)", cls.__name__, str(error))
        known = ", ".join(field.name for field in fields(cls)) or "no attributes"  # type: ignore[arg-type]  # a dataclass
        raise PrimitiveTypeError(text, caller(), [f"{cls.__name__} takes {known}"]) from None


@functools.cache
def _made_of_nothing(cls: type[Op]) -> Op:
    """Return the operator made without arguments; it is shared, because operators are immutable."""
    return _make(cls, (), {})


def _ranks_of(name: str, group: str) -> tuple[int, ...] | None:
    try:
        return ranks_of_group(group)
    except MspcError as error:
        raise PrimitiveValueError(f"{name}: {error.message}", caller(), error.notes) from None


def _by_field(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments by field name, for an operator with other names in its constructor."""
    if not cls.arguments:
        return args, kwargs
    pairs = [spelled.split("=") for spelled in cls.arguments]
    field_of = {pair[0]: pair[-1] for pair in pairs}
    if len(args) > len(pairs):
        raise TypeError(f"{cls.__name__} takes {len(pairs)} positional arguments, not {len(args)}")
    found = {field_of[pair[0]]: value for pair, value in zip(pairs, args, strict=False)}
    for name, value in kwargs.items():
        if field_of.get(name, name) in found:
            raise TypeError(f"{cls.__name__} got multiple values for argument {name!r}")
        found[field_of.get(name, name)] = value
    return (), found


def _sequence_mistake(cls: type[Op], args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    if not cls.sequences:
        return ""
    names = [field.name for field in fields(cls)]  # type: ignore[arg-type]  # a dataclass
    for name, value in {**dict(zip(names, args, strict=False)), **kwargs}.items():
        wanted = cls.sequences.get(name)
        if wanted is not None and type(value) in (list, tuple) and not isinstance(value, wanted):
            return f"{cls.__name__}: {name} must be a {wanted.__name__}, not the {type(value).__name__} {value!r}"
    return ""


def check_types(op: Op, given: list[str]) -> None:
    """Raise TypeError if an attribute that the user gave is not of its field's type."""
    known = fields_of(type(op))
    for name in given:
        value = getattr(op, name)
        if not known[name].fits(value):
            message = f"{op.name}: {name} must be {known[name].annotation}, not {describe(value)}"
            raise PrimitiveTypeError(message, caller())


def frozen(value: Any) -> Any:
    """Return an attribute's value in its stored form: lists become tuples, dicts tuples of pairs, NumPy numbers Python
    numbers."""
    if isinstance(value, dict):
        return tuple((frozen(key), frozen(item)) for key, item in cast("dict[Any, Any]", value).items())
    if type(value) in (list, tuple):
        return tuple(frozen(item) for item in cast("list[Any]", value))
    return cast("Any", value).item() if isinstance(value, np.generic) else value


_EXAMPLE = "write one tuple per tensor, for example ((2, 4), (4, 1))"


def check_strategy(strategy: Any, what: str) -> Strategies:
    """Return a strategy in its stored form: entries are tuples of ints, tuples of these (for an input that is a tuple
    of tensors), or NamedLayouts. Raise TypeError unless it is a tuple of tuples (or layouts), or lists as in MindSpore;
    ValueError for numbers below 1, or tuples and layouts mixed."""
    if strategy is None or _is_plain(strategy):
        return strategy
    if not isinstance(strategy, tuple):
        message = f"{what} must be a tuple of tuples or of Layouts, not {strategy!r}"
        raise PrimitiveTypeError(message, caller(), [_EXAMPLE])
    entries: list[Any] = list(cast("tuple[Any, ...]", strategy))
    try:
        named = list(_are_layouts(entries))
    except RecursionError:
        raise PrimitiveTypeError(f"{what} is {value_repr(strategy)}", caller(), [_EXAMPLE]) from None
    if any(named) and not all(named):
        message = f"{what} mixes tuples and Layouts: {_shown(entries)}"
        raise PrimitiveValueError(message, caller(), ["use one kind"])
    if entries and all(isinstance(entry, int) for entry in entries):
        message = f"{what}: entry 0 is {entries[0]}, not a tuple of ints or a Layout"
        raise PrimitiveTypeError(message, caller(), [f"write ({_shown(entries)},)"])
    return tuple(_checked_entry(entry, f"{what}: entry {i}") for i, entry in enumerate(entries))


def _is_plain(strategy: Any) -> bool:
    """Return whether these are tuples of positive ints, as nearly all strategies are."""
    if type(strategy) is not tuple:
        return False
    for entry in cast("tuple[Any, ...]", strategy):
        if type(entry) is not tuple or len(cast("tuple[Any, ...]", entry)) > MAX_DIMENSIONS:
            return False
        for shards in cast("tuple[Any, ...]", entry):
            if type(shards) is not int or not 1 <= shards <= MAX_RANKS:
                return False
    return True


def _are_layouts(entries: Iterable[Any]) -> Iterator[bool]:
    """Yield for the entries of tensors, including those inside of tuples, whether each is a Layout."""
    for entry in entries:
        if isinstance(entry, tuple | list) and any(isinstance(e, tuple | list | NamedLayout) for e in cast(Any, entry)):
            yield from _are_layouts(cast(Any, entry))
        elif entry != ():
            yield isinstance(entry, NamedLayout)


def _checked_entry(entry: Any, what: str) -> Any:
    if isinstance(entry, NamedLayout):
        return entry
    if not isinstance(entry, tuple):
        message = f"{what} is {entry!r}, not a tuple of ints or a Layout"
        raise PrimitiveTypeError(message, caller(), [_EXAMPLE])
    cuts: list[Any] = list(cast("tuple[Any, ...]", entry))
    if len(cuts) > MAX_DIMENSIONS:
        raise PrimitiveValueError(f"{what} has {len(cuts)} numbers; no tensor has so many dimensions", caller())
    if any(isinstance(shards, (tuple, list, NamedLayout)) for shards in cuts):
        return check_strategy(entry, what)
    for shards in cuts:
        if isinstance(shards, bool) or not isinstance(shards, (int, np.integer)):
            raise PrimitiveTypeError(f"{what} holds {shards!r}, not a number of slices", caller(), [_EXAMPLE])
        if shards < 1:
            raise PrimitiveValueError(
                f"{what} shards a dimension into {shards} slices; 1 is the least", caller(), code="E0406"
            )
        if shards > MAX_RANKS:
            raise PrimitiveValueError(f"{what} shards a dimension into more than {MAX_RANKS} slices", caller())
    return tuple(int(shards) for shards in cuts)


def _shown(value: Any) -> str:
    if isinstance(value, (tuple, list)):
        return f"({', '.join(map(_shown, cast('tuple[Any, ...]', value)))})"
    return str(value)


# Functions that are one operator ----------------------------------------------------------------------
# `ops.relu(x)` takes the operator's inputs and then its fields, in their order.


Argument = tuple[tuple[str, ...], Any]
"""(the names of an argument, its default)."""
NEEDED = inspect.Parameter.empty
"""The default of an argument that has none."""


class OperatorFunction(Primitive):
    """An operator as a function: `leaky_relu(x, 0.1)` is `LeakyReLU(0.1)(x)`. Arguments may be named like the
    parameters of its rule. An operator with its own `call` takes that method's arguments.

    takes: the arguments of such a `call`, with MindSpore's names.
    """

    takes: Sequence[Argument] = ()
    is_shared = True

    def applied(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Primitive, Sequence[Any]]:
        inputs, attributes = parameters_of(type(self.op))
        if inputs is None:
            return super().applied(*by_position(self.takes, args, kwargs))
        kwargs = {input_of(name, inputs, attributes): value for name, value in kwargs.items()}
        given = dict(zip((*inputs, *attributes), args, strict=False))
        unknown = [name for name in kwargs if name in given or name not in (*inputs, *attributes)]
        missing = [name for name in inputs if name not in given and name not in kwargs]
        if unknown or missing or len(args) > len(inputs) + len(attributes):
            wrong = f"{len(args)} by position"
            if unknown:
                wrong = f"{unknown[0]!r} is given twice" if unknown[0] in given else f"there is no {unknown[0]!r}"
            elif missing:
                wrong = f"{missing[0]!r} is missing"
            takes = f"it takes {', '.join((*inputs, *attributes))}"
            raise PrimitiveTypeError(f"{self.name}: these arguments do not fit: {wrong}", notes=[takes])
        given |= kwargs
        own = {name: frozen(given[name]) for name in attributes if name in given}
        function = OperatorFunction.of(replace(self.op, **own)) if own else self
        check_types(function.op, list(own))
        return function, [given[name] for name in inputs]


@functools.cache
def function_of(operator: type[Op], takes: tuple[Argument, ...] = ()) -> Primitive:
    """Return the function for this operator with its default attributes. takes: see `OperatorFunction`."""
    made = type(
        operator.__name__,
        (OperatorFunction, primitive_class(operator)),
        {"__doc__": operator.__doc__, "__module__": "mspc.ops", "takes": takes},
    )
    return made()


@functools.cache
def parameters_of(operator: type[Op]) -> tuple[tuple[str, ...] | None, tuple[str, ...]]:
    """Return (names of the inputs, names of the fields that may follow, excluding those for the compiler alone);
    (names, ()) or (None, ()) for an own `call` or `settings`."""
    if operator.settings:
        return None, ()
    own = operator.call is not Op.call
    parameters = list(inspect.signature(operator.call if own else operator.rule).parameters.values())[1:]
    if any(p.kind is not inspect.Parameter.POSITIONAL_OR_KEYWORD or p.default is not p.empty for p in parameters):
        return None, ()
    names = tuple(p.name for p in parameters)
    known = [f.name for f in fields(operator)]  # type: ignore[arg-type]  # a dataclass
    return names, () if own else tuple(name for name in known if name not in operator.omitted)


_FIRST = frozenset("abs bboxes indices input input_x tensor variable x".split())
_SECOND = frozenset("angle img_metas mat2 other value vec2 y".split())
"""Names that MindSpore's functions have for the first and the second input, whatever the operator's rule calls them."""


def input_of(name: str, inputs: Sequence[str], attributes: Sequence[str]) -> str:
    """Return the operator's name for an argument."""
    if name not in (*inputs, *attributes):
        for place, names in enumerate((_FIRST, _SECOND)):
            if name in names and place < len(inputs):
                return inputs[place]
    return name


def by_position(
    takes: Sequence[Argument], args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Sequence[Any], Mapping[str, Any]]:
    """Return a call with named arguments moved to their positions, as far as their names are known."""
    left, found = dict(kwargs), list(args)
    for names, default in takes[len(args) :]:
        name = next((name for name in names if name in left), None)
        if name is None and (default is NEEDED or not left):
            break
        found.append(default if name is None else left.pop(name))
    return found, left
