"""Evaluates expressions of the parsed program, one function per kind of syntax. Kinds not listed are refused."""

from __future__ import annotations

import ast
from collections.abc import Callable
from typing import Any

from mspc.compiler.frontend.attributes import get_attribute, look_up, set_attribute
from mspc.compiler.frontend.branches import all_of, condition_of, conditional, negation, one_of
from mspc.compiler.frontend.builtins import text_of
from mspc.compiler.frontend.calls import call
from mspc.compiler.frontend.index import subscript, unpacked, with_elements
from mspc.compiler.frontend.operators import COMPARE, binary, compare, is_graph_value, is_member, is_same, truth, unary
from mspc.compiler.frontend.source import FunctionSource
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Closure, Frame, describe
from mspc.ir.diagnostics import kind_of
from mspc.ir.graph import Node, Value
from mspc.ir.types import BOOL
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.nn.cell import Cell


def evaluate(tracer: Tracer, frame: Frame, node: ast.expr) -> Any:
    """Return the value of an expression. Raise MspcError if it is wrong, or not supported, and Poisoned if it reads a
    name that an earlier error left without a value."""
    handler = EXPRESSIONS.get(type(node))
    if handler is None:
        what = REFUSED.get(type(node), type(node).__name__)
        raise frame.error(node, f"{what} is not supported inside a compiled function", code="E0203")
    return handler(tracer, frame, node)


def _call(tracer: Tracer, frame: Frame, node: ast.Call) -> Any:
    function = node.func
    held = ""
    if isinstance(function, ast.Attribute):
        base = evaluate(tracer, frame, function.value)
        target = get_attribute(tracer, frame, function, base, function.attr)
        held = function.attr if isinstance(base, Cell) else ""
    else:
        target = evaluate(tracer, frame, function)
        held = function.id if isinstance(function, ast.Name) else ""
    args = _elements(tracer, frame, node.args, "the argument list")
    kwargs: dict[str, Any] = {}
    for keyword in node.keywords:
        value = evaluate(tracer, frame, keyword.value)
        if keyword.arg is not None:
            kwargs[keyword.arg] = value
        elif isinstance(value, dict):
            kwargs |= value
        else:
            raise frame.error(keyword.value, f"** takes a dict, not {describe(value)}", kind=TypeError)
    return call(tracer, frame, node, target, args, kwargs, held)


def _binary(tracer: Tracer, frame: Frame, node: ast.BinOp) -> Any:
    left, right = evaluate(tracer, frame, node.left), evaluate(tracer, frame, node.right)
    tracer.at(frame, node)
    return binary(tracer, type(node.op), left, right)


def _unary(tracer: Tracer, frame: Frame, node: ast.UnaryOp) -> Any:
    is_not = isinstance(node.op, ast.Not)
    operand = (evaluate_test if is_not else evaluate)(tracer, frame, node.operand)
    tracer.at(frame, node)
    if is_not:
        condition = condition_of(tracer, operand)
        if condition is not None:
            return negation(tracer, condition)
        return not truth(tracer, operand, "the operand of 'not'")
    return unary(tracer, type(node.op), operand)


def evaluate_test(tracer: Tracer, frame: Frame, node: ast.expr) -> Any:
    """Return the value of an expression of which only the truth is used."""
    return _boolean(tracer, frame, node, True) if isinstance(node, ast.BoolOp) else evaluate(tracer, frame, node)


def _boolean(tracer: Tracer, frame: Frame, node: ast.BoolOp, is_test: bool = False) -> Any:
    """Return the first operand that decides; if tensors are among them, one Bool of all these."""
    word, stop = ("or", True) if isinstance(node.op, ast.Or) else ("and", False)
    value: Any = None
    for i, operand in enumerate(node.values):
        value = (evaluate_test if is_test else evaluate)(tracer, frame, operand)
        tracer.at(frame, operand)
        condition = condition_of(tracer, value)
        is_last = i + 1 == len(node.values)
        if condition is not None and (not is_last or is_test):
            if is_test or tracer.value(value).tensor_type.dtype == BOOL:
                return all_of(tracer, frame, node, i, condition, is_test)
            return one_of(tracer, frame, node, i, value)
        if not is_last and truth(tracer, value, f"an operand of '{word}'") is stop:
            return value
    return value


def _compare(tracer: Tracer, frame: Frame, node: ast.Compare) -> Any:
    left = evaluate(tracer, frame, node.left)
    result: Any = True
    met: Value | None = None
    for i, (operator, operand) in enumerate(zip(node.ops, node.comparators, strict=True)):
        right = evaluate(tracer, frame, operand)
        tracer.at(frame, node)
        result = _compared(tracer, operator, left, right)
        condition = condition_of(tracer, result) if len(node.ops) > 1 else None
        if condition is not None:
            result = met = condition if met is None else tracer.emit(tracer.op("LogicalAnd"), met, condition)
        elif i + 1 < len(node.ops) and not truth(tracer, result, "a chained comparison"):
            return result
        left = right
    return met if met is not None and result is True else result


def _compared(tracer: Tracer, operator: ast.cmpop, left: Any, right: Any) -> Any:
    if type(operator) in COMPARE:
        return compare(tracer, type(operator), left, right)
    if isinstance(operator, ast.Is | ast.IsNot):
        return is_same(tracer, left, right) is isinstance(operator, ast.Is)
    found, is_in = is_member(tracer, left, right), isinstance(operator, ast.In)
    return (found if is_in else negation(tracer, found)) if isinstance(found, Value) else found is is_in


def _conditional(tracer: Tracer, frame: Frame, node: ast.IfExp) -> Any:
    test = evaluate_test(tracer, frame, node.test)
    tracer.at(frame, node.test)
    holds = condition_of(tracer, test)
    if holds is None:
        return evaluate(tracer, frame, node.body if truth(tracer, test, "the condition") else node.orelse)
    return conditional(tracer, frame, node, holds)


def _elements(tracer: Tracer, frame: Frame, nodes: list[ast.expr], what: str = "*") -> list[Any]:
    found: list[Any] = []
    for node in nodes:
        if isinstance(node, ast.Starred):
            value = evaluate(tracer, frame, node.value)
            tracer.at(frame, node)
            found += unpacked(tracer, value, what)
        else:
            found.append(evaluate(tracer, frame, node))
    return found


def _set(tracer: Tracer, frame: Frame, node: ast.Set) -> Any:
    items = _elements(tracer, frame, node.elts)
    if any(map(is_graph_value, items)):
        raise frame.error(
            node,
            "a set of tensors is not supported inside a compiled function",
            ["use a tuple or a list"],
            code="E0203",
        )
    return tracer.own(set(items))


def _dict(tracer: Tracer, frame: Frame, node: ast.Dict) -> Any:
    found: dict[Any, Any] = {}
    for key, item in zip(node.keys, node.values, strict=True):
        value = evaluate(tracer, frame, item)
        if key is None:
            if not isinstance(value, dict):
                raise frame.error(item, f"** takes a dict, not {describe(value)}", kind=TypeError)
            found |= value
            continue
        name = evaluate(tracer, frame, key)
        if is_graph_value(name):
            raise frame.error(key, "a tensor cannot be a key", kind=TypeError)
        found[name] = value
    return tracer.own(found)


def _subscript(tracer: Tracer, frame: Frame, node: ast.Subscript) -> Any:
    base, index = evaluate(tracer, frame, node.value), evaluate(tracer, frame, node.slice)
    tracer.at(frame, node)
    return subscript(tracer, base, index)


def _slice(tracer: Tracer, frame: Frame, node: ast.Slice) -> Any:
    parts = (node.lower, node.upper, node.step)
    return slice(*(None if part is None else evaluate(tracer, frame, part) for part in parts))


def closure(tracer: Tracer, frame: Frame, tree: ast.FunctionDef | ast.Lambda) -> Closure:
    """Return a function defined here, with the current defaults of its arguments."""
    defaults = tuple(evaluate(tracer, frame, default) for default in tree.args.defaults)
    only = {
        argument.arg: evaluate(tracer, frame, default)
        for argument, default in zip(tree.args.kwonlyargs, tree.args.kw_defaults, strict=True)
        if default is not None
    }
    return Closure(FunctionSource(frame.source.file, tree, frame.source.offset), frame, defaults, only)


def _formatted(tracer: Tracer, frame: Frame, node: ast.FormattedValue) -> Any:
    value = evaluate(tracer, frame, node.value)
    spec = "" if node.format_spec is None else evaluate(tracer, frame, node.format_spec)
    if isinstance(value, Value | Parameter | Closure):
        return text_of(value)
    if node.conversion == ord("r"):
        value = repr(value)
    try:
        return format(value, spec)
    except (TypeError, ValueError) as error:
        raise frame.error(node.value, f"format: {error}", kind=kind_of(error)) from None


def _named(tracer: Tracer, frame: Frame, node: ast.NamedExpr) -> Any:
    value = evaluate(tracer, frame, node.value)
    name_result(value, node.target.id)
    frame.locals[node.target.id] = value
    return value


def _comprehension(
    tracer: Tracer, frame: Frame, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
) -> Any:
    """Evaluate a comprehension in a frame of its own. Return its list, set or dict."""
    inner = Frame(frame.source, {}, frame.globals, frame.lookup, frame, frame.call_frames)
    inner.depth = frame.depth
    inner._local_names = frozenset()

    def element() -> Any:
        if isinstance(node, ast.DictComp):
            key = evaluate(tracer, inner, node.key)
            return key, evaluate(tracer, inner, node.value)
        return evaluate(tracer, inner, node.elt)

    found: list[Any] = []
    _loop(tracer, inner, node.generators, element, found)
    if isinstance(node, ast.DictComp):
        return tracer.own(dict(found))
    return tracer.own(set(found) if isinstance(node, ast.SetComp) else found)


def _loop(
    tracer: Tracer, frame: Frame, generators: list[ast.comprehension], element: Callable[[], Any], found: list[Any]
) -> None:
    """Add an element for every combination of the loops of a comprehension."""
    if not generators:
        found.append(element())
        return
    first, rest = generators[0], generators[1:]
    if first.is_async:
        raise frame.error(first.target, "async is not supported inside a compiled function", code="E0203")
    items = evaluate(tracer, frame, first.iter)
    tracer.at(frame, first.iter)

    def passes(item: Any) -> bool:
        assign(tracer, frame, first.target, item)
        for condition in first.ifs:
            test = evaluate(tracer, frame, condition)
            tracer.at(frame, condition)
            if not truth(tracer, test, "the condition"):
                return False
        return True

    elements = unpacked(tracer, items, "the loop")
    for item in elements:
        if passes(item):
            _loop(tracer, frame, rest, element, found)


def name_result(value: Any, name: str) -> None:
    """Name a node after the first variable it is assigned to."""
    if isinstance(value, Node) and not value.name and name.strip("_"):
        value.name = name


def assign(tracer: Tracer, frame: Frame, target: ast.expr, value: Any) -> None:
    """Assign `target = value`. Raise MspcError if the target takes no value, or the number of values is wrong."""
    if isinstance(target, ast.Name):
        name_result(value, target.id)
        frame.locals[target.id] = value
        return
    tracer.at(frame, target)
    if isinstance(target, ast.Tuple | ast.List):
        _unpack(tracer, frame, target.elts, unpacked(tracer, value, "the assignment"))
        return
    if isinstance(target, ast.Subscript):
        _assign_item(tracer, frame, target, value)
        return
    if isinstance(target, ast.Attribute):
        base = evaluate(tracer, frame, target.value)
        current = getattr(base, target.attr, None) if not isinstance(base, Value) else None
        tracer.at(frame, target)
        if isinstance(current, Parameter):
            tracer.update(current, value)
        else:
            set_attribute(tracer, base, target.attr, value)
        return
    raise frame.error(
        target, f"an assignment to {type(target).__name__} is not supported inside a compiled function", code="E0203"
    )


def _unpack(tracer: Tracer, frame: Frame, targets: list[ast.expr], values: list[Any]) -> None:
    starred = [i for i, target in enumerate(targets) if isinstance(target, ast.Starred)]
    if not starred:
        if len(values) != len(targets):
            text = f"{len(targets)} names on the left, but {len(values)} values on the right"
            raise tracer.error(text, kind=ValueError)
        for target, value in zip(targets, values, strict=True):
            assign(tracer, frame, target, value)
        return
    place, after = starred[0], len(targets) - starred[0] - 1
    if len(values) < place + after:
        text = f"at least {place + after} values are needed on the right, but there are {len(values)}"
        raise tracer.error(text, kind=ValueError)
    _unpack(tracer, frame, targets[:place], values[:place])
    star = targets[place]
    assert isinstance(star, ast.Starred)
    assign(tracer, frame, star.value, tracer.own(values[place : len(values) - after]))
    _unpack(tracer, frame, targets[place + 1 :], values[len(values) - after :])


def _assign_item(tracer: Tracer, frame: Frame, target: ast.Subscript, value: Any) -> None:
    base, index = evaluate(tracer, frame, target.value), evaluate(tracer, frame, target.slice)
    tracer.at(frame, target)
    if tracer.is_tensor(base):
        made, name = with_elements(tracer, tracer.value(base), index, value), target.value
        if isinstance(base, Parameter):
            tracer.update(base, made)
            return
        if isinstance(name, ast.Name) and name.id not in frame.locals:
            message = f"'{name.id}' belongs to an enclosing scope, whose elements cannot be assigned here"
            raise tracer.error(message, ["return the new tensor"])
        assign(tracer, frame, name, made)
        return
    if id(base) not in tracer.owned:
        raise tracer.error(
            f"this would change {describe(base)} that lives outside of the compiled function", code="E0207"
        )
    try:
        base[index] = value
    except (TypeError, IndexError, KeyError) as error:
        raise tracer.error(str(error), kind=kind_of(error)) from None


EXPRESSIONS: dict[type[ast.expr], Callable[..., Any]] = {
    ast.Name: look_up,
    ast.Attribute: lambda t, frame, node: get_attribute(t, frame, node, evaluate(t, frame, node.value), node.attr),
    ast.Call: _call, ast.Constant: lambda t, frame, node: node.value, ast.BinOp: _binary,
    ast.UnaryOp: _unary, ast.BoolOp: _boolean, ast.Compare: _compare, ast.IfExp: _conditional,
    ast.Tuple: lambda t, frame, node: tuple(_elements(t, frame, node.elts)),
    ast.List: lambda t, frame, node: t.own(_elements(t, frame, node.elts)),
    ast.Set: _set, ast.Dict: _dict, ast.Subscript: _subscript, ast.Slice: _slice, ast.Lambda: closure,
    ast.JoinedStr: lambda t, frame, node: "".join(str(evaluate(t, frame, part)) for part in node.values),
    ast.FormattedValue: _formatted, ast.NamedExpr: _named,
    **dict.fromkeys((ast.ListComp, ast.GeneratorExp, ast.SetComp, ast.DictComp), _comprehension),
}  # fmt: skip

REFUSED: dict[type[ast.expr], str] = {
    ast.Await: "'await'", ast.Yield: "'yield'", ast.YieldFrom: "'yield from'", ast.Starred: "'*' here",
}  # fmt: skip
