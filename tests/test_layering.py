"""The house rules that a machine can check: who imports whom, what is packaged, how long files are."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
API = {"nn", "mint", "train", "dataset", "communication", "parallel", "device"}
ALLOWED: dict[str, set[str]] = {
    "ir": {"ir"},
    "ops": {"ir", "ops"},
    "session": {"ir", "ops", "session"},
    "passes": {"ir", "ops", "passes"},
    "runtime": {"ir", "ops", "runtime"},
    **{folder: {"ir", "ops", "session"} | API for folder in API},
    "compiler": {"ir", "ops", "session", "nn", "passes", "compiler"},
}
"""Folders of mspc that a folder may import; commands, cli and __main__ may import everything."""
ABOVE_ITS_LAYER = {
    ("ops/functional.py", "session"),
    ("ops/primitive.py", "session"),
    ("ops/eager.py", "session"),
}
"""The user's side of `ops`: what scripts call outside a graph handles the tensors they hold."""
ONLY_IN = {"cupy": "runtime/", "mpi4py": "runtime/comm_mpi.py"}
THIRD_PARTY = {"ir": {"numpy", "lark", "networkx", "ml_dtypes"}}
NO_CODE = {"tests", "benchmarks", "samples", "docs", "build", "dist"}
LINES = 450
MACHINE_PATHS = re.compile(
    "|".join(["/" + "work/", "/" + "root/", "/" + r"home/\w", "/tmp/" + "venv", r"\.lib" + "rary"])
)


def package_files() -> list[Path]:
    """Every Python file that is installed."""
    found = sorted(ROOT.glob("*.py"))
    for folder in packages():
        found += sorted((ROOT / folder).glob("*.py"))
    return found


def packages() -> list[str]:
    """Folders with an `__init__.py`, as paths: "ir", "nn/optim"."""
    found = [*ROOT.glob("[a-z]*/__init__.py"), *ROOT.glob("[a-z]*/[a-z]*/__init__.py")]
    return sorted(
        str(init.parent.relative_to(ROOT)) for init in found if init.relative_to(ROOT).parts[0] not in NO_CODE
    )


def text_files() -> Iterator[Path]:
    for pattern in ("*", "[a-z]*/**/*", ".ci/*"):
        for path in ROOT.glob(pattern):
            built = {"build", "dist", "__pycache__", "mspc.egg-info"} & set(path.relative_to(ROOT).parts)
            if path.is_file() and not built and path.suffix not in (".pyc", ".npz", ".safetensors"):
                yield path


def imports(path: Path) -> Iterator[tuple[str, int, int]]:
    """(dotted module, relative level, line) of every import statement, those inside functions too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, 0, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [alias.name for alias in node.names] if module == "mspc" else [""]
            yield from ((f"{module}.{name}".rstrip("."), node.level, node.lineno) for name in names)


@pytest.mark.parametrize("folder", sorted(ALLOWED))
def test_folder_imports_only_lower_layers(folder: str) -> None:
    wrong: list[str] = []
    for path in sorted((ROOT / folder).rglob("*.py")):
        shown = str(path.relative_to(ROOT))
        for module, _, line in imports(path):
            parts = module.split(".")
            if parts[0] != "mspc" or len(parts) == 1:
                continue
            if parts[1] not in ALLOWED[folder] and (shown, parts[1]) not in ABOVE_ITS_LAYER:
                wrong.append(f"{shown}:{line} imports {module}")
    assert not wrong


def test_imports_are_absolute() -> None:
    tops = {*(folder for folder in packages() if "/" not in folder), "cli"}
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
    for path in sorted((ROOT / "ir").glob("*.py")):
        for module, _, line in imports(path):
            top = module.split(".")[0]
            if top != "mspc" and top not in sys.stdlib_module_names and top not in THIRD_PARTY["ir"]:
                wrong.append(f"{path.name}:{line} imports {module}")
    assert not wrong


def test_package_list_names_every_folder() -> None:
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg", encoding="utf-8")
    listed = config["options"]["packages"].split()
    assert listed == ["mspc", *("mspc." + folder.replace("/", ".") for folder in packages())]


def test_every_folder_of_code_is_a_package() -> None:
    code = {
        str(p.parent.relative_to(ROOT))
        for pattern in ("[a-z]*/*.py", "[a-z]*/[a-z]*/*.py")
        for p in ROOT.glob(pattern)
    }
    assert {folder for folder in code if folder.partition("/")[0] not in NO_CODE} == set(packages())


def test_files_stay_short() -> None:
    lengths = {
        str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in package_files()
    }
    assert {name: n for name, n in lengths.items() if n > LINES} == {}


def test_every_module_says_its_role() -> None:
    silent = [
        str(p.relative_to(ROOT)) for p in package_files() if not ast.get_docstring(ast.parse(p.read_text()))
    ]
    assert silent == []


def test_no_path_of_a_machine_is_mentioned() -> None:
    found: list[str] = []
    for path in text_files():
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            if MACHINE_PATHS.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:80]}")
    assert found == []


def test_nothing_is_pickled_or_evaluated() -> None:
    """`exec` runs the user's script, in one file; no other file evaluates text."""
    wrong: list[str] = []
    for path in package_files():
        shown = str(path.relative_to(ROOT))
        wrong += [
            f"{shown}:{line} imports {m}"
            for m, _, line in imports(path)
            if m.split(".")[0] in ("pickle", "marshal")
        ]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            called = node.func if isinstance(node, ast.Call) else None
            if (
                isinstance(called, ast.Name)
                and called.id in ("eval", "exec")
                and shown != "commands/script.py"
            ):
                wrong.append(f"{shown}:{node.lineno} calls {called.id}")
    assert wrong == []
