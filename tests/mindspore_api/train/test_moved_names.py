"""Names that older scripts import from `train`."""

from __future__ import annotations

import importlib

import pytest

import mspc as ms
from mspc.mindspore_api.alias import public
from mspc.mindspore_api.index.table import rows_of
from mspc.train import serialization

MOVED = rows_of("train.serialization")


@pytest.mark.parametrize("name", sorted(MOVED))
def test_a_name_is_found_in_its_older_places(name: str) -> None:
    own = importlib.import_module(MOVED[name].home)
    assert getattr(ms.train, name) is getattr(serialization, name) is public(getattr(own, name))


def test_no_other_name_is() -> None:
    with pytest.raises(AttributeError):
        serialization.transform_checkpoints  # noqa: B018  # the access is what is tested
