"""Tests have `import mindspore` by this plugin: pytest loads it where mspc is installed.

A package of that name that is installed comes first, so that it is left alone.
"""

from __future__ import annotations

import pytest

from mspc.mindspore_api import alias


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests() -> None:
    """Before conftest files, which import it too."""
    alias.install_last()
