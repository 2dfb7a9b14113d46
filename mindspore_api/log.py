"""`mindspore.log`: messages of scripts on the error stream. `GLOG_v` is the lowest level shown: 0 debug, 1 info, 2
warning (the default), 3 error, 4 critical."""

from __future__ import annotations

import logging as logging  # scripts import it from here, as they may from MindSpore
import os
import sys
from typing import Any

from mspc.ir.text.limits import number_of

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
_DEFAULT = "2"


def get_level() -> str:
    """Return the number of the lowest level that is shown, as a string."""
    asked = number_of(os.environ.get("GLOG_v", _DEFAULT), len(LEVELS) - 1)
    return _DEFAULT if asked is None else str(asked)


def get_log_config() -> dict[str, str]:
    """Return the settings of the log: the level, by MindSpore's name. Messages go only to the error stream."""
    return {"GLOG_v": get_level()}


def debug(msg: Any, *args: Any) -> None:
    """Show `msg % args` if GLOG_v is 0."""
    _show(0, msg, args)


def info(msg: Any, *args: Any) -> None:
    """Show `msg % args` if GLOG_v is at most 1."""
    _show(1, msg, args)


def warning(msg: Any, *args: Any) -> None:
    """Show `msg % args` if GLOG_v is at most 2, the default."""
    _show(2, msg, args)


def error(msg: Any, *args: Any) -> None:
    """Show `msg % args` if GLOG_v is at most 3."""
    _show(3, msg, args)


def critical(msg: Any, *args: Any) -> None:
    """Show `msg % args`."""
    _show(4, msg, args)


def _show(level: int, msg: Any, args: tuple[Any, ...]) -> None:
    if level >= int(get_level()):
        print(f"[{LEVELS[level]}] {str(msg) % args if args else msg}", file=sys.stderr, flush=True)
