"""Every test starts with a session and a launcher of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.state import Session


@pytest.fixture(autouse=True)
def session() -> Iterator[Session]:
    """A fresh session of one rank."""
    fresh = Session()
    before = state.swap(fresh)
    launcher = call_handler.install(None)
    yield fresh
    state.swap(before)
    call_handler.install(launcher)
