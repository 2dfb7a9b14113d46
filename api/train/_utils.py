"""This module has what scripts import from MindSpore's private `train._utils`."""

from __future__ import annotations

import os

from mspc.api._checkparam import check_value_type

__all__: tuple[str, ...] = ()


def _make_directory(path: str, arg_name: str = "path", is_directory: bool = True) -> str:
    """The real path of a folder, which is made where it is not there; that of a file with is_directory False.

    Raises:
        TypeError: it is no string, or an empty one; messages call it arg_name.
    """
    check_value_type(arg_name, path, (str,))
    if not path:
        raise TypeError(f"{arg_name} must not be empty")
    found = os.path.realpath(path)
    os.makedirs(found if is_directory else os.path.dirname(found), exist_ok=True)
    return found
