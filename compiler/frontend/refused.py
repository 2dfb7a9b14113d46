"""Statements that no compiled function may have, and what to write in their place."""

from __future__ import annotations

import ast

REFUSED: dict[type[ast.stmt], tuple[str, str]] = {
    ast.Try: ("'try'", "errors that are known at compile time stop the compile; others cannot be caught"),
    ast.Global: ("'global'", "return the value instead"),
    ast.Nonlocal: ("'nonlocal'", "return the value instead"),
    ast.Delete: ("'del'", "values are freed after their last use without it"),
    ast.ClassDef: ("'class'", "define classes at the top of the file"),
    ast.Import: ("'import'", "import at the top of the file"),
    ast.ImportFrom: ("'import'", "import at the top of the file"),
    ast.Match: ("'match'", "use if, elif and else"),
    ast.AsyncFunctionDef: ("'async'", ""),
    ast.AsyncFor: ("'async'", ""),
    ast.AsyncWith: ("'async'", ""),
}
