"""MindSpore stores the strategies of operators in files; what scripts say of these is checked here."""

from __future__ import annotations

import os
from typing import Any

from mspc.api.context import set_auto_parallel_context
from mspc.api.errors import ApiKeyError


def set_op_strategy_config(mode: str = "SAVE", path: Any = "") -> None:
    """Name the file in which a compile stores the strategies of operators, or from which it takes them, as the entries
    operator_save_file and operator_load_file of `strategy_ckpt_config` do.

    Args:
        mode: "SAVE" or "LOAD". path: an absolute path that ends in ".json".

    Raises:
        KeyError: another mode, or a path that is not absolute or ends otherwise.
        ValueError: there is no such file to load.
    """
    if not isinstance(path, str | os.PathLike) or not os.path.isabs(path):
        raise ApiKeyError(f"set_op_strategy_config: path {path!r} is not absolute")
    if os.path.splitext(path)[1] != ".json":
        raise ApiKeyError(f"set_op_strategy_config: path {path!r} does not end in '.json'")
    if mode not in ("SAVE", "LOAD"):
        raise ApiKeyError(f"set_op_strategy_config: mode {mode!r} is neither 'SAVE' nor 'LOAD'")
    entry = "operator_save_file" if mode == "SAVE" else "operator_load_file"
    set_auto_parallel_context(strategy_ckpt_config={entry: os.fspath(path)})
