"""A real Chromium for tests of pages: found where `.ci/run` puts it or where the system has it."""

import importlib.util
import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "MSPC_CHROMIUM"
"""The environment variable that names the program."""
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome", "chrome-headless-shell")
OPTIONS = ["--no-sandbox", "--headless=shell", "--disable-gpu", "--disable-dev-shm-usage"]


def program() -> str:
    """The path of Chromium, "" where there is none."""
    given = os.environ.get(VARIABLE, "")
    return given if given and Path(given).is_file() else next(filter(None, map(shutil.which, NAMES)), "")


def why_not() -> str:
    """Why no browser can be used, "" where one can."""
    if importlib.util.find_spec("playwright") is None:
        return "Playwright is not installed (pip install playwright)"
    return "" if program() else f"no Chromium: neither {VARIABLE} nor the path names one, see .ci/run"


@contextmanager
def browser() -> Generator[Any]:
    """A running Chromium. Raises playwright's Error where it does not start."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program(), args=OPTIONS)
        yield running
        running.close()
