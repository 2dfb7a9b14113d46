"""The browser in which tests look at pages."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests import browser


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    from playwright.sync_api import Error

    try:
        running = browser.browser()
        found = running.__enter__()
    except Error as error:
        pytest.skip(f"Chromium does not start here: {str(error).splitlines()[0]}")
    yield found
    running.__exit__(None, None, None)
