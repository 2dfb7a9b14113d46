"""Where mspc keeps what another start would have to make again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder(name: str) -> Path | None:
    """The folder for one kind of it, under `$XDG_CACHE_HOME/mspc` (`~/.cache/mspc`); None for a user without a home."""
    given, home = os.environ.get("XDG_CACHE_HOME", ""), os.path.expanduser("~/.cache")
    found = given if os.path.isabs(given) else home
    return Path(found) / "mspc" / name if os.path.isabs(found) else None
