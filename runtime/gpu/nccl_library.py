"""This module wraps CuPy's bindings of NCCL: its numbers, calls that belong together, and errors in words."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.comm.interface import Ranks

TYPES = {"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5, "float16": 6, "float32": 7,
          "float64": 8, "bfloat16": 9}  # fmt: skip
"""NCCL's numbers of the element types that it combines."""
OPS = {"sum": 0, "prod": 1, "max": 2, "min": 3}
_BOOL_OPS = {"sum": "max", "max": "max", "prod": "min", "min": "min"}
"""Booleans are bytes 0 and 1: their sum is "or", their product "and"."""
BYTE = 1
IN_PROGRESS, _ERRORS = 7, {6: "another rank has gone, or the way to it is broken"}
"""States that CuPy has no name for."""


class Calls:
    """NCCL calls that belong together, with errors that name the group."""

    def __init__(self, library: Any, ranks: Ranks) -> None:
        self._nccl = library
        self._ranks = ranks

    def __enter__(self) -> None:
        if self._nccl is not None:
            self._nccl.groupStart()

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if self._nccl is not None:
                self._nccl.groupEnd()
        except Exception as ended:
            error = error or ended
        if isinstance(error, Exception) and not isinstance(error, ExecutionError):
            raise ExecutionError(f"NCCL fails between {shown(self._ranks)}: {text_of(error)}") from error


def load_nccl(xp: Any) -> Any:
    """CuPy's module for NCCL.

    Raises:
        ExecutionError: this CuPy has none, or finds no library.
    """
    try:
        found = importlib.import_module(f"{xp.__name__}.cuda.nccl")
    except ImportError as error:
        raise ExecutionError(f"CuPy cannot load NCCL: {error}") from error
    if not getattr(found, "available", True):
        raise ExecutionError("CuPy finds no NCCL library")
    return found


def combining(dtype: Any, op: str) -> tuple[int, int]:
    """NCCL's numbers for an element type and how it is combined."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return BYTE, OPS[_BOOL_OPS[op]]
    return TYPES[dtype.name], OPS[op]


def status_of(error: Exception) -> int:
    """NCCL's number for an error; for those that CuPy has no name for it raises a KeyError with the number."""
    if isinstance(error, KeyError) and error.args and isinstance(error.args[0], int):
        return error.args[0]
    return int(getattr(error, "status", -1))


def text_of(error: Exception) -> str:
    status = status_of(error)
    if isinstance(error, KeyError):
        return _ERRORS.get(status, f"error {status}")
    return str(error) or type(error).__name__


def shown(ranks: Ranks) -> str:
    listed = ", ".join(map(str, ranks[:16])) + (", ..." if len(ranks) > 16 else "")
    return f"rank{'s' * (len(ranks) > 1)} {listed}"
