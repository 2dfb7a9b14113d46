"""The fixture that tests of checkpoints share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.checkpoint.trained import Trained


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Trained:
    monkeypatch.chdir(tmp_path)
    return Trained(tmp_path, capsys)
