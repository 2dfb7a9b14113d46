"""Whether every name of a function has a value wherever it is read, whichever way the conditions go."""

from __future__ import annotations

import ast
from collections.abc import Sequence

JUMPS = (ast.Return, ast.Break, ast.Continue)


def always_assigned(text: str) -> bool:
    """Whether no function of a text reads a name of its own that some way to it has not assigned."""
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    return all(_Function(function).sound for function in functions)


class _Function:
    def __init__(self, function: ast.FunctionDef) -> None:
        stored = [n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)]
        inner = [n for n in ast.walk(function) if isinstance(n, ast.FunctionDef) and n is not function]
        self.own = {*stored, *(n.name for n in inner)}
        self.sound = True
        self._block(function.body, {argument.arg for argument in function.args.args})

    def _block(self, block: Sequence[ast.stmt], known: set[str]) -> set[str] | None:
        """The names that have a value behind a block; None where its end is not reached."""
        for statement in block:
            if isinstance(statement, ast.If):
                self._read(statement.test, known)
                ends = [self._block(part, set(known)) for part in (statement.body, statement.orelse)]
                reached = [end for end in ends if end is not None]
                if not reached:
                    return None
                known = set.intersection(*reached)
            elif isinstance(statement, ast.For | ast.While):
                self._read(statement.test if isinstance(statement, ast.While) else statement.iter, known)
                targets = ast.walk(statement.target) if isinstance(statement, ast.For) else ()
                self._block(statement.body, known | {n.id for n in targets if isinstance(n, ast.Name)})
            elif isinstance(statement, ast.FunctionDef):
                known = known | {statement.name}
            else:
                self._read(statement, known)
                names = [n for n in ast.walk(statement) if isinstance(n, ast.Name)]
                known = known | {name.id for name in names if isinstance(name.ctx, ast.Store)}
                if isinstance(statement, JUMPS):
                    return None
        return known

    def _read(self, node: ast.AST, known: set[str]) -> None:
        given = {argument.arg for n in ast.walk(node) if isinstance(n, ast.Lambda) for argument in n.args.args}
        read = {n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)}
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            read.add(node.target.id)
        if (read & self.own) - known - given:
            self.sound = False
