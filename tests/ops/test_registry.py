"""Operators by name: the table that is read from the text of the modules says the same as the modules."""

import re
import sys
from pathlib import Path

import pytest

from mspc.ops import device, registry
from mspc.ops.device import source_text
from mspc.ops.op import REGISTRY, load_operators
from mspc.ops.registry import operator_modules
from tests.serving import succeed


def test_the_text_says_where_every_operator_is() -> None:
    own = {name: cls.__module__ for name, cls in REGISTRY.items() if cls.__module__ in operator_modules()}
    assert len(own) > 100
    assert {name: registry.homes().get(name) for name in own} == own


def test_all_operators_are_loaded_once_asked_for_together() -> None:
    assert load_operators() is REGISTRY
    assert set(operator_modules()) <= set(sys.modules)
    assert list(REGISTRY) == sorted(REGISTRY)


def test_what_is_no_operator_is_none() -> None:
    """A base of operators, and a class beside them: the text of a module shows both."""
    assert "Unary" not in REGISTRY
    assert "NoSuchOperator" not in REGISTRY
    assert REGISTRY.get("Collective") is None


def test_a_name_imports_its_own_module_alone() -> None:
    code = (
        "import sys; from mspc.ops.op import REGISTRY; print(REGISTRY['ReLU'].__name__);"
        "print([name for name in ('activation', 'norm', 'softmax') if f'mspc.ops.nn.{name}' in sys.modules])"
    )
    done = succeed(sys.executable, "-c", code)
    assert done.stdout.splitlines() == ["ReLU", "['activation']"]


def test_a_new_module_is_found_by_its_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing has to be entered anywhere, not even a file generated."""
    room = tmp_path / "fresh"
    room.mkdir()
    (room / "__init__.py").write_text("")
    (room / "cubes.py").write_text("from mspc.ops.bases import Unary\n\n\nclass FreshCube(Unary):\n    pass\n")
    monkeypatch.setattr(registry.ops, "__path__", [*registry.ops.__path__, str(tmp_path)])
    operator_modules.cache_clear()
    registry.homes.cache_clear()
    try:
        assert registry.homes()["FreshCube"] == "mspc.ops.fresh.cubes"
    finally:
        operator_modules.cache_clear()
        registry.homes.cache_clear()


SUFFIXES = (".cu", ".cuh", ".cpp", ".h")
NAMED = re.compile(r'"([^"\s]+\.(?:cuh?|cpp|h))"')


def written(root: Path) -> dict[str, str]:
    """Return the texts of all files by their path from the root."""
    files = (path for folder in ("ops", "runtime") for path in sorted((root / folder).rglob("*.*")))
    return {str(p.relative_to(root)): p.read_text(encoding="utf-8") for p in files if p.suffix in SUFFIXES}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(device, "_PACKAGE", tmp_path)
    for each in (device._parts, device._text):
        each.cache_clear()
    return tmp_path


def test_values_replace_placeholders(folder: Path) -> None:
    (folder / "a.cu").write_text("void @name@() { return @value@; }  // @name@\n")
    assert source_text("a.cu", name="f", value=2) == "void f() { return 2; }  // f\n"


def test_files_are_included_from_the_folder_of_the_file(folder: Path) -> None:
    (folder / "b").mkdir()
    (folder / "b/a.cu").write_text('#include <atomic>\n#include "../c.cuh"\nint a;\n')
    (folder / "c.cuh").write_text("int @name@;\n")
    assert source_text("b/a.cu", name="c") == "#include <atomic>\nint c;\nint a;\n"


@pytest.mark.parametrize("values", [{}, {"name": "f", "other": 1}, {"other": 1}])
def test_a_missing_or_unused_value_is_an_error(folder: Path, values: dict[str, object]) -> None:
    (folder / "a.cu").write_text("int @name@;\n")
    with pytest.raises(ValueError, match=r"a.cu has the placeholders \['name'\]"):
        source_text("a.cu", **values)


def test_every_file_is_included_or_compiled(root: Path) -> None:
    texts = written(root)
    modules = (path for folder in ("ops", "runtime") for path in (root / folder).rglob("*.py"))
    named = {name for path in modules for name in NAMED.findall(path.read_text(encoding="utf-8"))}
    patterns = [re.compile(r"(?:.*/)?" + ".+".join(map(re.escape, re.split(r"\{[^}]*\}", name)))) for name in named]
    included = {
        str((root / file).parent.joinpath(name).resolve().relative_to(root))
        for file, text in texts.items()
        for name in re.findall(r'#include "(.+)"', text)
    }
    assert len(texts) > 90
    assert [file for file in texts if file not in included and not any(p.fullmatch(file) for p in patterns)] == []
    assert included <= texts.keys()


def test_lines_are_short_and_end_without_spaces(root: Path) -> None:
    wrong = [
        f"{file}:{number}"
        for file, text in written(root).items()
        for number, line in enumerate(text.splitlines(), 1)
        if len(line) > 120 or line != line.rstrip()
    ]
    assert wrong == []
