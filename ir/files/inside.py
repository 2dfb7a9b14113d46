"""This module checks paths that data name. A script is trusted and may write where it likes; a compiled folder comes
from anywhere, and its files may name nothing but files of that folder, links resolved.
"""

from __future__ import annotations

import os
from pathlib import Path

from mspc.ir.diagnostics import MspcError

RULE = "a compiled folder may name files of its own only: no absolute paths, no '..', no links that lead out of it"


def inside(folder: Path, name: str, who: str) -> Path:
    """The path of the file in `folder` that `name` is for.

    who: what names it, the subject of the sentence.

    Raises:
        MspcError: the path leads out of the folder, or can be none.
    """
    check_name(name, who)
    path = folder / name
    try:
        if not leads_out(folder, path):
            return path
    except (OSError, ValueError):  # a loop of links, a name that no file has: nothing leads anywhere
        raise MspcError(f"{who} names {name!r}, which can be no file") from None
    raise MspcError(f"{who} names {name!r}, which a link leads out of {folder}", notes=[RULE])


def check_name(name: str, who: str) -> None:
    """Whether `name` says of itself that it leads out of a folder; links are not looked at.

    Raises:
        MspcError: it does, or no file can have it.
    """
    path = Path(name)
    if not path.parts or "\0" in name:
        raise MspcError(f"{who} names {name!r}, which can be no file")
    if path.is_absolute() or ".." in path.parts:
        raise MspcError(f"{who} names {name!r}, a path out of its folder", notes=[RULE])


def leads_out(folder: Path, path: Path) -> bool:
    """Whether `path` lies outside of `folder` once links are resolved. Raises OSError or ValueError for what can be no
    path."""
    root = os.path.realpath(folder)
    return os.path.commonpath([root, os.path.realpath(path)]) != root
