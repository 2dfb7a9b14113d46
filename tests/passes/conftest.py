"""Compiles of these tests infer the type of every node again after every pass."""

import pytest

from mspc.passes.base import VERIFY


@pytest.fixture(autouse=True)
def inferred_types(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VERIFY, "types")
