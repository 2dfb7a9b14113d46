"""Decides which values of a region are saved for its gradient, and which the gradient computes again.

Saved is what the gradient reads, but for
- views of other values, and in loops what is the same in every turn, since it comes from captured values alone;
- what stands in a cell that is marked (`Cell.recompute`), but for what reads a parameter that the region overwrites:
  others have written it by then;
- all of a loop whose turns, so many as are known, would save more than `MOST_SAVED` bytes: then every turn saves what
  it was given, and its gradient starts with the turn itself.

What stages of a pipeline hand on is saved in any case (`recompute`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from mspc.ir.graph import Constant, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.autodiff.recompute import handed_on, recomputed_values
from mspc.passes.autodiff.split_joint import Joint, read_from

MOST_SAVED = 2**30
"""Bytes that the turns of one loop may save for its gradient, where their number is known, before the values inside of
a turn are computed again."""


@dataclass(frozen=True, eq=False)
class Saving:
    """again: nodes of the region that the gradient computes again. note: what is saved and why, for people."""

    again: Collection[Value]
    note: str


def saving_of(
    joint: Joint,
    captured: Sequence[Value],
    by_turn: Sequence[Value] = (),
    next_turn: Mapping[Value, Value] | None = None,
    turns: int | None = None,
) -> Saving:
    """What is saved of a region.

    Args:
        captured, by_turn: parameters that the gradient gets from elsewhere; the latter are those of a loop that differ
        from turn to turn: what is scanned, and the number of the turn.
        next_turn: results that are carried, with the parameters that they are in the next turn.
        turns: of the loop whose body the region is, -1 where their number is not known; None where it is no loop's.
    """
    in_loop = turns is not None
    through = {*captured, *by_turn}
    marked, between_stages = recomputed_values(joint.graph), handed_on(joint.graph)
    again = _views(joint) | (_same_in_all_turns(joint, captured) if in_loop else set())
    again |= {node for node in joint.forward if node in marked and _repeats(joint, node)}
    again = _with_elements(joint, again) - between_stages
    saved = _bytes(read_from(joint, again), through, next_turn or {})
    unit = " a turn" if in_loop else ""
    reason = "what gradients read, but for what is marked to be recomputed" if marked else "what gradients read"
    if turns is not None and saved * turns > MOST_SAVED:
        everything = _with_elements(joint, {node for node in joint.forward if _repeats(joint, node)}) - between_stages
        fewer = _bytes(read_from(joint, everything), through, next_turn or {})
        if fewer < saved:
            limit = f"{turns} turns of {saved} bytes are more than {MOST_SAVED}"
            return Saving(everything, f"{fewer} bytes{unit}: what a turn is given, since {limit}")
    return Saving(again, f"{saved} bytes{unit}: {reason}")


def _bytes(read: Collection[Value], through: Collection[Value], next_turn: Mapping[Value, Value]) -> int:
    return sum(v.type.nbytes for v in read if v not in through and next_turn.get(v) not in read)


def _repeats(joint: Joint, node: Node) -> bool:
    """Whether a node may run again, in the gradient, and give the same."""
    if node.op.has_side_effect or node.op.mutates:
        return False
    return not any(value in joint.overwritten for value in node.inputs)


def _views(joint: Joint) -> set[Value]:
    """Views of one other value, and tuples."""
    return {
        node
        for node in joint.forward
        if _repeats(joint, node)
        and (isinstance(node.op, MakeTuple) or (node.op.is_view and len(node.inputs) == 1))
        and not isinstance(node.op, TupleGetItem)
    }


def _same_in_all_turns(joint: Joint, captured: Sequence[Value]) -> set[Value]:
    """What comes from captured values and constants alone, and is not drawn."""
    same: set[Value] = set(captured)
    found: set[Value] = set()
    for node in joint.forward:
        drawn = bool(node.regions) or (isinstance(node.op, Op) and node.op.draws)
        if _repeats(joint, node) and not drawn and all(isinstance(v, Constant) or v in same for v in node.inputs):
            same.add(node)
            found.add(node)
    return found


def _with_elements(joint: Joint, again: set[Value]) -> set[Value]:
    """An element of a tuple is taken again where the tuple is, and there alone."""
    found: set[Value] = set()
    for node in joint.forward:
        is_element = isinstance(node.op, TupleGetItem)
        if node.inputs[0] in found if is_element else node in again:
            found.add(node)
    return found
