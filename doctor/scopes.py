"""Scopes of a file and the bindings of their names, as far as the text shows them."""

from __future__ import annotations

import ast
import bisect
from collections.abc import Iterator
from dataclasses import field

from mspc.doctor.program import children, walk
from mspc.ir.late_dataclass import dataclass

Function = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
Comprehension = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
Inner = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef | Comprehension
UNKNOWN = "unknown"
_BINDING = (
    ast.stmt, ast.NamedExpr, ast.withitem, ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping
)
"""Nodes that may bind names."""
_ORDERED = ast.Module | ast.FunctionDef | ast.AsyncFunctionDef
"""Scopes in which statements run one after another."""
_ALWAYS = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
"""Statements that bind their names whenever they are reached."""


@dataclass(frozen=True, eq=False)
class Binding:
    """One place at which a name gets a value.

    kind: "import" (`module` as it is bound), "from" (`name` of `module`, `level` dots before it), "value" (of
    `node`), "annotated" (an object of the class `node`), "class" (`node`), "self" (an object of the class `node`), or
    UNKNOWN.
    """

    kind: str
    node: ast.AST | None = None
    module: str = ""
    name: str = ""
    level: int = 0


@dataclass(eq=False)
class Scope:
    """A module, a class, a function or a comprehension. bindings: by name. stars: modules, with their count of dots,
    from which all names are imported. places: the statement, or the part of one, that makes each binding."""

    node: ast.AST
    outer: Scope | None = None
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    stars: list[tuple[str, int]] = field(default_factory=list)
    inner: dict[ast.AST, Scope] = field(default_factory=dict)
    places: dict[Binding, ast.AST] = field(default_factory=dict)

    @property
    def top(self) -> Scope:
        return self if self.outer is None else self.outer.top

    def owner(self, name: str) -> Scope | None:
        """Return the scope that defines a name read in this one; None if no scope of the file does. Functions do not
        see the names of the class around them."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.bindings and (scope is self or not isinstance(scope.node, ast.ClassDef)):
                return scope
            scope = scope.outer
        return None

    def bind(self, name: str, binding: Binding, place: ast.AST | None = None) -> None:
        self.bindings.setdefault(name, []).append(binding)
        if place is not None:
            self.places[binding] = place

    def in_force(self, name: str, use: ast.AST) -> list[Binding]:
        """Return the bindings of a name that may be in force at a use in this scope.

        These are the last earlier statement of the scope's own block that always binds the name, and later ones in
        loops and branches. All bindings are returned if the text does not show their order.
        """
        found = self.bindings[name]
        block: list[ast.stmt] = getattr(self.node, "body", []) if isinstance(self.node, _ORDERED) else []
        here = _statement_of(block, use)
        if len(found) == 1 or here is None:
            return found
        last, places = -1, []
        for binding in found:
            place = self.places.get(binding)
            number = _statement_of(block, place) if place is not None else None
            if number is None:
                return found
            places.append(number)
            if number < here and block[number] is place and isinstance(place, _ALWAYS):
                last = max(last, number)
        until = here if isinstance(block[here], _ALWAYS) else here + 1
        held = [each for each, at in zip(found, places, strict=True) if last <= at < until]
        return held or found


def _statement_of(block: list[ast.stmt], node: ast.AST) -> int | None:
    """Return the index of the statement of a block that contains a node; None if no statement does."""
    place = (getattr(node, "lineno", 0), getattr(node, "col_offset", 0))
    number = bisect.bisect_left(
        block, place, key=lambda each: (each.end_lineno or each.lineno, each.end_col_offset or 0)
    )
    if place == (0, 0) or number >= len(block):
        return None
    found = block[number]
    above = [(each.lineno, each.col_offset - 1) for each in getattr(found, "decorator_list", ())]
    return number if min([*above, (found.lineno, found.col_offset)]) <= place else None


def scopes_of(tree: ast.Module) -> Scope:
    """Return the scope of a file with all inner scopes."""
    return _filled(Scope(tree), tree.body)


def _filled(scope: Scope, nodes: list[ast.stmt] | list[ast.expr]) -> Scope:
    elsewhere: dict[str, Scope] = {}
    own = list(_own_nodes(nodes))
    for node in own:
        if isinstance(node, ast.Global | ast.Nonlocal):
            outer = scope.top if isinstance(node, ast.Global) else scope.outer or scope.top
            elsewhere |= dict.fromkeys(node.names, outer)
    for node in own:
        for name, binding in _bound(node) if isinstance(node, _BINDING) else ():
            target = scope
            while isinstance(node, ast.NamedExpr) and isinstance(target.node, Comprehension) and target.outer:
                target = target.outer  # `:=` binds in the nearest scope that is not a comprehension
            target = elsewhere.get(name) or target
            target.bind(name, binding, node)
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            scope.stars.append((node.module or "", node.level))
        if isinstance(node, Inner):
            scope.inner[node] = _inner(scope, node)
    return scope


def _inner(outer: Scope, node: Inner) -> Scope:
    scope = Scope(node, outer)
    if isinstance(node, ast.ClassDef):
        return _filled(scope, node.body)
    if isinstance(node, Comprehension):
        for part in node.generators:
            for name in _targets(part.target):
                scope.bind(name, Binding(UNKNOWN))
        parts = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        parts += [part for each in node.generators for part in (each.iter, *each.ifs)]
        return _filled(scope, parts)
    arguments = node.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    for argument in named:
        known = argument.annotation is not None
        scope.bind(argument.arg, Binding("annotated" if known else UNKNOWN, argument.annotation))
    for rest in (arguments.vararg, arguments.kwarg):
        if rest is not None:
            scope.bind(rest.arg, Binding(UNKNOWN))
    if isinstance(outer.node, ast.ClassDef) and named and not isinstance(node, ast.Lambda):
        if not any(isinstance(d, ast.Name) and d.id in ("staticmethod", "classmethod") for d in node.decorator_list):
            scope.bindings[named[0].arg] = [Binding("self", outer.node)]
    return _filled(scope, [node.body] if isinstance(node, ast.Lambda) else node.body)


def _own_nodes(nodes: list[ast.stmt] | list[ast.expr]) -> Iterator[ast.AST]:
    """Yield the nodes of one scope: the nodes of inner scopes themselves, but not their contents."""
    waiting: list[ast.AST] = [*reversed(nodes)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, Inner):
            waiting += reversed(children(node))
        elif isinstance(node, Comprehension):
            continue
        else:
            outside = [*getattr(node, "decorator_list", []), *getattr(node, "bases", [])]
            outside += [word.value for word in getattr(node, "keywords", [])]
            if isinstance(node, Function):
                arguments = node.args
                outside += [*arguments.defaults, *(d for d in arguments.kw_defaults if d is not None)]
            waiting += reversed(outside)


def _bound(node: ast.AST) -> Iterator[tuple[str, Binding]]:
    """Yield (name, binding) of every name that a node itself binds, without those bound by nodes inside it."""
    match node:
        case ast.Import():
            for alias in node.names:
                module = alias.name if alias.asname else alias.name.partition(".")[0]
                yield alias.asname or module, Binding("import", node, module)
        case ast.ImportFrom():
            for alias in node.names:
                if alias.name != "*":
                    yield alias.asname or alias.name, Binding("from", node, node.module or "", alias.name, node.level)
        case ast.Assign():
            for target in node.targets:
                yield from _assigned(target, node.value)
        case ast.NamedExpr():
            yield from _assigned(node.target, node.value)
        case ast.AnnAssign():
            if isinstance(node.target, ast.Name):
                binding = Binding("annotated", node.annotation) if node.value is None else Binding("value", node.value)
                yield node.target.id, binding
        case ast.AugAssign() | ast.For() | ast.AsyncFor():
            yield from ((name, Binding(UNKNOWN)) for name in _targets(node.target))
        case ast.withitem(optional_vars=ast.expr() as target):
            yield from ((name, Binding(UNKNOWN)) for name in _targets(target))
        case (
            ast.ExceptHandler(name=str() as name) | ast.MatchAs(name=str() as name) | ast.MatchStar(name=str() as name)
            | ast.MatchMapping(rest=str() as name)
        ):  # fmt: skip
            yield name, Binding(UNKNOWN)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield node.name, Binding(UNKNOWN, node)
        case ast.ClassDef():
            yield node.name, Binding("class", node)
        case ast.Delete():
            yield from ((name, Binding(UNKNOWN)) for target in node.targets for name in _targets(target))
        case _:
            pass


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, Binding]]:
    if isinstance(target, ast.Name):
        yield target.id, Binding("value", value)
        return
    yield from ((name, Binding(UNKNOWN)) for name in _targets(target))


def _targets(target: ast.expr) -> Iterator[str]:
    """Yield the names that an assignment to this target binds."""
    for node in walk(target):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
            yield node.id
