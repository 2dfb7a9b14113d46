"""Operators by name: the table that is read from the text of the modules says the same as the modules."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mspc.ops import registry
from mspc.ops.op import REGISTRY, load_operators
from mspc.ops.registry import operator_modules


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
        "print([name for name in ('activation', 'norm', 'rotary') if f'mspc.ops.nn.{name}' in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
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
