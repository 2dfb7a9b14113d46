"""Python's built-in functions inside `construct`, on values known at compile time and, if meaningful, on tensors."""

from __future__ import annotations

import ast
import builtins
import math
import types
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.argument_binding import as_it_is
from mspc.compiler.frontend.index import unpacked
from mspc.compiler.frontend.operators import binary, fold, is_graph_value, require_decided, truth
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Closure, Frame, TensorMethod, contains_tensor, describe
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import BOOL
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor

Handler = Callable[..., Any]
"""Signature: (tracer, frame, node, *arguments) -> value."""

GetAttribute = Callable[[Tracer, Frame, ast.AST, Any, str], Any]


def _len(t: Tracer, frame: Frame, node: ast.AST, value: Any) -> Any:
    if isinstance(value, Value):
        if not value.shape:
            raise t.error("len() of a scalar tensor", kind=TypeError)
        return value.shape[0]
    return fold(t, "len()", len, value)


def _enumerate(t: Tracer, frame: Frame, node: ast.AST, iterable: Any, start: int = 0) -> Any:
    return [(start + i, item) for i, item in enumerate(unpacked(t, iterable, "enumerate()"))]


def _zip(t: Tracer, frame: Frame, node: ast.AST, *iterables: Any, strict: bool = False) -> Any:
    columns = [unpacked(t, iterable, "zip()") for iterable in iterables]
    if strict and len({len(column) for column in columns}) > 1:
        names = [ast.unparse(each) for each in node.args] if isinstance(node, ast.Call) else []
        named = len(names) == len(columns) and not any(isinstance(each, ast.Starred) for each in node.args)
        called = names if named else [f"argument {i}" for i in range(len(columns))]
        lengths = ", ".join(f"{name} has {len(column)}" for name, column in zip(called, columns, strict=True))
        raise t.error(f"zip(strict=True): the lengths differ: {lengths}", kind=ValueError)
    return list(zip(*columns, strict=False))


def _map(t: Tracer, frame: Frame, node: ast.AST, function: Any, *iterables: Any) -> Any:
    rows = _zip(t, frame, node, *iterables)
    return [t.call(frame, node, function, list(row), {}) for row in rows]


def _filter(t: Tracer, frame: Frame, node: ast.AST, function: Any, iterable: Any) -> Any:
    selected: list[Any] = []
    for item in unpacked(t, iterable, "filter()"):
        passes = item if function is None else t.call(frame, node, function, [item], {})
        if truth(t, passes, "the condition of filter()"):
            selected.append(item)
    return selected


def _sum(t: Tracer, frame: Frame, node: ast.AST, iterable: Any, start: Any = 0) -> Any:
    if is_graph_value(iterable) and iterable.shape and t.value(iterable).tensor_type.dtype != BOOL:
        total = t.call(frame, node, TensorMethod(t.value(iterable), "sum"), [0], {})
        return total if isinstance(start, int) and start == 0 else binary(t, ast.Add, start, total)
    total = start
    for item in unpacked(t, iterable, "sum()"):
        skip = is_graph_value(item) and isinstance(total, int) and total == 0
        total = as_it_is(t, item) if skip else binary(t, ast.Add, total, item)
    return total


def _extreme(name: str, operator: str) -> Handler:
    def handler(t: Tracer, frame: Frame, node: ast.AST, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and is_graph_value(args[0]):
            if len(args[0].shape) == 1 and not kwargs:
                return t.emit(t.op("ReduceMax" if name == "max" else "ReduceMin", axis=0), args[0])
            raise t.error(f"{name}() of one tensor", [f"use x.{name}()"], kind=TypeError)
        items = unpacked(t, args[0], f"{name}()") if len(args) == 1 else list(args)
        if not any(map(is_graph_value, items)):
            return fold(t, f"{name}()", lambda: getattr(builtins, name)(items, **kwargs))
        if kwargs:
            raise t.error(f"{name}() of tensors takes no {', '.join(kwargs)}", kind=TypeError)
        for item in items:
            if is_graph_value(item) and math.prod(item.shape) > 1:
                raise t.error(f"{name}() compares tensors of several elements", [f"use ops.{operator.lower()}(a, b)"])
        result = items[0]
        for item in items[1:]:
            result = t.emit(t.op(operator), result, item)
        return result

    return handler


def _round(t: Tracer, frame: Frame, node: ast.AST, value: Any, digits: int | None = None) -> Any:
    if is_graph_value(value):
        if digits:
            raise t.error("round() of a tensor takes no number of digits", kind=TypeError)
        return t.emit(t.op("Round"), value)
    return fold(t, "round()", round, value, digits)


def _number(kind: type) -> Handler:
    def handler(t: Tracer, frame: Frame, node: ast.AST, *args: Any) -> Any:
        if args and is_graph_value(args[0]):
            raise t.error(
                f"{kind.__name__}() of a tensor: its contents are not known at compile time",
                [f"to change the element type use x.{'bool' if kind is bool else 'astype'}(...)"],
                kind=TypeError,
            )
        return fold(t, f"{kind.__name__}()", kind, *args)

    return handler


def _isinstance(t: Tracer, frame: Frame, node: ast.AST, value: Any, classes: Any) -> Any:
    kinds = classes if isinstance(classes, tuple) else (classes,)
    require_decided(t, "isinstance()", value)
    if isinstance(value, Value):
        return any(isinstance(kind, type) and issubclass(Tensor, kind) for kind in kinds)
    if isinstance(value, Closure | TensorMethod):
        return types.FunctionType in kinds or object in kinds
    return fold(t, "isinstance()", isinstance, value, classes)


def _type(t: Tracer, frame: Frame, node: ast.AST, value: Any) -> Any:
    return Tensor if isinstance(value, Value) else types.FunctionType if isinstance(value, Closure) else type(value)


def _print(t: Tracer, frame: Frame, node: ast.AST, *args: Any, **options: Any) -> None:
    """Print when the network runs, a line for each value: see the operator Print."""
    if options.get("file") is not None:
        t.warn("print() to a file inside a compiled function is ignored")
        return
    from mspc.ops.control.print import split_by_tensor  # imported late: few networks print

    for name in sorted(options.keys() - {"file", "flush"}):
        t.warn(f"print() inside a compiled function: {name} changes nothing, every value has a line of its own")
    for value in args:
        require_decided(t, "print()", value)
    values = [describe(value) if isinstance(value, Closure | TensorMethod) else value for value in args]
    for some in split_by_tensor(values or [""]):
        op, operands = t.op("Print").call(*some)
        t.emit(op, *operands)


def _sorted(t: Tracer, frame: Frame, node: ast.AST, iterable: Any, *, key: Any = None, reverse: bool = False) -> Any:
    items = unpacked(t, iterable, "sorted()") if isinstance(iterable, range) else []
    if not items and not is_graph_value(iterable):
        items = list(iterable)
    keys = items if key is None else [t.call(frame, node, key, [item], {}) for item in items]
    if is_graph_value(iterable) or contains_tensor(keys):
        raise t.error(
            "sorted() compares tensors, whose contents are not known at compile time", kind=TypeError, code="E0204"
        )
    order = fold(t, "sorted()", lambda: sorted(range(len(items)), key=lambda i: keys[i], reverse=reverse))
    return t.own([items[i] for i in order])


def _every(name: str, decided_by: bool) -> Handler:
    def handler(t: Tracer, frame: Frame, node: ast.AST, iterable: Any) -> Any:
        for item in unpacked(t, iterable, f"{name}()"):
            if truth(t, item, f"a condition of {name}()") is decided_by:
                return decided_by
        return not decided_by

    return handler


def text_of(value: Any) -> str:
    """Return the text of a value in strings; for a tensor its type."""
    if isinstance(value, Value):
        return str(value.type)
    if isinstance(value, Parameter):
        return value.name
    return describe(value) if isinstance(value, Closure | TensorMethod) else str(value)


def super_of(t: Tracer, frame: Frame, node: ast.AST, *args: Any) -> Any:
    """Evaluate `super()` in the running method, or `super(Class, object)`."""
    if args:
        return fold(t, "super()", super, *args)
    owner = frame.enclosing("__class__") if frame.enclosing else None
    arguments = frame.source.tree.args
    positional = (*arguments.posonlyargs, *arguments.args)
    if not isinstance(owner, type) or not positional:
        raise t.error("super() is outside of a method", kind=RuntimeError)
    return super(owner, frame.locals[positional[0].arg])


def attribute_handlers(get: GetAttribute) -> dict[Any, Handler]:
    """Return the handlers of `getattr` and `hasattr`, based on the front end's own attribute access."""

    def read(t: Tracer, frame: Frame, node: ast.AST, value: Any, name: str, *default: Any) -> Any:
        if not isinstance(name, str):
            raise t.error(f"getattr(): the name of an attribute is {describe(name)}, not a string", kind=TypeError)
        try:
            return get(t, frame, node, value, name)
        except MspcError:
            if default:
                return default[0]
            raise

    def has(t: Tracer, frame: Frame, node: ast.AST, value: Any, name: str) -> bool:
        missing = object()
        return read(t, frame, node, value, name, missing) is not missing

    return {getattr: read, hasattr: has}


HANDLERS: dict[Any, Handler] = {
    len: _len, enumerate: _enumerate, zip: _zip, map: _map, filter: _filter,
    tuple: lambda t, frame, node, iterable=(): tuple(unpacked(t, iterable, "tuple()")),
    list: lambda t, frame, node, iterable=(): t.own(unpacked(t, iterable, "list()")),
    dict: lambda t, frame, node, *args, **kwargs: t.own(fold(t, "dict()", lambda: dict(*args, **kwargs))),
    reversed: lambda t, frame, node, iterable: unpacked(t, iterable, "reversed()")[::-1],
    sum: _sum, max: _extreme("max", "Maximum"), min: _extreme("min", "Minimum"),
    abs: lambda t, frame, node, x: t.emit(t.op("Abs"), x) if is_graph_value(x) else fold(t, "abs()", abs, x),
    round: _round, pow: lambda t, frame, node, base, exponent: binary(t, ast.Pow, base, exponent),
    int: _number(int), float: _number(float), bool: _number(bool),
    isinstance: _isinstance, type: _type, print: _print, sorted: _sorted, any: _every("any", True),
    all: _every("all", False), super: super_of,
    **dict.fromkeys((str, repr), lambda t, frame, node, value="": text_of(value)),
    callable: lambda t, frame, node, value:
        isinstance(value, TensorMethod) or (not isinstance(value, Value) and callable(value)),
}  # fmt: skip

REFUSED = frozenset(
    getattr(builtins, name)
    for name in (
        "open", "input", "eval", "exec", "compile", "globals", "locals", "vars", "setattr", "delattr",
        "__import__",
        "iter", "next", "id", "breakpoint", "object", "memoryview", "classmethod", "staticmethod", "property",
    )
)  # fmt: skip
