"""Tests against independent judges are left out where these are not installed; how many cases were held is said."""

from importlib.util import find_spec
from typing import Any

import pytest

REASON = "needs PyTorch: pip install -e '.[oracle]'"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if find_spec("torch") is None:
        for item in items:
            if "tests/oracle" in item.path.as_posix():
                item.add_marker(pytest.mark.skip(reason=REASON))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if find_spec("torch") is None:
        return
    from tests.oracle.judging import COUNTED

    if COUNTED:
        terminalreporter.write_line(f"judges: {COUNTED['values']} values and {COUNTED['gradients']} gradients compared")
