"""Files in which MindSpore keeps the strategies of operators: what scripts say of them is checked."""

from __future__ import annotations

import os
from typing import Any

from mspc.api.errors import ApiKeyError
from mspc.api.setting import say_once


def set_op_strategy_config(mode: str = "SAVE", path: Any = "") -> None:
    """Name the file that keeps the strategies of operators.

    Strategies are found anew at every compile, the same ones for the same network, and a file would change nothing:
    that is said once.

    Args:
        mode: "SAVE" or "LOAD". path: an absolute path that ends in ".json".

    Raises:
        KeyError: another mode, or a path that is not absolute or ends otherwise.
    """
    if not isinstance(path, str | os.PathLike) or not os.path.isabs(path):
        raise ApiKeyError(f"set_op_strategy_config: path {path!r} is not absolute")
    if os.path.splitext(path)[1] != ".json":
        raise ApiKeyError(f"set_op_strategy_config: path {path!r} does not end in '.json'")
    if mode not in ("SAVE", "LOAD"):
        raise ApiKeyError(f"set_op_strategy_config: mode {mode!r} is neither 'SAVE' nor 'LOAD'")
    reason = "strategies of operators are neither written to files nor read from them yet"
    say_once("set_op_strategy_config", f"set_op_strategy_config changes nothing: {reason}")
