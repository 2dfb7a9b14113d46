"""How operators and parameters say of which stages they are: their attribute STAGE is one number, or several."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from mspc.ir.graph import STAGE


def stages_of(attrs: Mapping[str, Any]) -> tuple[int, ...]:
    """The stages that the attributes of a node or parameter name, ascending; () where they name none."""
    given = attrs.get(STAGE, ())
    return (given,) if isinstance(given, int) else tuple(given)


def mark_stages(attrs: dict[str, Any], stages: Collection[int]) -> None:
    """Name these stages, in place of what was named."""
    attrs.pop(STAGE, None)
    if stages:
        found = sorted(stages)
        attrs[STAGE] = found[0] if len(found) == 1 else tuple(found)
