"""The files of a script: its own file and the modules that it imports from its folder and its packages."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from mspc.ir.files.parsing import parsing_python, reading
from mspc.ir.files.regular import check_regular
from mspc.ir.late_dataclass import dataclass

PUBLIC = ("mindspore", "mspc")
"""Top-level names of the modules that mspc provides to scripts."""


@dataclass(frozen=True, eq=False)
class ScriptFile:
    """A Python file that was read. path: its path. shown: its name in messages. tree: its syntax tree."""

    path: Path
    shown: str
    tree: ast.Module
    lines: tuple[str, ...]

    def column(self, line: int, offset: int) -> int:
        """Return the column, counted in characters from 1, of an offset in bytes of UTF-8."""
        text = self.lines[line - 1] if line <= len(self.lines) else ""
        return len(text.encode()[:offset].decode(errors="ignore")) + 1


def read_source(path: Path, shown: str | None = None) -> ScriptFile:
    """Read and parse a file. shown: its name in messages, None for its path. Raise MspcError if it is missing, cannot
    be read, or is not Python."""
    name = str(path) if shown is None else shown
    with reading(Path(name), "script"):
        check_regular(path)
        raw = path.read_bytes()
    with parsing_python(name):
        tree = ast.parse(raw, filename=name)
    text = raw.decode(errors="replace").removeprefix("\ufeff")
    return ScriptFile(path, name, tree, tuple(text.replace("\r\n", "\n").replace("\r", "\n").split("\n")))


class ScriptFiles:
    """A script and its own modules, without installed libraries.

    Modules are searched in the folders in which Python would look for them: the script's folder, the folder that holds
    its package, and those of PYTHONPATH. most: how many files may be read, None for all; the contents of the others are
    unknown. Raise MspcError if a file is missing, cannot be read, or is not Python.
    """

    def __init__(self, script: Path, most: int | None = None) -> None:
        self.most = most
        self.is_complete = True
        """False if a requested file was not read because of `most`."""
        self.script = read_source(script)
        folder = _real(script).parent
        package = folder
        while (package / "__init__.py").is_file():
            package = package.parent
        more = [Path(place) for place in os.environ.get("PYTHONPATH", "").split(os.pathsep) if place]
        own = [place for place in more if "site-packages" not in place.parts]
        self.roots = list(dict.fromkeys([folder, package, *own]))
        self._read: dict[Path, ScriptFile] = {_real(script): self.script}
        self._found: dict[tuple[Path, str], ScriptFile | None] = {}

    @cached_property
    def files(self) -> list[ScriptFile]:
        """The script and the modules that it imports, directly or not, in the order of their imports."""
        found = {self.script: None}
        waiting = [self.script]
        while waiting:
            file = waiting.pop(0)
            imports = (node for node in ast.walk(file.tree) if isinstance(node, ast.Import | ast.ImportFrom))
            others = dict.fromkeys(other for node in imports for other in self.imports(file, node))
            new = [other for other in others if other not in found]
            found |= dict.fromkeys(new)
            waiting += new
        return list(found)

    def module(self, file: ScriptFile, name: str, level: int) -> ScriptFile | None:
        """Return the file that `import name`, or `from ..name import` with `level` dots, reads; None if it is not the
        script's own."""
        if level:
            folder = file.path.parent
            for _ in range(level - 1):
                folder = folder.parent
            return self._file(folder, name)
        if name.partition(".")[0] in PUBLIC:
            return None
        return next((found for root in self.roots if (found := self._file(root, name))), None)

    def imports(self, file: ScriptFile, node: ast.Import | ast.ImportFrom) -> Iterator[ScriptFile]:
        """Yield the script's other files that an import statement of a file runs."""
        names: list[tuple[str, int]] = []
        if isinstance(node, ast.Import):
            names = [(alias.name, 0) for alias in node.names]
        else:
            module = node.module or ""
            names = [(f"{module}.{alias.name}".lstrip("."), node.level) for alias in node.names]
        for name, level in names:
            parts = name.removesuffix(".*").split(".")
            for count in range(0 if level else 1, len(parts) + 1):
                found = self.module(file, ".".join(parts[:count]), level)
                if found is not None and found is not file:
                    yield found

    def _file(self, folder: Path, name: str) -> ScriptFile | None:
        key = (folder, name)
        if key not in self._found:
            self._found[key] = self._searched(folder, name)
        return self._found[key]

    def _searched(self, folder: Path, name: str) -> ScriptFile | None:
        place = folder.joinpath(*name.split(".")) if name else folder
        for path in (place / "__init__.py", *([place.with_name(f"{place.name}.py")] if name else [])):
            if path.is_file():
                real = _real(path)
                if real not in self._read and self.most is not None and len(self._read) >= self.most:
                    self.is_complete = False
                    return None
                if real not in self._read:
                    self._read[real] = read_source(path, _shown(path))
                return self._read[real]
        return None


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


def _shown(path: Path) -> str:
    name = os.path.relpath(path)
    return str(path) if name.startswith("..") else name
