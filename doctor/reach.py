"""This module finds which functions of a program its script can come to, by the names that are mentioned on the way:
nothing is run."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import field

from mspc.doctor.evaluation import KnownValues, OwnClass
from mspc.doctor.program import ScriptFile
from mspc.ir.late_dataclass import dataclass

Routine = ast.FunctionDef | ast.AsyncFunctionDef
_PLAIN = frozenset(("staticmethod", "classmethod", "property", "abstractmethod", "setter", "getter", "deleter"))
"""Decorators that call nothing: others may hand a function to whoever calls it."""


@dataclass
class _CodeBlock:
    """What runs together: the statements of a module, or of a function, without those of functions inside.

    names: what it mentions. imports: statements. inside: functions and classes that it defines.
    """

    file: ScriptFile
    names: set[str] = field(default_factory=set)
    imports: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    inside: list[Routine | ast.ClassDef] = field(default_factory=list)


class Reach:
    """The modules, functions and classes that the run of a script may come to. A function counts where code that is
    reached mentions its name; a method, where its class is reached, too, or where what its class derives from may call
    it. So what is listed as not reached is not, unless names are put together while it runs."""

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
            # It only defines what others call: mspc compile net.py:Net()
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
        """`from a import b as c`: whoever mentions c mentions b."""
        for alias in statement.names:
            if alias.asname and isinstance(statement, ast.ImportFrom):
                if alias.asname in self._names:
                    self._mention({alias.name})
                else:
                    self._waiting_for[alias.asname].append(_Definition(file, alias.name, None))

    def _define(self, found: _Definition) -> None:
        node = found.node
        assert not isinstance(node, str)
        if node.name in self._names or _is_handed_on(node) or (found.cls is not None and self._may_call(found)):
            self._come_to(found)
        else:
            self._waiting_for[node.name].append(found)

    def _may_call(self, found: _Definition) -> bool:
        """Whether Python, or a class that the method's class derives from, may call it."""
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
    """A definition, or the other name of one. cls: the class that a method belongs to."""

    file: ScriptFile
    node: Routine | ast.ClassDef | str
    cls: ast.ClassDef | None


def _is_handed_on(node: Routine | ast.ClassDef) -> bool:
    called = [each.func if isinstance(each, ast.Call) else each for each in node.decorator_list]
    names = [getattr(each, "attr", "") or getattr(each, "id", "") for each in called]
    return any(name not in _PLAIN for name in names)


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
    """`__all__ = [...]` calls nothing."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AugAssign) else []
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def _mentioned(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    elif isinstance(node, ast.Attribute):
        yield node.attr
    elif isinstance(node, ast.Constant) and isinstance(node.value, str) and len(node.value) < 100:
        yield from (word for word in node.value.replace(":", ".").split(".") if word.isidentifier())
