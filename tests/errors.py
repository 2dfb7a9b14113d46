"""Errors that calls raise, for tests of their messages."""

import re
from collections.abc import Callable
from typing import Any

import pytest

from mspc.ir.diagnostics import ExecutionError, MspcError


def error_of(call: Callable[..., Any], /, *args: Any, **named: Any) -> MspcError:
    """Return the error by which a call is refused."""
    with pytest.raises(MspcError) as raised:
        call(*args, **named)
    return raised.value


def failure_of(call: Callable[..., Any], /, *args: Any, **named: Any) -> ExecutionError:
    """Return the error by which a call fails while it runs."""
    with pytest.raises(ExecutionError) as raised:
        call(*args, **named)
    return raised.value


def message_of(stderr: str) -> str:
    """Return stderr without its last line, the command that explains the error."""
    assert re.search(r"(?m)^explain: mspc explain E\d{4}( E\d{4})*\n\Z", stderr), stderr
    return stderr[: stderr.rindex("explain: ")]
