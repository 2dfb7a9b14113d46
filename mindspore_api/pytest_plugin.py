"""Pytest plugin that makes `import mindspore` work in tests; pytest loads it if mspc is installed.

An installed package of that name comes first and is not replaced.
"""

from __future__ import annotations

import pytest

from mspc.mindspore_api import alias


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Install the alias before conftest files, which may import `mindspore`, too."""
    alias.install_last()
