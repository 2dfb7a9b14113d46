"""Conditional nodes of CUDA graphs: what the GPU itself runs again while a condition holds, or runs one way or another.

They are asked for by the driver's own calls, which CuPy does not offer. A body is captured on a stream of its own: what
is captured inside of it goes to the next one.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ops.device import Launch

Decide = Callable[[np.uint64], None]
"""A launch that sets the value of a handle by `cudaGraphSetConditional`."""

_NODES, _CHOICES = 12040, 12080
"""Versions of the driver from which on there are such nodes, and such with a body for either way."""
_CONDITIONAL, _IF, _WHILE = 13, 0, 1
"""The driver's numbers for a kind of node, and for kinds of conditional nodes."""
_PARAMETERS = 32
"""Words of 8 bytes that the parameters of a node take."""
_SET, _RELAXED = 1, 2
"""The driver's numbers: dependencies are replaced; nobody's calls are refused while a body is captured."""

_Word = ctypes.c_uint64


def conditional_nodes(cuda: Any) -> ConditionalNodes | None:
    """None where the driver has no such nodes. cuda: CuPy's module of that name."""
    with contextlib.suppress(OSError, AttributeError):
        if cuda.runtime.driverGetVersion() >= _NODES:
            return ConditionalNodes(cuda)
    return None


class ConditionalNodes:
    """Of the graph that the current stream is captured into: its methods are called while it is.

    has_choices: whether there are nodes that run one of two bodies.

    Args:
        cuda: CuPy's module of that name.

    Raises:
        OSError, AttributeError: there is no driver, or it lacks the calls.
    """

    def __init__(self, cuda: Any) -> None:
        self._cuda = cuda
        driver = ctypes.CDLL("libcuda.so.1")
        self._context = driver.cuCtxGetCurrent
        self._information = driver.cuStreamGetCaptureInfo_v3
        self._make_handle = driver.cuGraphConditionalHandleCreate
        self._add_node = driver.cuGraphAddNode_v2
        self._go_on_behind = driver.cuStreamUpdateCaptureDependencies_v2
        self._begin = driver.cuStreamBeginCaptureToGraph
        self._end = driver.cuStreamEndCapture
        self.has_choices: bool = cuda.runtime.driverGetVersion() >= _CHOICES
        self._streams: list[Any] = []
        self._depth = 0

    def loop(self, decide: Decide, turn: Launch) -> None:
        """Turns while `decide`, ahead of each, sets something else than 0."""

        def body(handle: np.uint64) -> None:
            turn()
            decide(handle)

        self._node(_WHILE, decide, [body])

    def choice(self, decide: Decide, ways: Sequence[Launch]) -> None:
        """The first of two ways where `decide` sets something else than 0, else the second."""
        self._node(_IF, decide, [lambda _, way=way: way() for way in ways])

    def _node(self, kind: int, decide: Decide, bodies: Sequence[Callable[[np.uint64], None]]) -> None:
        stream = _Word(self._cuda.get_current_stream().ptr)
        context, handle, made = _Word(), _Word(), _Word()
        _check(self._context(ctypes.byref(context)))
        graph = self._captured(stream)[0]
        _check(self._make_handle(ctypes.byref(handle), graph, context, ctypes.c_uint(0), ctypes.c_uint(0)))
        decide(np.uint64(handle.value))
        size = len(bodies)
        parameters = (_Word * _PARAMETERS)(_CONDITIONAL, 0, handle.value, kind | size << 32, 0, context.value)
        _check(self._add_node(ctypes.byref(made), *self._captured(stream), ctypes.byref(parameters)))
        nothing = ctypes.c_void_p(None)
        _check(
            self._go_on_behind(stream, ctypes.byref(made), nothing, ctypes.c_size_t(1), ctypes.c_uint(_SET))
        )  # fmt: skip
        graphs = list((_Word * size).from_address(parameters[4]))
        for own, body in zip(graphs, bodies, strict=True):
            self._capture_into(_Word(own), body, np.uint64(handle.value))

    def _captured(self, stream: Any) -> tuple[Any, Any, Any, Any]:
        """The graph that a stream is captured into, and what the next node there depends on: addresses of nodes and of
        edges, and how many."""
        state, number, graph, nodes, edges, count = (_Word() for _ in range(6))
        given = [ctypes.byref(word) for word in (state, number, graph, nodes, edges, count)]
        _check(self._information(stream, *given))
        return graph, nodes, edges, count

    def _capture_into(self, graph: Any, body: Callable[[np.uint64], None], handle: np.uint64) -> None:
        if self._depth == len(self._streams):
            self._streams.append(self._cuda.Stream(non_blocking=True))
        stream = self._streams[self._depth]
        own, ended, nothing = _Word(stream.ptr), _Word(), ctypes.c_void_p(None)
        _check(self._begin(own, graph, nothing, nothing, ctypes.c_size_t(0), ctypes.c_int(_RELAXED)))
        self._depth += 1
        try:
            with stream:
                body(handle)
        except BaseException:
            self._end(own, ctypes.byref(ended))  # an abandoned capture would make all later work fail
            raise
        finally:
            self._depth -= 1
        _check(self._end(own, ctypes.byref(ended)))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"CUDA's driver makes no conditional node (error {status})")
