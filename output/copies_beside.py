"""Copies of states to the host and back run beside a stage's program, each way on a stream of its own: how long the
program waits for them."""

from __future__ import annotations

from mspc.ir.graph import FROM_HOST, TO_HOST, Node, Value


def is_copy(node: Node) -> bool:
    """Whether a node copies to the host or back, beside others."""
    return node.attrs.get("stream") in (TO_HOST, FROM_HOST)


class CopiesBeside:
    """The clocks of the streams of copies. now: seconds of the program up to the last work on a micro-batch."""

    def __init__(self) -> None:
        self._now = 0.0
        self._streams: dict[str, float] = {}
        self._over: dict[Value, float] = {}

    def copy(self, node: Node, seconds: float, behind: float) -> None:
        """A copy that may begin so many seconds behind the last work."""
        stream = str(node.attrs["stream"])
        begin = max(self._streams.get(stream, 0.0), self._now + behind)
        self._over[node] = self._streams[stream] = begin + seconds

    def waited(self, node: Node, behind: float) -> float:
        """Seconds that a node waits for copies which could begin so many behind the last work."""
        ready = max((self._over.get(value, 0.0) for value in node.inputs), default=0.0)
        if node.op.is_view and ready:
            self._over[node] = ready
            return 0.0
        return max(0.0, ready - self._now - behind)

    def worked(self, seconds: float) -> None:
        """So long behind the last work another one is over."""
        self._now += seconds

    @property
    def behind(self) -> float:
        """Seconds behind the last work until all copies are over."""
        return max(0.0, *(end - self._now for end in self._streams.values())) if self._streams else 0.0
