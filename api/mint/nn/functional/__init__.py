"""Functions of `mint.nn.functional`; compiled as those of `mint`."""

from __future__ import annotations

import sys
from typing import Any

from mspc.api.members import Members

_members = Members(__name__)
__dir__ = _members.names


def __getattr__(name: str) -> Any:
    found = _members.find(name)
    if not callable(found):
        return found
    from mspc.api.ops.checked import checked

    function = checked(f"mint.nn.functional.{name}", found)
    setattr(sys.modules[__name__], name, function)
    return function
