"""A called cell runs its `construct` at once, with NumPy."""

from typing import Any

import pytest

from mspc.mindspore_api import call_handler
from mspc.mindspore_api.state import Session


class Eager:
    """Runs a cell as plain Python."""

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        return target.construct(*args)


@pytest.fixture(autouse=True)
def handler(session: Session) -> None:
    """Called cells run at once."""
    call_handler.install(Eager())
