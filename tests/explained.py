"""The last line of an error on stderr, which names its code."""

from __future__ import annotations

import re


def message_of(stderr: str) -> str:
    """Return stderr without its last line, the command that explains the error."""
    assert re.search(r"(?m)^explain: mspc explain E\d{4}( E\d{4})*\n\Z", stderr), stderr
    return stderr[: stderr.rindex("explain: ")]
