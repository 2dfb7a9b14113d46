"""The fixture that tests of checkpoints share."""

from pathlib import Path

import pytest

from tests.checkpoint.trained import Trained


@pytest.fixture
def trained(own_folder: Path, capsys: pytest.CaptureFixture[str]) -> Trained:
    return Trained(own_folder, capsys)
