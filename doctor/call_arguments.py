"""This module finds which arguments of calls mspc does not take, and which change nothing here."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from typing import Any

from mspc.api.ops.method_table import own_name
from mspc.api.ops.operator_function import OperatorFunction, input_of, parameters_of
from mspc.api.ops.primitive import Primitive
from mspc.api.setting_kind import Reason, Setting, Table
from mspc.api.settings import missing_file
from mspc.doctor.findings import IGNORED, LACKS
from mspc.doctor.public import Public
from mspc.doctor.without_effect import settings_of, why_without_effect
from mspc.ir.diagnostics import did_you_mean
from mspc.ir.late_dataclass import dataclass

OPEN = object()
"""Stands for a value that the text does not tell."""


@dataclass(frozen=True)
class Misfit:
    """An argument that is not taken, or changes nothing. kind: as of a Finding. what: the argument, "" for the call.
    node: where it stands."""

    kind: str
    what: str
    node: ast.AST
    why: str


def misfits(callee: Public, call: ast.Call, values: Mapping[ast.AST, Any]) -> Iterator[Misfit]:
    """What is wrong with the arguments of a call, as far as its text says. values: of the expressions among them."""
    is_routine = inspect.isclass(callee.found) or inspect.isroutine(callee.found)
    why = why_without_effect(callee.found) if is_routine else ""
    if why:
        yield Misfit(IGNORED, "", call, why)
    table, is_closed = settings_of(callee.found) if is_routine else ({}, False)
    yield from _settings(table, is_closed, callee, call, values)
    if any(isinstance(argument, ast.Starred) for argument in call.args):
        return
    function = getattr(callee.found, "__wrapped__", None) if inspect.isfunction(callee.found) else callee.found
    if isinstance(function, OperatorFunction):
        inputs, attributes = parameters_of(type(function.op))
        if inputs is not None:
            own = (*inputs, *attributes)[1 if callee.bound else 0 :]
            named = _respelled(call, lambda name: input_of(name, inputs, attributes))
            yield from _unknown(named, own, len(own))
    elif inspect.isclass(callee.found) and issubclass(callee.found, Primitive):
        yield from _of_operator(callee.found, call)
    else:
        yield from _by_signature(callee, call)


def _respelled(call: ast.Call, own: Callable[[str], str]) -> ast.Call:
    """The call with the function's own names of arguments in place of others that it takes for them."""
    words = [ast.copy_location(ast.keyword(own(w.arg), w.value), w) if w.arg else w for w in call.keywords]
    return ast.copy_location(ast.Call(call.func, call.args, words), call)


def _of_operator(cls: type[Primitive], call: ast.Call) -> Iterator[Misfit]:
    if cls.op_class is None or cls.__init__ is not Primitive.__init__:
        return
    own = [field.name for field in fields(cls.op_class)]  # type: ignore[arg-type]  # a dataclass
    spelled = [each.partition("=")[0] for each in cls.op_class.arguments]
    yield from _unknown(call, [*spelled, *(name for name in own if name not in spelled)], len(spelled or own))


def _signature(callee: Public) -> list[inspect.Parameter] | None:
    """The parameters that a call gives; None where they are not known."""
    if not (inspect.isclass(callee.found) or inspect.isroutine(callee.found)):
        return None
    found = _parameters(callee.found)
    return None if found is None else found[int(callee.bound) :]


@functools.cache
def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return None


def _takes_any(callee: Public) -> bool:
    return any(each.kind is each.VAR_KEYWORD for each in _signature(callee) or ())


def _by_signature(callee: Public, call: ast.Call) -> Iterator[Misfit]:
    parameters = _signature(callee)
    if parameters is None:
        return
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if _takes_any(callee):
        by_name += [word.arg for word in call.keywords if word.arg]
    if callee.bound and hasattr(callee.found, "__wrapped__"):  # a method of tensors
        call = _respelled(call, lambda name: own_name(name, by_name))
    yield from _unknown(call, by_name, len(call.args) if takes_more else len(by_place))


def _unknown(call: ast.Call, names: list[str] | tuple[str, ...], most: int) -> Iterator[Misfit]:
    for word in call.keywords:
        if word.arg is not None and word.arg not in names:
            near = did_you_mean(word.arg, names)
            why = near[0] if near else f"it takes {', '.join(names)}" if names else "it takes no arguments by name"
            yield Misfit(LACKS, word.arg, word, why)
    if len(call.args) > most:
        yield Misfit(LACKS, f"argument {most + 1}", call.args[most], f"it takes {most} by position: {', '.join(names)}")


def _by_name(callee: Public, call: ast.Call) -> Mapping[str, tuple[ast.AST, ast.AST]]:
    """(where it stands, its value) of each argument by its name."""
    parameters = [each for each in _signature(callee) or () if each.kind is each.POSITIONAL_OR_KEYWORD]
    found: dict[str, tuple[ast.AST, ast.AST]] = {
        each.name: (node, node) for each, node in zip(parameters, call.args, strict=False)
    }
    return found | {word.arg: (word, word.value) for word in call.keywords if word.arg is not None}


def _settings(
    table: Table, is_closed: bool, callee: Public, call: ast.Call, values: Mapping[ast.AST, Any]
) -> Iterator[Misfit]:
    own = [each.name for each in _signature(callee) or () if each.kind is not each.VAR_KEYWORD]
    for name, (node, value) in _by_name(callee, call).items():
        if name in table:
            yield from _setting(table[name], name, node, value, values)
        elif is_closed and name not in own:
            near = did_you_mean(name, dict.fromkeys([*own, *table]))
            yield Misfit(LACKS, name, node, near[0] if near else "there is no such key")


def _setting(
    setting: Setting, shown: str, node: ast.AST, value: ast.AST, values: Mapping[ast.AST, Any]
) -> Iterator[Misfit]:
    if setting.entries and isinstance(value, ast.Dict):
        entries = {entry.name: entry for entry in setting.entries}
        for key, item in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant) and key.value in entries:
                yield from _setting(entries[key.value], f"{shown}[{key.value!r}]", key, item, values)
        return
    known = constant(value, values)
    if known is not OPEN and known == setting.default:
        return
    refused = "" if setting.refused is missing_file else setting.refused  # the file may be made before the run
    for kind, reason in ((LACKS, refused), (IGNORED, setting.ignored)):
        why = _why(reason, known)
        if why and (kind == IGNORED or known is not OPEN):
            yield Misfit(kind, shown, node, why)
            return


def _why(reason: Reason, known: Any) -> str:
    if isinstance(reason, str):
        return reason
    if known is OPEN:
        return ""
    try:
        return reason(known)
    except (TypeError, AttributeError, ValueError):  # a value that the setting refuses: the run says so
        return ""


def constant(node: ast.AST, values: Mapping[ast.AST, Any]) -> Any:
    """The value of an expression where the text tells it, else OPEN."""
    found = values.get(node)
    if isinstance(found, Public):
        return found.found if isinstance(found.found, str | int | float | bool) else OPEN
    try:
        return ast.literal_eval(node) if isinstance(node, ast.expr) else OPEN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return OPEN
