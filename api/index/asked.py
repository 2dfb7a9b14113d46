"""Objects of rows are made here as scripts get them: functions and classes of operators with their arguments
checked."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from mspc.api.index.functions import found
from mspc.api.index.table import IndexRow
from mspc.api.ops.checked import checked, checked_class


def object_of(row: IndexRow, name: str) -> Any:
    """The object of a row under one of its names. A method of tensors, `.name`, looks at its arguments itself, and so
    does what says how."""
    answer = found(row)
    if isinstance(answer, type):
        return _class(answer) if row.module == "ops" else answer
    if not (row.is_public and row.is_of_tensors and isinstance(answer, FunctionType)):
        return answer
    return answer if hasattr(answer, "check_arguments") else checked(f"{row.module}.{name.removeprefix('.')}", answer)


def _class(found: type) -> type:
    """A class; one written by hand, where no table says what it is made with, checks that before."""
    is_by_hand = "__init__" in vars(found) or found.__module__.startswith("mspc.api.ops.composite")
    return checked_class(found) if is_by_hand else found
