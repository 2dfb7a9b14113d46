"""Copies of values that a stage's work on micro-batches makes: behind which work they leave, and which waits for them
or reads them again."""

from __future__ import annotations

from collections.abc import Iterator

from mspc.ir.graph import WORK, Graph, Node, Value
from mspc.ops.control.structural import MakeTuple, TupleGetItem
from mspc.ops.tensor.host_memory import AwaitHost, HostCopy, ToHost
from mspc.passes.lib.stage_programs import work_of
from mspc.passes.lib.timeline import Copied, Task, TaskCopies


def call_of(value: Value) -> Node | None:
    """The work on a micro-batch of which a value is a result; None of others."""
    made = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, TupleGetItem) else None
    return made if isinstance(made, Node) and WORK in made.attrs else None


class CopiedValues:
    """The copies of a stage's program, which are told of in the order of its nodes. tasks: what each has of them."""

    def __init__(self, graph: Graph) -> None:
        self.tasks: dict[Task, TaskCopies] = {}
        self._ahead = TaskCopies()
        """Of the next work, up to the node that was told of last."""
        self._copied: dict[Value, Copied] = {}
        self._back: dict[Value, Copied] = {}

    def copy(self, node: Node, seconds: float) -> bool:
        """A copy, one way; whether it is of what work on a micro-batch has made."""
        if isinstance(node.op, ToHost):
            call = call_of(node.inputs[0])
            if call is None:
                return False
            task = work_of(call)
            left = self.tasks.setdefault(task, TaskCopies()).left
            self._copied[node] = (*task[1:], len(left))
            left.append((self._copied[node], seconds))
            return True
        copied = self._copied.get(_left(node))
        if copied is None:
            return False
        self._back[node] = copied
        self._ahead.ahead.append((copied, seconds))
        return True

    def ahead(self, node: Node) -> None:
        """A node that is no copy: it waits for one, works, or does neither."""
        if isinstance(node.op, AwaitHost):
            copied = self._copied.get(_left(node))
            self._ahead.ahead += [] if copied is None else [(copied, 0.0)]
        elif WORK in node.attrs:
            own = self.tasks.setdefault(work_of(node), TaskCopies())
            own.ahead = self._ahead.ahead
            own.read = [self._back[value] for value in _read(node) if value in self._back]
            self._ahead = TaskCopies()


def _left(node: Node) -> Value:
    """The copy to the host that a node waits for or brings back."""
    value: Value = node
    while isinstance(value, Node) and isinstance(value.op, HostCopy) and not isinstance(value.op, ToHost):
        value = value.inputs[0]
    return value


def _read(node: Node) -> Iterator[Value]:
    """What a node reads, out of tuples and behind views."""
    values = [*node.inputs]
    while values:
        value = values.pop(0)
        yield value
        if isinstance(value, Node) and (value.op.is_view or isinstance(value.op, MakeTuple)):
            values += value.inputs
