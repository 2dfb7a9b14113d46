"""Examination of a script's files: a list of the names and arguments that mspc lacks or ignores."""

from __future__ import annotations

import ast
import builtins
import contextlib
import difflib
import inspect
import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from functools import cache
from pathlib import Path
from typing import Any

from mspc.doctor.names import Names, Reach, Routine, Scope
from mspc.doctor.program import ScriptFile, ScriptFiles
from mspc.doctor.public import (
    MISSING,
    Public,
    PublicModule,
    member,
    module_exists,
    names_in,
    places_of,
    settings_of,
    why_without_effect,
)
from mspc.ir.diagnostics import MspcError, did_you_mean, nearest
from mspc.ir.iterative import deep_calls
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.index.module import said_of
from mspc.mindspore_api.ops.method_table import own_name
from mspc.mindspore_api.ops.primitive import OperatorFunction, Primitive, input_of, parameters_of
from mspc.mindspore_api.setting_kind import Reason, Setting, Table
from mspc.mindspore_api.settings import missing_file

FILES_AFTER_ERROR = 8
"""Most files that are read to find the other missing names of a file in which an import failed."""
_CATCHES = frozenset(("ImportError", "ModuleNotFoundError", "AttributeError", "Exception", "BaseException"))
_ASKS = re.compile(r"version|^hasattr$|TYPE_CHECKING|find_spec", re.IGNORECASE)
"""Names in a condition by which a script tests which features are available."""


def examine(script: Path) -> list[Finding]:
    """List the uses, in a script and its own modules, of names that mspc lacks or ignores, by file and line. Raise
    MspcError if a file is missing, cannot be read, or is not Python."""
    with _deep_calls(script):
        program = ScriptFiles(script)
        names = Names(program)
        reach = Reach(names)
        return [finding for file in program.files for finding in _Examiner(names, file, reach).findings()]


def examine_alone(script: Path) -> list[Finding]:
    """List the findings in one file, reading at most FILES_AFTER_ERROR files in all.

    The limit bounds the time in a tree of thousands of files. Names that unread files may define are not listed. Raise
    MspcError if the file is missing, cannot be read, or is not Python.
    """
    with _deep_calls(script):
        program = ScriptFiles(script, FILES_AFTER_ERROR)
        return _Examiner(Names(program), program.script).findings()


@contextlib.contextmanager
def _deep_calls(script: Path) -> Generator[None]:
    """Raise the recursion limit, as scripts chain hundreds of methods. Raise MspcError if it is still exceeded."""
    try:
        with deep_calls():
            yield
    except RecursionError:
        raise MspcError(f"{script}: it is nested too deep to be read") from None


class _Examiner:
    """Reader of one file. reach: the functions that a run may reach, None for all."""

    def __init__(self, names: Names, file: ScriptFile, reach: Reach | None = None) -> None:
        self.names = names
        self.file = file
        self.reach = reach
        self.is_reached = True
        self.found: dict[tuple[int, int, str], Finding] = {}
        self.has_late_annotations = any(
            isinstance(node, ast.ImportFrom) and node.module == "__future__"
            and any(alias.name == "annotations" for alias in node.names)
            for node in file.tree.body
        )  # fmt: skip

    def findings(self) -> list[Finding]:
        self._block(self.file.tree.body, self.names.scopes[self.file], False)
        return [self.found[key] for key in sorted(self.found)]

    def _block(self, statements: Iterable[ast.AST], scope: Scope, guarded: bool) -> None:
        for statement in statements:
            self._statement(statement, scope, guarded)

    def _statement(self, node: ast.AST, scope: Scope, guarded: bool) -> None:
        if isinstance(node, ast.Try | ast.TryStar):
            self._try(node, scope, guarded)
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if self.names.module(self.file, alias.name, 0) is MISSING:
                    self._module(alias.name, alias, guarded)
        elif isinstance(node, ast.ImportFrom):
            source = self.names.module(self.file, node.module or "", node.level)
            if source is MISSING:
                self._module(node.module or "", node, guarded)
            for alias in node.names if isinstance(source, PublicModule) else ():
                if alias.name != "*" and member(source, alias.name) is MISSING:
                    full = f"{source.name}.{alias.name}"
                    self._add(LACKS, full, alias, instead_of(source, alias.name, full), guarded)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            self._definition(node, scope, guarded)
        else:
            asks = isinstance(node, ast.If | ast.While) and _asks(node.test)
            for field, value in ast.iter_fields(node):
                parts = value if isinstance(value, list) else [value]
                inside = guarded or (asks and field in ("body", "orelse"))
                if field == "annotation" and (self.has_late_annotations or isinstance(scope.node, Routine)):
                    continue  # it is never evaluated
                for part in parts:
                    if isinstance(part, ast.stmt | ast.ExceptHandler | ast.match_case):
                        self._statement(part, scope, inside)
                    elif isinstance(part, ast.AST):
                        self._expression(part, scope, inside)

    def _try(self, node: ast.Try | ast.TryStar, scope: Scope, guarded: bool) -> None:
        handles = any(_catches(handler) for handler in node.handlers)
        before = self._notes()
        self._block(node.body, scope, guarded or handles)
        is_fine = handles and before == self._notes()
        self._block(node.handlers, scope, guarded or is_fine)
        self._block([*node.orelse, *node.finalbody], scope, guarded)

    def _notes(self) -> int:
        return sum(finding.kind == NOTE for finding in self.found.values())

    def _definition(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, scope: Scope, guarded: bool
    ) -> None:
        outside: list[ast.AST] = [*node.decorator_list]
        if isinstance(node, ast.ClassDef):
            outside += [*node.bases, *node.keywords]
        else:
            defaults = [*node.args.defaults, *filter(None, node.args.kw_defaults)]
            outside += defaults if self.has_late_annotations else [node.args]
            outside += [node.returns] if node.returns and not self.has_late_annotations else []
        for part in outside:
            self._expression(part, scope, guarded)
        before = self.is_reached
        if self.reach is not None:
            self.is_reached = before and self.reach.reaches(self.file, scope, node)
        self._block(node.body, scope.inner[node], guarded)
        self.is_reached = before

    def _module(self, name: str, node: ast.AST, guarded: bool) -> None:
        first, _, path = name.partition(".")
        outer = path.rpartition(".")[0]
        base = PublicModule(first, outer) if module_exists(outer) else None
        self._add(LACKS, name, node, instead_of(base, path.rpartition(".")[2], name), guarded)

    def _expression(self, node: ast.AST, scope: Scope, guarded: bool) -> None:
        """Examine an expression and all subexpressions, without recursion because sums of hundreds of terms nest."""
        waiting = [(node, scope, guarded)]
        while waiting:
            node, scope, guarded = waiting.pop()
            if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
                # At the place of the attribute's own name.
                end = (node.end_col_offset or 0) - len(node.attr.encode())
                place = ast.Name(node.attr, ast.Load(), lineno=node.end_lineno or node.lineno, col_offset=end)
                self._member(node.value, node.attr, place, scope, guarded)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                self._name(node, scope, guarded)
            elif isinstance(node, ast.Call):
                self._arguments(node, scope, guarded)
            elif isinstance(node, ast.IfExp):
                guarded = guarded or _asks(node.test)
            elif isinstance(node, ast.BoolOp):
                guarded = guarded or any(_asks(value) for value in node.values[:-1])
            inner = scope.inner.get(node, scope)
            waiting += [(child, inner, guarded) for child in ast.iter_child_nodes(node)]

    def _member(self, owner: ast.expr, name: str, place: ast.AST, scope: Scope, guarded: bool) -> None:
        """Report a use of `name` that a module lacks. A missing module is reported where it is imported."""
        base = self.names.value(self.file, scope, owner)
        if isinstance(base, PublicModule) and member(base, name) is MISSING:
            full = f"{base.name}.{name}"
            self._add(LACKS, full, place, instead_of(base, name, full), guarded)

    def _name(self, node: ast.Name, scope: Scope, guarded: bool) -> None:
        if scope.owner(node.id) is None and not hasattr(builtins, node.id):
            value, source = self.names.starred(self.file, scope.top, node.id)
            if value is MISSING and source is not None:
                full = f"{source.name}.{node.id}"
                self._add(LACKS, full, node, instead_of(source, node.id, full), guarded)

    def _arguments(self, node: ast.Call, scope: Scope, guarded: bool) -> None:
        callee = self.names.value(self.file, scope, node.func)
        if not isinstance(callee, Public):
            return
        parts = [*node.args, *(word.value for word in node.keywords)]
        parts += [each for part in parts if isinstance(part, ast.Dict) for each in part.values]
        values: dict[ast.AST, Any] = {part: self.names.value(self.file, scope, part) for part in parts}
        for misfit in misfits(callee, node, values):
            self._add(misfit.kind, f"{callee.name}({misfit.argument})", misfit.node, misfit.why, guarded)

    def _add(self, kind: str, name: str, node: ast.AST, instead: str, guarded: bool) -> None:
        line, offset = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        column = self.file.column(line, offset)
        if kind == LACKS:
            kind = NOTE if guarded else LACKS if self.is_reached else UNREACHED
        self.found.setdefault((line, column, name), Finding(kind, name, self.file.shown, line, column, instead))


def _catches(handler: ast.ExceptHandler) -> bool:
    """Return whether a handler catches the error of a missing name and continues."""
    if any(isinstance(node, ast.Raise) for node in handler.body):
        return False
    kinds = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    return any(kind is None or (isinstance(kind, ast.Name) and kind.id in _CATCHES) for kind in kinds)


def _asks(test: ast.AST) -> bool:
    """Return whether a condition tests for a version, an attribute, or a module."""
    names = [getattr(node, "id", "") or getattr(node, "attr", "") for node in ast.walk(test)]
    return any(isinstance(name, str) and _ASKS.search(name) for name in names)


LACKS = "lacks"
"""mspc has no such name or argument: the script fails at this place."""
IGNORED = "ignored"
"""mspc accepts it without any effect."""
NOTE = "note"
"""mspc lacks it, but the script handles that: it is under `try`, `hasattr` or a test of the version."""
UNREACHED = "unreached"
"""mspc lacks it, but the script does not reach it: nothing mentions the function around it."""
KINDS = (LACKS, IGNORED, NOTE, UNREACHED)


@dataclass(frozen=True)
class Finding:
    """One use. kind: of KINDS. name: in full, as `mindspore.ops.Foo` or `mindspore.nn.Dense(foo)`. file, line, column:
    its position, from 1. instead: a replacement, or the reason it has no effect; "" if nothing is known."""

    kind: str
    name: str
    file: str
    line: int
    column: int
    instead: str = ""

    @property
    def place(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    @property
    def sentence(self) -> str:
        """The finding in one line."""
        verb = "changes nothing here" if self.kind == IGNORED else "is not in mspc"
        return f"{self.place}: {self.name} {verb}{': ' if self.instead else ''}{self.instead}"


def lacking(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings that make a script fail."""
    return [finding for finding in findings if finding.kind == LACKS]


ALIKE = 0.8
"""Least similarity of a suggested name: most names that mspc lacks are not misspelled."""


@cache
def instead_of(base: PublicModule | None, name: str, full: str) -> str:
    """Return a known replacement or reason, else another module with this name, else similar names, else "".

    base: the module in which the script looks for it. full: its full name in the script.
    """
    first, _, path = full.partition(".")
    known = said_of(path, f"{first}.")
    if known or base is None:
        return known
    elsewhere = [place for place in places_of(name, first) if place != full]
    return f"write {elsewhere[0]}" if elsewhere else _alike(name, names_in(base))


def _alike(name: str, known: list[str]) -> str:
    ratios = {
        each: difflib.SequenceMatcher(None, name.casefold(), each.casefold()).ratio() for each in nearest(name, known)
    }
    found = [each for each, ratio in ratios.items() if ratio >= ALIKE]
    return f"did you mean {' or '.join(found)}?" if found else ""


OPEN = object()
"""Placeholder for a value that cannot be derived from the text."""


@dataclass(frozen=True)
class Misfit:
    """An argument that is not accepted or has no effect.

    kind: as of a Finding. argument: "" for the whole call. node: its position. why: the reason or a hint.
    """

    kind: str
    argument: str
    node: ast.AST
    why: str


def misfits(callee: Public, call: ast.Call, values: Mapping[ast.AST, Any]) -> Iterator[Misfit]:
    """Yield the misfits among the arguments of a call that its text shows. values: values of argument expressions."""
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
    """Return the call with the names of keyword arguments replaced by the function's own spelling."""
    words = [ast.copy_location(ast.keyword(own(w.arg), w.value), w) if w.arg else w for w in call.keywords]
    return ast.copy_location(ast.Call(call.func, call.args, words), call)


def _of_operator(cls: type[Primitive], call: ast.Call) -> Iterator[Misfit]:
    if cls.op_class is None or cls.__init__ is not Primitive.__init__:
        return
    own = [field.name for field in fields(cls.op_class)]  # type: ignore[arg-type]  # a dataclass
    spelled = [each.partition("=")[0] for each in cls.op_class.arguments]
    yield from _unknown(call, [*spelled, *(name for name in own if name not in spelled)], len(spelled or own))


def _signature(callee: Public) -> list[inspect.Parameter] | None:
    """Return the parameters that a call can pass, without a bound `self`; None if they are unknown."""
    if not (inspect.isclass(callee.found) or inspect.isroutine(callee.found)):
        return None
    found = _parameters(callee.found)
    return None if found is None else found[int(callee.bound) :]


@cache
def _parameters(function: Any) -> list[inspect.Parameter] | None:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError):
        return None


def _by_signature(callee: Public, call: ast.Call) -> Iterator[Misfit]:
    parameters = _signature(callee)
    if parameters is None:
        return
    by_place = [each for each in parameters if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    by_name = [each.name for each in parameters if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    takes_more = any(each.kind is each.VAR_POSITIONAL for each in parameters)
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
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


def _settings(
    table: Table, is_closed: bool, callee: Public, call: ast.Call, values: Mapping[ast.AST, Any]
) -> Iterator[Misfit]:
    parameters = _signature(callee) or ()
    own = [each.name for each in parameters if each.kind is not each.VAR_KEYWORD]
    by_place = [each for each in parameters if each.kind is each.POSITIONAL_OR_KEYWORD]
    given: dict[str, tuple[ast.AST, ast.AST]] = {
        each.name: (node, node) for each, node in zip(by_place, call.args, strict=False)
    }
    given |= {word.arg: (word, word.value) for word in call.keywords if word.arg is not None}
    for name, (node, value) in given.items():
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
    except (TypeError, AttributeError, ValueError):  # a value that the setting refuses: the run reports it
        return ""


def constant(node: ast.AST, values: Mapping[ast.AST, Any]) -> Any:
    """Return the value of an expression if the text shows it, else OPEN."""
    found = values.get(node)
    if isinstance(found, Public):
        return found.found if isinstance(found.found, str | int | float | bool) else OPEN
    try:
        return ast.literal_eval(node) if isinstance(node, ast.expr) else OPEN
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return OPEN
