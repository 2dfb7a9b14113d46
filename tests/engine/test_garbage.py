"""A compile looks for garbage rarely, and a script as it did before."""

import gc
from collections.abc import Iterator

import pytest

from mspc.engine.garbage import frozen_garbage

ORDINARY = (700, 11, 12)


@pytest.fixture(autouse=True)
def threshold() -> Iterator[None]:
    before = gc.get_threshold()
    gc.set_threshold(*ORDINARY)
    yield
    gc.set_threshold(*before)


def test_what_is_made_is_left_out_meanwhile() -> None:
    before = gc.get_freeze_count()
    with frozen_garbage():
        assert gc.get_freeze_count() > before
    assert gc.get_freeze_count() == 0
