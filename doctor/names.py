"""Resolution of a script's names to public objects of mspc, derived from the text; nothing is run."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections.abc import Iterable, Iterator
from dataclasses import field
from typing import Any

from mspc.doctor.program import ScriptFile, ScriptFiles
from mspc.doctor.public import MISSING, Instance, Public, PublicModule, is_own, member, module_exists, names_in
from mspc.ir.late_dataclass import dataclass

Routine = ast.FunctionDef | ast.AsyncFunctionDef
Inner = Routine | ast.ClassDef | ast.Lambda
"""Nodes that have a scope of their own. The names of comprehensions are bound in the scope around them."""
Value = Any
"""PublicModule, Public, Instance or OwnModule; MISSING if mspc lacks the name; None: unknown."""


@dataclass(frozen=True, eq=False)
class OwnModule:
    """A module that belongs to the script."""

    file: ScriptFile


@dataclass(frozen=True, eq=False)
class Import:
    """A binding by `import module`, or by `from module import name` with `level` dots before the module."""

    module: str
    name: str = ""
    level: int = 0


@dataclass(eq=False)
class Scope:
    """A module, a class or a function. bindings: by name, an Import, an expression, or None if unknown. stars:
    (module, dots) of `import *`."""

    node: ast.AST
    outer: Scope | None = None
    bindings: dict[str, list[Import | ast.expr | None]] = field(default_factory=dict)
    stars: list[tuple[str, int]] = field(default_factory=list)
    inner: dict[ast.AST, Scope] = field(default_factory=dict)

    @property
    def top(self) -> Scope:
        return self if self.outer is None else self.outer.top

    def owner(self, name: str) -> Scope | None:
        """Return the scope that defines a name read in this one, or None. Functions do not see the names of the class
        around them."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope
            scope = scope.outer
        return None


def scope_of(node: ast.AST, outer: Scope | None = None) -> Scope:
    """Return the scope of a module, a class or a function, with all inner scopes."""
    scope = Scope(node, outer)
    if isinstance(node, Routine | ast.Lambda):
        arguments = ast.walk(node.args)
        scope.bindings |= {each.arg: [None] for each in arguments if isinstance(each, ast.arg)}
    body = getattr(node, "body", [])
    waiting: list[ast.AST] = list(reversed(body)) if isinstance(body, list) else [body]
    while waiting:
        each = waiting.pop()
        for name, value in _bound(each):
            scope.bindings.setdefault(name, []).append(value)
        if isinstance(each, ast.Global | ast.Nonlocal):
            for name in each.names:  # it may be assigned here
                scope.top.bindings.setdefault(name, []).append(None)
        if isinstance(each, ast.ImportFrom) and each.names[0].name == "*":
            scope.stars.append((each.module or "", each.level))
        if isinstance(each, Inner):
            scope.inner[each] = scope_of(each, scope)
            waiting += outside_of(each)
        else:
            waiting += reversed(list(ast.iter_child_nodes(each)))
    return scope


def outside_of(node: Inner) -> Iterator[ast.AST]:
    """Yield the parts of a definition that are evaluated in the scope around it."""
    yield from getattr(node, "decorator_list", ())
    if isinstance(node, ast.ClassDef):
        yield from node.bases
        yield from node.keywords
    else:
        yield from node.args.defaults
        yield from (each for each in node.args.kw_defaults if each is not None)


def _bound(node: ast.AST) -> Iterator[tuple[str, Import | ast.expr | None]]:
    """Yield (name, value) of every name that a node binds."""
    match node:
        case ast.Import():
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, Import(module)
        case ast.ImportFrom():
            for alias in node.names:
                yield alias.asname or alias.name, Import(node.module or "", alias.name, node.level)
        case ast.Assign(targets=[ast.Name(id=name)]):
            yield name, node.value
        case ast.NamedExpr(target=ast.Name(id=name)) | ast.AnnAssign(target=ast.Name(id=name)):
            yield name, node.value
        case ast.Assign() | ast.AugAssign() | ast.For() | ast.AsyncFor() | ast.comprehension():
            yield from _targets(node.targets if isinstance(node, ast.Assign) else [node.target])
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from _targets([target])
        case ast.Delete():
            yield from _targets(node.targets)
        case ast.ExceptHandler() | ast.MatchAs() | ast.MatchStar() | ast.FunctionDef() | ast.AsyncFunctionDef():
            if node.name:
                yield node.name, None
        case ast.ClassDef(name=name) | ast.MatchMapping(rest=str() as name):
            yield name, None
        case _:
            pass


def _targets(targets: Iterable[ast.expr]) -> Iterator[tuple[str, None]]:
    for target in targets:
        for node in ast.walk(target):
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
                yield node.id, None


class Names:
    """Values of the names and expressions of a program, computed on demand and cached."""

    def __init__(self, program: ScriptFiles) -> None:
        self.program = program
        self.scopes = {file: scope_of(file.tree) for file in program.files}
        self._values: dict[ast.AST | Import, Value] = {}

    def value(self, file: ScriptFile, scope: Scope, node: ast.AST | Import | None) -> Value:
        """Return the value of an expression or an import in its scope; None if it is unknown."""
        if node is not None and node not in self._values:
            self._values[node] = None  # the value of a definition that refers to itself is unknown
            self._values[node] = self._value(file, scope, node)
        return self._values[node] if node is not None else None

    def _value(self, file: ScriptFile, scope: Scope, node: ast.AST | Import) -> Value:
        match node:
            case Import():
                return self.imported(file, node) if node.name else self.module(file, node.module, 0)
            case ast.Name():
                return self.name(file, scope, node.id)
            case ast.Attribute():
                return self._attribute(self.value(file, scope, node.value), node.attr)
            case ast.Call():
                callee = self.value(file, scope, node.func)
                is_class = isinstance(callee, Public) and inspect.isclass(callee.found)
                return Instance(callee.found, callee.name) if is_class else MISSING if callee is MISSING else None
            case _:
                return None

    def name(self, file: ScriptFile, scope: Scope, name: str) -> Value:
        """Return the value of a name in a scope; None if its bindings differ."""
        owner = scope.owner(name)
        if owner is not None:
            return _one([self.value(file, owner, each) for each in owner.bindings[name]])
        return None if hasattr(builtins, name) else self.starred(file, scope.top, name)[0]

    def module(self, file: ScriptFile, name: str, level: int) -> Value:
        """Return the module that an import of a file names."""
        own = self.program.module(file, name, level)
        if own is not None:
            return OwnModule(own) if own in self.scopes else None
        first, _, path = name.partition(".")
        if level or first not in ("mindspore", "mspc"):
            return None
        if module_exists(path):
            return PublicModule(first, path)
        return None if is_own(first, path) else MISSING

    def imported(self, file: ScriptFile, found: Import) -> Value:
        """Return the value of a name that `from module import name` binds."""
        source = self.module(file, found.module, found.level)
        if isinstance(source, OwnModule):
            below = f"{found.module}.{found.name}".lstrip(".")
            own = self.program.module(file, below, found.level)
            return OwnModule(own) if own in self.scopes else self._attribute(source, found.name)
        return self._attribute(source, found.name)

    def starred(
        self, file: ScriptFile, top: Scope, name: str, below: tuple[Scope, ...] = ()
    ) -> tuple[Value, PublicModule | None]:
        """Return the value of a name that only an `import *` can bring, and the last module of mspc that a star names.

        The value is MISSING if all such modules are known and none has it, None without such imports.
        """
        found: list[Value] = []
        last: PublicModule | None = None
        for module, level in top.stars:
            source = self.module(file, module, level)
            if isinstance(source, PublicModule):
                last = source
                found.append(member(source, name) if name in names_in(source) else MISSING)
                continue
            inner = self.scopes[source.file] if isinstance(source, OwnModule) else None
            if inner is None or inner in below or self.program.module(file, name, 1) is not None:
                found.append(None)  # `from .below import *` makes `below` a name, too
            elif name in inner.bindings:
                found.append(self.name(source.file, inner, name))
            else:
                value, public = self.starred(source.file, inner, name, (*below, top))
                found.append(value if inner.stars else MISSING)
                last = public or last
        here = [value for value in found if value is not MISSING]
        return (here[-1] if here else MISSING if found else None), last

    def _attribute(self, base: Value, name: str) -> Value:
        match base:
            case PublicModule():
                return member(base, name)
            case Public(found=type() as cls) | Instance(cls=cls) if not name.startswith("_"):
                found = getattr(cls, name, None)
                bound = isinstance(base, Instance)
                return Public(found, f"{base.name}.{name}", bound) if inspect.isfunction(found) else None
            case OwnModule():
                scope = self.scopes[base.file]
                return self.name(base.file, scope, name) if name in scope.bindings or scope.stars else None
            case _:
                return MISSING if base is MISSING else None


def _one(values: list[Value]) -> Value:
    """Return the value on which several bindings of a name agree; None if they differ."""
    first = values[0]
    if all(value is MISSING for value in values) or all(value == first for value in values):
        return first
    same = isinstance(first, Public) and all(isinstance(each, Public) and each.found is first.found for each in values)
    return first if same else None


_PLAIN = frozenset(("staticmethod", "classmethod", "property", "abstractmethod", "setter", "getter", "deleter"))
"""Decorators that call nothing. Any other decorator may pass the function to a caller."""


class Reach:
    """The functions that a run of the script may reach: those whose name the program mentions, those that decorators
    pass on, and methods that Python or a base of their class may call."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.mentioned = {each for file in names.program.files for each in _mentioned(file.tree)}
        own = {node.name for node in names.program.script.tree.body if isinstance(node, Routine | ast.ClassDef)}
        if not own & self.mentioned:  # a file that only defines names that others call: mspc compile net.py:Net()
            self.mentioned |= own

    def reaches(self, file: ScriptFile, scope: Scope, node: Routine | ast.ClassDef) -> bool:
        """Return whether a definition in a scope is reached."""
        called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
        decorators = [getattr(each, "attr", "") or getattr(each, "id", "") for each in called]
        if node.name in self.mentioned or any(name not in _PLAIN for name in decorators):
            return True
        if not isinstance(scope.node, ast.ClassDef) or scope.outer is None:
            return False
        if node.name.startswith("__"):
            return True
        bases = [self.names.value(file, scope.outer, base) for base in scope.node.bases]
        return any(not isinstance(base, Public) or hasattr(base.found, node.name) for base in bases)


def _mentioned(tree: ast.Module) -> Iterator[str]:
    listed = {id(each) for node in ast.walk(tree) if _lists_names(node) for each in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.ImportFrom):
            yield from (alias.name for alias in node.names if alias.asname)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in listed:
            yield from (word for word in node.value[:100].replace(":", ".").split(".") if word.isidentifier())


def _lists_names(node: ast.AST) -> bool:
    """Return whether a node assigns `__all__`, which lists names without calling them."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)
