"""What `insert_redistribution` knows of the regions that it is in: which copies of values were there ahead of each, and
which are the same at every turn of a loop."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.graph import Node, Value
from mspc.ir.layout import Layout
from mspc.ops.control.borders import Border, Enter, Turn
from mspc.ops.control.loops import Loop

Copies = dict[Value, dict[Layout, Value]]
"""The layouts that values were brought to, and what has them there."""


class OpenRegion:
    """A region that is being read. begin: the border ahead of the first region of its node. made: what it has computed
    so far."""

    def __init__(self, begin: Node, border: Border, copies: Copies, gathered_again: Copies) -> None:
        self.begin, self.border = begin, border
        self.made: set[Value] = set()
        for value in border.changed:
            copies.pop(value, None)
            gathered_again.pop(value, None)
        self.before = _copied(copies), _copied(gathered_again)

    def restore(self, *now: Copies) -> None:
        """Forget what the region has brought to a layout for itself."""
        for copies, before in zip(now, self.before, strict=True):
            copies.clear()
            copies.update(before)

    def is_fixed(self, value: Value) -> bool:
        """Whether a value is the same at every turn of the loop that this region belongs to."""
        border = self.border
        if not isinstance(border.op, Loop) or value in self.made or value in (*border.changed, *border.varying):
            return False
        return not (
            isinstance(value, Node)
            and isinstance(value.op, Enter | Turn)
            and value.op.owner is self.border.owner
        )

    @staticmethod
    def outermost_loop(regions: Sequence[OpenRegion], value: Value) -> OpenRegion | None:
        """The outermost of the loops around, with no branch of a choice between, in which the value never changes."""
        found: OpenRegion | None = None
        for region in reversed(regions):
            if not region.is_fixed(value):
                break
            found = region
        return found

    def keep_outside(
        self, regions: Sequence[OpenRegion], is_ordinary: bool, value: Value, target: Layout, copy: Value
    ) -> None:
        """Remember a copy that was made ahead of this region, in it and in those inside of it."""
        at = list(regions).index(self)
        if at:
            regions[at - 1].made.add(copy)
        for region in regions[at:]:
            region.before[0 if is_ordinary else 1].setdefault(value, {})[target] = copy


def _copied(copies: Copies) -> Copies:
    return {value: dict(layouts) for value, layouts in copies.items()}
