"""The house rules that a machine can check: who imports whom, what is packaged, how long files are."""

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import networkx as nx
import pytest

from tests.syntax import walk

ROOT = Path(__file__).resolve().parent.parent
LAYERS: dict[str, str] = {
    "ir": "",
    "sharding": "ir",
    "checkpoint": "ir sharding plans/files",
    "ops": "ir sharding",
    "analysis": "ir sharding ops",
    "passes": "ir sharding ops analysis",
    "plans": "ir sharding ops analysis passes",
    "runtime": "ir sharding ops analysis",
    "mindspore_api": "ir sharding checkpoint ops plans/files",
    "readers": "ir sharding checkpoint ops analysis plans/files mindspore_api capture",
    "doctor": "ir ops mindspore_api",
    "compiler": "ir sharding checkpoint ops analysis passes plans mindspore_api",
    "engine": "ir sharding checkpoint ops analysis passes plans runtime mindspore_api doctor compiler",
    "output": "ir sharding checkpoint ops analysis passes plans runtime mindspore_api compiler engine",
    "search": "ir sharding checkpoint ops analysis passes plans runtime mindspore_api compiler engine output",
    "verify": "ir sharding checkpoint ops analysis passes plans runtime mindspore_api readers compiler engine",
    "commands": "ir sharding checkpoint ops analysis passes plans runtime mindspore_api doctor compiler engine output"
    " search verify readers",
}
"""Top folders of mspc and what each may import beside itself: the one list that a new top folder is entered in."""
ROOMS: dict[str, str] = {
    "plans/files": "ir",
    "search/solver": "ir",
    "search/model": "ir sharding ops analysis passes search/solver",
    "search/layouts": "ir sharding ops analysis passes search/solver search/model",
    "search/passes": "ir sharding ops analysis passes search/solver search/model search/layouts",
}
"""Rooms that may import less than the rest of their folder."""
ONLY_IN: dict[str, str | tuple[str, ...]] = {
    "cupy": "runtime/",
    "mpi4py": "runtime/comm/mpi_library.py",
    "torch": (
        "verify/pytorch/counterparts.py", "readers/pytorch/exporting.py", "readers/pytorch/capture_job.py",
        "capture.py",
    ),
}
THIRD_PARTY = {"ir": {"numpy", "lark", "networkx", "ml_dtypes"}}
READS_LAUNCHERS = "engine/ranks/"
LAUNCHER_VARIABLE = re.compile(r"\b(OMPI|PMIX?|SLURM|RANK)_[A-Z]+|RANK_TABLE_FILE")
RUNS_SCRIPTS = "engine/script.py"
WRITES_METHODS = "ir/late_dataclass.py"
NO_CODE = {"tests", "benchmarks", "samples", "docs", "build", "dist"}
MACHINE_PATHS = re.compile(r"(?<![\w.-])/(root|(home|Users|tmp|var/tmp|var/folders)/\w[\w.-]*)(/|\b)")
"""Somebody's home folder, or something in a temporary folder: what every machine has, and no file should name."""


@cache
def package_files() -> list[Path]:
    """Every Python file that is installed."""
    return [*sorted(ROOT.glob("*.py")), *(path for folder in LAYERS for path in sorted((ROOT / folder).rglob("*.py")))]


def text_files() -> Iterator[Path]:
    for pattern in ("*", "[a-z]*/**/*", ".ci/*"):
        for path in ROOT.glob(pattern):
            built = {"build", "dist", "__pycache__", "mspc.egg-info"} & set(path.relative_to(ROOT).parts)
            if path.is_file() and not built and path.suffix not in (".pyc", ".npz", ".safetensors"):
                yield path


@dataclass
class Said:
    """The facts that the tests ask of a file, so that none of them keeps its tree or reads it again."""

    documented: bool
    statements: list[ast.Import | ast.ImportFrom] = field(default_factory=list)
    evaluated: list[tuple[int, str]] = field(default_factory=list)
    variables: list[tuple[int, str]] = field(default_factory=list)
    loaded: list[str] = field(default_factory=list)


@cache
def read(path: Path) -> Said:
    """The imports in a file, inside functions too."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    said = Said(bool(ast.get_docstring(tree)))
    for node in walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                said.statements.append(node)
            case ast.Call(func=ast.Name(id="eval" | "exec" as name)):
                said.evaluated.append((node.lineno, name))
            case ast.Call(func=ast.Attribute(attr="import_module"), args=[ast.Constant(value=str(text))]):
                said.loaded.append(text)
            case ast.Constant(value=str(text)) if LAUNCHER_VARIABLE.fullmatch(text):
                said.variables.append((node.lineno, text))
    return said


@cache
def imports(path: Path) -> list[tuple[str, int, int]]:
    """(dotted module, relative level, line) of every import statement."""
    found: list[tuple[str, int, int]] = []
    for node in read(path).statements:
        if isinstance(node, ast.Import):
            found += ((alias.name, 0, node.lineno) for alias in node.names)
        else:
            module = node.module or ""
            names = [alias.name for alias in node.names] if module == "mspc" else [""]
            found += ((f"{module}.{name}".rstrip("."), node.level, node.lineno) for name in names)
    return found


@pytest.mark.parametrize("folder", sorted(LAYERS | ROOMS))
def test_folder_imports_only_lower_layers(folder: str) -> None:
    lower = tuple(f"mspc.{each.replace('/', '.')}." for each in (folder, *(LAYERS | ROOMS)[folder].split()))
    wrong: list[str] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        for module, _, line in imports(path):
            if module.startswith("mspc.") and not f"{module}.".startswith(lower):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
        wrong += [
            f"{path.relative_to(ROOT)} loads {module}"
            for module in read(path).loaded
            if module.startswith("mspc.") and not f"{module}.".startswith(lower)
        ]
    assert not wrong


def modules() -> dict[str, Path]:
    """Every installed file by the dotted name that it is imported by."""
    found: dict[str, Path] = {}
    for path in package_files():
        parts = ("mspc", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported_files(path: Path, known: Mapping[str, Path]) -> Iterator[str]:
    """The files of mspc that a file names in an import statement: at its top, in functions, under TYPE_CHECKING."""
    for node in read(path).statements:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif node.module in known:
            for alias in node.names:
                deeper = f"{node.module}.{alias.name}"
                yield deeper if deeper in known else node.module


def cycles(files: Mapping[str, Path], late: Mapping[tuple[str, str], str] | None = None) -> list[list[str]]:
    """Groups of files that import each other in circles.

    late: asks for more: the packages that an import opens are imported, too, and so are modules that are loaded by a
    name that the text has, but for these pairs.
    """
    graph = nx.DiGraph()
    for name, path in files.items():
        others = set(imported_files(path, files))
        if late is not None:
            others |= {other for other in read(path).loaded if other in files and (name, other) not in late}
            opened = {package for other in others for package in packages_of(other)} & files.keys()
            others |= opened - packages_of(f"{name}.")
        graph.add_edges_from((name, other) for other in others if other != name and (name, other) not in (late or ()))
    return sorted(sorted(group) for group in nx.strongly_connected_components(graph) if len(group) > 1)


def packages_of(module: str) -> set[str]:
    """The modules that are opened on the way to a module, but for mspc itself."""
    parts = module.split(".")
    return {".".join(parts[:count]) for count in range(2, len(parts))}


LATE = {
    (
        "mspc.mindspore_api.index.module",
        "mspc.mindspore_api.index.functions",
    ): "what a row makes may name every operator and function",
    ("mspc.mindspore_api.ops", "mspc.mindspore_api.common.tensor"): "operators that run at once make tensors",
}
"""Modules that are loaded when a name is asked for or a network is called, and not before, with the reason."""


def test_no_files_import_each_other_in_a_circle() -> None:
    """Not under TYPE_CHECKING or inside functions either: what one of them is cannot be told without the other."""
    assert cycles(modules()) == []


def test_no_files_load_each_other_in_a_circle() -> None:
    """By the packages that they open and by names in their text, but for what is late with a reason."""
    assert cycles(modules(), LATE) == []


@pytest.mark.parametrize("pair", sorted(LATE))
def test_what_is_late_closes_a_circle(pair: tuple[str, str]) -> None:
    """One that does not would need no reason any more."""
    assert any({*pair} <= {*group} for group in cycles(modules(), {p: why for p, why in LATE.items() if p != pair}))


def test_circles_are_found(tmp_path: Path) -> None:
    """In every form of an import statement, and by name."""
    sources = {
        "mspc.a": "from mspc import b",
        "mspc.b": "def f():\n    import mspc.c",
        "mspc.c": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from mspc.a import A",
        "mspc.d": "from mspc.a import A",
        "mspc.e": "from mspc.f.g import G",
        "mspc.f": "import importlib\ndef f(name):\n    return getattr(importlib.import_module('mspc.e'), name)",
        "mspc.f.g": "",
        "mspc": "",
    }
    files = {name: tmp_path / f"{name}.py" for name in sources}
    for name, source in sources.items():
        files[name].write_text(source)
    assert cycles(files) == [["mspc.a", "mspc.b", "mspc.c"]]
    assert cycles(files, {}) == [["mspc.a", "mspc.b", "mspc.c"], ["mspc.e", "mspc.f"]]
    assert cycles(files, {("mspc.f", "mspc.e"): ""}) == [["mspc.a", "mspc.b", "mspc.c"]]


def test_imports_are_absolute() -> None:
    tops = {*LAYERS, "cli"}
    wrong: list[str] = []
    for path in package_files():
        for module, level, line in imports(path):
            if level or module.split(".")[0] in tops:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {'.' * level}{module}")
    assert not wrong


def test_device_libraries_stay_in_their_file() -> None:
    wrong: list[str] = []
    for path in package_files():
        shown = str(path.relative_to(ROOT))
        for module, _, line in imports(path):
            home = ONLY_IN.get(module.split(".")[0])
            if home is not None and not shown.startswith(home):
                wrong.append(f"{shown}:{line} imports {module}")
    assert not wrong


def test_one_file_alone_imports_cupy() -> None:
    users = {p.name for p in package_files() if any(m.split(".")[0] == "cupy" for m, _, _ in imports(p))}
    assert len(users) <= 1


def test_ir_needs_no_other_library() -> None:
    import sys

    wrong: list[str] = []
    for path in sorted((ROOT / "ir").rglob("*.py")):
        for module, _, line in imports(path):
            top = module.split(".")[0]
            if top != "mspc" and top not in sys.stdlib_module_names and top not in THIRD_PARTY["ir"]:
                wrong.append(f"{path.name}:{line} imports {module}")
    assert not wrong


def test_every_folder_of_code_is_a_package_in_a_layer() -> None:
    """setup.py packages the folders with an `__init__.py`; `find_packages` passes over what lies below one without."""
    code = {p.relative_to(ROOT).parent for p in ROOT.glob("[a-z]*/**/*.py")}
    code = {folder for folder in code if folder.parts[0] not in NO_CODE}
    assert {folder.parts[0] for folder in code} == set(LAYERS)
    assert [str(folder) for folder in sorted(code) if not (ROOT / folder / "__init__.py").is_file()] == []


def test_every_module_says_its_role() -> None:
    assert [str(path.relative_to(ROOT)) for path in package_files() if not read(path).documented] == []


def test_paths_of_a_machine_are_known() -> None:
    paths = ["/" + "home/ann/x.py", "/" + "root/.venv", "cd /" + "root", "/" + "tmp/build-1", "'/" + "Users/ann'"]
    assert all(map(MACHINE_PATHS.search, paths))
    assert not any(map(MACHINE_PATHS.search, ["/dev/shm", "samples/root.py", "a/home/b", "/usr/bin", "/proc"]))


def test_no_path_of_a_machine_is_mentioned() -> None:
    found: list[str] = []
    for path in text_files():
        text = path.read_text(encoding="utf-8", errors="replace")
        if not any("/" + folder in text for folder in ("root", "home/", "Users/", "tmp/", "var/")):  # found far sooner
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_nothing_is_pickled_or_evaluated() -> None:
    """`exec` runs the user's script, in one file, and writes what `dataclasses` would write with it, in another; no
    other file evaluates text."""
    wrong: list[str] = []
    for path in package_files():
        shown = str(path.relative_to(ROOT))
        wrong += [
            f"{shown}:{line} imports {m}" for m, _, line in imports(path) if m.split(".")[0] in ("pickle", "marshal")
        ]
        if shown not in (RUNS_SCRIPTS, WRITES_METHODS):
            wrong += [f"{shown}:{line} calls {name}" for line, name in read(path).evaluated]
    assert wrong == []


def test_dataclasses_are_made_when_they_are_used() -> None:
    """Classes come from `ir/late_dataclass.py`: those of the standard library cost a start a millisecond each."""
    wrong = [
        f"{path.relative_to(ROOT)}:{node.lineno}: take `dataclass` from mspc.ir.late_dataclass"
        for path in package_files()
        for node in read(path).statements
        if isinstance(node, ast.ImportFrom) and node.module == "dataclasses"
        if "dataclass" in [alias.name for alias in node.names] and str(path.relative_to(ROOT)) != WRITES_METHODS
    ]
    assert wrong == []


def test_one_room_reads_the_variables_of_launchers() -> None:
    wrong: list[str] = []
    for path in package_files():
        shown = str(path.relative_to(ROOT))
        if not shown.startswith(READS_LAUNCHERS):
            wrong += [f"{shown}:{line} names {text}" for line, text in read(path).variables]
    assert wrong == []
