"""What a step puts on the streams of a GPU, and on which."""

from __future__ import annotations

from dataclasses import replace

from mspc.ir.graph import Node
from mspc.ir.late_dataclass import dataclass
from mspc.ops.device import Launch
from mspc.runtime.gpu.launches import asks
from mspc.runtime.memory import MESSAGES, side_stream
from mspc.runtime.profile import HOST_STREAMS


@dataclass(frozen=True)
class StepWork:
    """A node's place in a step. index: in the graph; -1 for the runtime's own work. waits: work on the other stream
    that must be over. signals: whether others wait for this. plain: it runs through CuPy, not by a launch of its own.
    awaits: it ends once this work has its multiprocessors; -1: it does not. ahead: whether nodes that run again, on all
    ranks, need it ahead of them.
    """

    index: int
    stream: str
    launch: Launch
    waits: tuple[int, ...] = ()
    signals: bool = False
    plain: bool = False
    awaits: int = -1
    ahead: bool = False


def stream_of(node: Node, one_stream: bool) -> str:
    """The stream of a node; one_stream: only copies to the host and back have others than the main one."""
    stream = side_stream(node) or "compute"
    return "compute" if stream == MESSAGES or (one_stream and stream not in HOST_STREAMS) else stream


def copying_in_between(works: list[StepWork]) -> list[StepWork]:
    """Work with copies to the host and back on the compute stream, if it asks the host: what is captured in parts then
    has no other streams."""
    found = any(asks(work.launch) for work in works)
    moved = {place for place, work in enumerate(works) if found and work.stream in HOST_STREAMS}
    return [
        replace(work, stream="compute" if place in moved else work.stream, signals=work.signals and place not in moved,
                waits=tuple(other for other in work.waits if other not in moved)) for place, work in enumerate(works)
    ]  # fmt: skip
