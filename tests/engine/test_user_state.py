"""What a simulated rank has of its own."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from mspc.api import state
from mspc.engine.simulate import UserState


def test_a_ranks_modules_are_its_own_and_libraries_are_looked_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_this_rank.py").write_text("value = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    shared = set(sys.modules)
    first, second = (UserState(state.Session.of_rank(rank, 2), None, False, shared) for rank in range(2))
    first.enter()
    import colorsys

    import of_this_rank  # type: ignore[import-not-found]  # written above

    first.leave()
    assert "colorsys" in shared
    assert "of_this_rank" not in shared
    second.enter()
    seen = {name: sys.modules.get(name) for name in ("colorsys", "of_this_rank")}
    second.leave()
    assert seen == {"colorsys": colorsys, "of_this_rank": None}
    first.enter()
    again = sys.modules.get("of_this_rank")
    first.leave()
    assert again is of_this_rank


class Late(ModuleType):
    """A module of a library that imports others as soon as it is asked for anything."""

    def __getattribute__(self, name: str) -> Any:
        sys.modules.setdefault("imported_by_late", ModuleType("imported_by_late"))
        return super().__getattribute__(name)


def test_modules_may_appear_while_a_ranks_are_set_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    shared = set(sys.modules)
    user = UserState(state.Session.of_rank(0, 1), None, False, shared)
    user.enter()
    monkeypatch.setitem(sys.modules, "late", Late("late"))
    monkeypatch.delitem(sys.modules, "imported_by_late", raising=False)
    user.leave()
    assert sys.modules.pop("imported_by_late").__name__ == "imported_by_late"
