"""How many of the cases that a test draws are taken: a share of them every day, all under `pytest --thorough`.

The share is always the same one: what fails once fails again.
"""

from __future__ import annotations

import os

THOROUGH = "MSPC_TEST_THOROUGHLY"
"""The variable by which processes that tests start know of the option, too."""
PARTS = 4


def share_of(count: int, parts: int = PARTS) -> int:
    """One of so many parts of `count`, rounded up; under `--thorough` all of it."""
    return count if os.environ.get(THOROUGH) else -(-count // parts)


def is_taken(place: int, parts: int = PARTS) -> bool:
    """Whether the case at a place is one of a share that is spread over all; under `--thorough` every one is."""
    return place % parts == 0 or bool(os.environ.get(THOROUGH))
