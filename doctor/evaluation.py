"""Static evaluation of a script's expressions: values are derived from the text and nothing is run."""

from __future__ import annotations

import ast
import builtins
import inspect
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field
from typing import Any

from mspc.doctor.program import PUBLIC, ScriptFile, ScriptFiles, statements, walk
from mspc.doctor.public import (
    MISSING,
    Instance,
    Public,
    PublicModule,
    annotated,
    has_attribute,
    is_own,
    member,
    module_exists,
    names_in,
    result_of,
)
from mspc.doctor.scopes import Binding, Scope, scopes_of
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.ops.primitive import Primitive


@dataclass(frozen=True, eq=False)
class OwnModule:
    """A module that belongs to the script."""

    file: ScriptFile


@dataclass(frozen=True)
class OwnClass:
    """A class that the script defines, with its file and the scope that encloses it."""

    file: ScriptFile
    scope: Scope
    node: ast.ClassDef


@dataclass(frozen=True)
class OwnInstance:
    """An object of a class that the script defines."""

    cls: OwnClass


Value = Any
"""PublicModule, Public, Instance, OwnModule, OwnClass or OwnInstance; MISSING if mspc lacks the name; None: unknown."""


class KnownValues:
    """Values of the names and expressions of a program, computed on demand and cached."""

    def __init__(self, program: ScriptFiles) -> None:
        self.program = program
        self.scopes = {file: scopes_of(file.tree) for file in program.files}
        self._values: dict[tuple[ast.AST, Scope], Value] = {}
        self._bound: dict[Binding, Value] = {}
        self._stored: dict[ast.ClassDef, dict[str, list[tuple[ast.expr, Scope]]]] = {}
        self.given = _given_names(program)

    def value(self, file: ScriptFile, scope: Scope, node: ast.AST | None) -> Value:
        """Return the value of an expression in its scope; None if it is unknown."""
        if node is None:
            return None
        key = (node, scope)
        if key not in self._values:
            self._values[key] = None  # the value of a definition that refers to itself is unknown
            self._values[key] = self._value(file, scope, node)
        return self._values[key]

    def _value(self, file: ScriptFile, scope: Scope, node: ast.AST) -> Value:
        if isinstance(node, ast.Name):
            return self.name(file, scope, node.id, node)
        if isinstance(node, ast.Constant) and isinstance(node.value, str):  # an annotation in quotes
            return None
        if isinstance(node, ast.Attribute):
            return self.attribute(self.value(file, scope, node.value), node.attr)
        if isinstance(node, ast.Call):
            return self._result(file, scope, node)
        return None

    def name(self, file: ScriptFile, scope: Scope, name: str, use: ast.AST | None = None) -> Value:
        """Return the value of a name in a scope. use: the node that reads it; None for the value at the scope's end."""
        owner = scope.owner(name)
        if owner is not None:
            known = owner.in_force(name, use) if use is not None and owner is scope else owner.bindings[name]
            return _one([self.binding(file, owner, each) for each in known])
        if hasattr(builtins, name):
            return None
        return self._starred(file, scope.top, name)

    def _starred(self, file: ScriptFile, top: Scope, name: str) -> Value:
        """Return a name that only an `import *` can bring; MISSING if all such modules are mspc's and none has it."""
        found: list[Value] = []
        for module, level in top.stars:
            source = self.module(file, module, level)
            if isinstance(source, OwnModule):
                if self.program.module(file, name, 1) is not None:
                    found.append(None)  # `from .below import *` makes `below` a name, too
                    continue
                inner = self.scopes[source.file]
                if name in inner.bindings:
                    return self.name(source.file, inner, name)
                found.append(self._starred(source.file, inner, name) if inner.stars else MISSING)
            elif isinstance(source, PublicModule):
                known = name in names_in(source)
                found.append(member(source, name) if known else MISSING)
            else:
                found.append(None)
        here = [value for value in found if value is not MISSING]
        return (here[-1] if here else MISSING) if found else None

    def last_star(self, file: ScriptFile, top: Scope, below: tuple[Scope, ...] = ()) -> PublicModule | None:
        """Return the module of mspc named by the last `import *` of a file; None if there is none.

        Modules of the script that the file imports with `*` are searched, too.
        """
        for module, level in reversed(top.stars):
            source = self.module(file, module, level)
            if isinstance(source, PublicModule):
                return source
            inner = self.scopes[source.file] if isinstance(source, OwnModule) else None
            if isinstance(source, OwnModule) and inner is not None and inner not in below:
                found = self.last_star(source.file, inner, (*below, top))
                if found is not None:
                    return found
        return None

    def binding(self, file: ScriptFile, scope: Scope, binding: Binding) -> Value:
        """Return the value that one binding gives its name."""
        if binding not in self._bound:
            self._bound[binding] = None
            self._bound[binding] = self._binding(file, scope, binding)
        return self._bound[binding]

    def _binding(self, file: ScriptFile, scope: Scope, binding: Binding) -> Value:
        match binding.kind:
            case "import":
                return self.module(file, binding.module, 0)
            case "from":
                return self.imported(file, binding.module, binding.level, binding.name)
            case "value":
                return self.value(file, scope, binding.node)
            case "annotated":
                return self._annotated(file, scope.outer or scope, binding.node)
            case "class":
                assert isinstance(binding.node, ast.ClassDef)
                return OwnClass(file, scope, binding.node)
            case "self":
                assert isinstance(binding.node, ast.ClassDef)
                around = scope.outer.outer if scope.outer is not None else None
                return OwnInstance(OwnClass(file, around or scope.top, binding.node))
            case _:
                return None

    def _annotated(self, file: ScriptFile, scope: Scope, annotation: ast.AST | None) -> Value:
        found = self.value(file, scope, annotation)
        if isinstance(found, Public):
            return annotated(found.found, found.name)
        return OwnInstance(found) if isinstance(found, OwnClass) else None

    def module(self, file: ScriptFile, name: str, level: int) -> Value:
        """Return the module of an import statement; MISSING if mspc has no such module, None if it is unknown."""
        first, _, path = name.partition(".")
        if not level and first in PUBLIC:
            if module_exists(path):
                return PublicModule(first, path)
            return None if is_own(first, path) else MISSING
        own = self.program.module(file, name, level)
        return None if own is None else OwnModule(own)

    def imported(self, file: ScriptFile, module: str, level: int, name: str) -> Value:
        """Return the value that `from module import name` binds."""
        source = self.module(file, module, level)
        if isinstance(source, OwnModule):
            found = self.attribute(source, name)
            if found is not None:
                return found
            below = self.program.module(file, f"{module}.{name}".lstrip("."), level)
            return None if below is None else OwnModule(below)
        return member(source, name) if isinstance(source, PublicModule) else source

    def attribute(self, base: Value, name: str) -> Value:
        """Return an attribute of a value; MISSING if mspc lacks it, None if it is unknown."""
        match base:
            case PublicModule():
                return member(base, name)
            case Public():
                return self._of_public(base, name)
            case Instance():
                found = _of_instance(base, name)
                return None if found is MISSING and name in self.given else found
            case OwnModule():
                scope = self.scopes[base.file]
                return self.name(base.file, scope, name) if name in scope.bindings or scope.stars else None
            case OwnInstance():
                return self._of_own_instance(base, name)
            case _:
                return MISSING if base is MISSING else None

    def _of_public(self, base: Public, name: str) -> Value:
        if not inspect.isclass(base.found) or name.startswith("__"):
            return None
        if not has_attribute(base.found, name):
            return None if name in self.given else MISSING
        found = getattr(base.found, name, None)
        return Public(found, f"{base.name}.{name}") if found is not None else None

    def _of_own_instance(self, base: OwnInstance, name: str) -> Value:
        stored = self.stored_in(base.cls).get(name)
        if stored:
            return _one([self.value(base.cls.file, scope, node) for node, scope in stored])
        public = self.public_bases(base.cls)
        if name in self.given or name.startswith("_") or not public:
            return None  # a name with an underscore may belong to a subclass in another file
        found = [_of_instance(each, name) for each in public]
        return next((value for value in found if value is not MISSING), MISSING)

    def public_bases(self, cls: OwnClass, below: tuple[ast.ClassDef, ...] = ()) -> list[Instance] | None:
        """Return the classes of mspc from which a class derives; None if a base is unknown."""
        found: list[Instance] = []
        if cls.node in below or any(word.arg == "metaclass" for word in cls.node.keywords):
            return None
        for base in cls.node.bases:
            value = self.value(cls.file, cls.scope, base)
            made = _object_of(value)
            if isinstance(made, Instance):
                found.append(made)
                continue
            inner = self.public_bases(value, (*below, cls.node)) if isinstance(value, OwnClass) else None
            if inner is None:
                return None
            found += inner
        return found

    def stored_in(self, cls: OwnClass) -> dict[str, list[tuple[ast.expr, Scope]]]:
        """Return the expressions that a class's methods assign to attributes of `self`, each with its scope."""
        if cls.node not in self._stored:
            found: dict[str, list[tuple[ast.expr, Scope]]] = {}
            inside = cls.scope.inner.get(cls.node)
            for method, scope in inside.inner.items() if inside else ():
                for node in statements(method):
                    for target in node.targets if isinstance(node, ast.Assign) else ():
                        if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
                            if isinstance(self.name(cls.file, scope, target.value.id), OwnInstance):
                                assert isinstance(node, ast.Assign)
                                found.setdefault(target.attr, []).append((node.value, scope))
            self._stored[cls.node] = found
        return self._stored[cls.node]

    def _result(self, file: ScriptFile, scope: Scope, call: ast.Call) -> Value:
        if isinstance(call.func, ast.Name) and call.func.id == "super" and scope.owner("super") is None:
            return self._super(file, scope)
        imported = imported_by(call)
        if imported is not None:
            return self.module(file, imported.value, 0)
        match call:
            case ast.Call(func=ast.Name(id="getattr"), args=[owner, ast.Constant(value=str() as name), *default]):
                found = self.attribute(self.value(file, scope, owner), name)
                return None if found is MISSING and default else found
        callee = self.value(file, scope, call.func)
        if isinstance(callee, OwnClass):
            return OwnInstance(callee)
        if not isinstance(callee, Public):
            return MISSING if callee is MISSING else None
        receiver = self.value(file, scope, call.func.value) if isinstance(call.func, ast.Attribute) else None
        if isinstance(receiver, Instance) and issubclass(receiver.cls, Primitive):
            return receiver  # `ops.MatMul().shard(...)`
        return result_of(callee)

    def _super(self, file: ScriptFile, scope: Scope) -> Value:
        while scope.outer is not None and not isinstance(scope.node, ast.ClassDef):
            scope = scope.outer
        if not isinstance(scope.node, ast.ClassDef) or scope.outer is None or len(scope.node.bases) != 1:
            return None
        return _object_of(self.value(file, scope.outer, scope.node.bases[0]))


def imported_by(call: ast.Call) -> ast.Constant | None:
    """Return the constant module name of an `importlib.import_module` call; None for other calls and relative names."""
    match call:
        case ast.Call(
            func=ast.Name(id="import_module") | ast.Attribute(value=ast.Name(id="importlib"), attr="import_module"),
            args=[ast.Constant(value=str(name)) as named],
        ) if not name.startswith("."):
            return named
    return None


def _object_of(cls: Value) -> Value:
    """Return an instance of a class; None if the value is not a known class."""
    if isinstance(cls, OwnClass):
        return OwnInstance(cls)
    return Instance(cls.found, cls.name) if isinstance(cls, Public) and inspect.isclass(cls.found) else None


def _of_instance(base: Instance, name: str) -> Value:
    if not base.has(name):
        return MISSING
    found = getattr(base.cls, name, None)
    return Public(found, f"{base.name}.{name}", bound=True) if inspect.isfunction(found) else None


def _one(values: list[Value]) -> Value:
    """Return the value on which several bindings of a name agree; None if they differ."""
    first = values[0]
    if len(values) == 1 or all(value is MISSING for value in values):
        return first
    if all(isinstance(value, PublicModule) and value == first for value in values):
        return first
    if not isinstance(first, Public):
        return None
    return first if all(isinstance(value, Public) and value.found is first.found for value in values) else None


def _given_names(program: ScriptFiles) -> frozenset[str]:
    """Return the attribute names that the program itself creates: assigned, defined in a class, or set by `setattr`."""
    found: set[str] = set()
    for file in program.files:
        for node in walk(file.tree):
            match node:
                case ast.Attribute(ctx=ast.Store() | ast.Del()):
                    found.add(node.attr)
                case ast.ClassDef():
                    found |= {each.id for inner in node.body for each in walk(inner)
                              if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}  # fmt: skip
                    found |= {getattr(each, "name", "") for each in node.body}
                case ast.Call(func=ast.Name(id="setattr") | ast.Attribute()):
                    found |= {part.value for part in node.args
                              if isinstance(part, ast.Constant) and isinstance(part.value, str)}  # fmt: skip
                case _:
                    pass
    return frozenset(found) if program.is_complete else _Everything()


class _Everything(frozenset[str]):
    """A set that contains every name, for a program that is not read completely."""

    def __contains__(self, name: object) -> bool:
        return True


Routine = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN = frozenset(("staticmethod", "classmethod", "property", "abstractmethod", "setter", "getter", "deleter"))
"""Decorators that call nothing. Any other decorator may pass the function to a caller."""


@dataclass
class _CodeBlock:
    """Code that runs as one: the statements of a module or of a function, without those of inner functions.

    names: all names it mentions. imports: its import statements. inside: functions and classes that it defines.
    """

    file: ScriptFile
    names: set[str] = field(default_factory=set)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    inside: list[Routine | ast.ClassDef] = field(default_factory=list)


class Reach:
    """The modules, functions and classes that a run of the script may reach.

    A function is reached if reached code mentions its name. A method is reached if, in addition, its class is reached,
    or if a base of its class may call it. Code reported as unreached is unreached unless names are built at run time.
    """

    def __init__(self, evaluation: KnownValues) -> None:
        self._evaluation = evaluation
        self._names: set[str] = set()
        self._classes: set[ast.ClassDef] = set()
        self._waiting_for: defaultdict[str, list[_Definition]] = defaultdict(list)
        self._waiting: list[_CodeBlock] = []
        self.files: set[ScriptFile] = set()
        self.functions: set[Routine] = set()
        script = evaluation.program.script
        self._enter(script)
        self._go_on()
        own = [node for node in script.tree.body if isinstance(node, Routine | ast.ClassDef)]
        if not any(node in self.functions or node in self._classes for node in own):
            # It only defines names that others call: mspc compile net.py:Net()
            self._mention({node.name for node in own})
            self._go_on()

    def _enter(self, file: ScriptFile) -> None:
        if file not in self.files:
            self.files.add(file)
            self._waiting.append(_part_of(file, file.tree.body))

    def _go_on(self) -> None:
        while self._waiting:
            part = self._waiting.pop()
            for statement in part.imports:
                for file in self._evaluation.program.imports(part.file, statement):
                    self._enter(file)
                self._rename(part.file, statement)
            for node in part.inside:
                self._define(_Definition(part.file, node, None))
            self._mention(part.names)

    def _rename(self, file: ScriptFile, statement: ast.Import | ast.ImportFrom) -> None:
        """Handle `from a import b as c`: code that mentions c mentions b."""
        for alias in statement.names:
            if alias.asname and isinstance(statement, ast.ImportFrom):
                if alias.asname in self._names:
                    self._mention({alias.name})
                else:
                    self._waiting_for[alias.asname].append(_Definition(file, alias.name, None))

    def _define(self, found: _Definition) -> None:
        node = found.node
        assert not isinstance(node, str)
        called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
        decorators = [getattr(each, "attr", "") or getattr(each, "id", "") for each in called]
        is_handed_on = any(name not in _PLAIN for name in decorators)
        if node.name in self._names or is_handed_on or (found.cls is not None and self._may_call(found)):
            self._come_to(found)
        else:
            self._waiting_for[node.name].append(found)

    def _may_call(self, found: _Definition) -> bool:
        """Return whether Python itself, or a base of the method's class, may call the method."""
        assert found.cls is not None
        assert not isinstance(found.node, str)
        name = found.node.name
        if name.startswith("__"):
            return True
        scope = self._evaluation.scopes[found.file]
        bases = self._evaluation.public_bases(OwnClass(found.file, scope, found.cls))
        return bases is None or any(base.has(name) for base in bases)

    def _mention(self, names: set[str]) -> None:
        waiting = [*names]
        while waiting:
            name = waiting.pop()
            if name in self._names:
                continue
            self._names.add(name)
            for found in self._waiting_for.pop(name, ()):
                if isinstance(found.node, str):
                    waiting.append(found.node)
                else:
                    self._come_to(found)

    def _come_to(self, found: _Definition) -> None:
        node = found.node
        if isinstance(node, ast.ClassDef):
            if node not in self._classes:
                self._classes.add(node)
                for method in node.body:
                    if isinstance(method, Routine | ast.ClassDef):
                        self._define(_Definition(found.file, method, node))
        elif isinstance(node, Routine) and node not in self.functions:
            self.functions.add(node)
            self._waiting.append(_part_of(found.file, node.body))


@dataclass(frozen=True)
class _Definition:
    """A definition, or an alias of one. cls: the class of a method, None for a function."""

    file: ScriptFile
    node: Routine | ast.ClassDef | str
    cls: ast.ClassDef | None


def _part_of(file: ScriptFile, body: list[ast.stmt]) -> _CodeBlock:
    part = _CodeBlock(file)
    waiting: list[ast.AST] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, Routine):
            part.inside.append(node)
            waiting += [*node.decorator_list, node.args, *([node.returns] if node.returns else [])]
        elif isinstance(node, ast.ClassDef):
            part.inside.append(node)
            waiting += [*node.decorator_list, *node.bases, *node.keywords]
            waiting += [each for each in node.body if not isinstance(each, Routine | ast.ClassDef)]
            inner = [each for each in node.body if isinstance(each, Routine | ast.ClassDef)]
            waiting += [deco for each in inner for deco in each.decorator_list]
        elif isinstance(node, ast.Import | ast.ImportFrom):
            part.imports.append(node)
        elif not _lists_names(node):
            part.names.update(_mentioned(node))
            waiting += ast.iter_child_nodes(node)
    return part


def _lists_names(node: ast.AST) -> bool:
    """Return whether a node assigns `__all__`, which lists names without calling them."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _mentioned(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
        yield from (word for word in node.value.replace(":", ".").split(".") if word.isidentifier())
