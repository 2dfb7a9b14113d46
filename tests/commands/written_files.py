"""Commands in a folder of their own."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mspc.passes.base import VERIFY
from tests.serving import invoke

Run = Callable[..., Any]


def runner(folder: Path, monkeypatch: pytest.MonkeyPatch, files: Mapping[str, str]) -> Run:
    """Runs commands in a folder with these files; passes are not looked after there."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv(VERIFY, raising=False)
    for name, text in files.items():
        Path(name).write_text(text)
    return lambda *arguments: invoke(*arguments)


def ending(run: Run) -> Run:
    """The same for commands that find no mistake of the user's."""

    def checked(*arguments: str) -> Any:
        done = run(*arguments)
        assert done.exit_code in (0, 1), done.output
        return done

    return checked
