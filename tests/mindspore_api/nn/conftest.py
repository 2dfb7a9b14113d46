"""Every test starts with a session of its own; a called cell runs its `construct` at once, with NumPy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.state import Session


class Eager:
    """Runs a cell as plain Python."""

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        return target.construct(*args)


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    """A fresh session of one rank."""
    fresh = Session()
    before = state.swap(fresh)
    launcher = call_handler.install(Eager())
    yield fresh
    state.swap(before)
    call_handler.install(launcher)
