"""Nodes of CUDA graphs: kernels in place of memsets, conditional nodes; and the last writers of arrays.

cuBLASLt and cuDNN clear counters before many of their kernels by a memset of four bytes. As a node of a CUDA graph it
delays later nodes by 0.8 us more than a kernel that does the same, on an H200.
"""

from __future__ import annotations

import contextlib
import ctypes
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ops.cuda.text import address
from mspc.ops.device import Array, Launch

_MEMSET = 2
"""Node type of the CUDA driver."""
_LARGEST = 1 << 20
"""Maximum bytes that a kernel fills; a larger fill takes longer than its neighbours."""
_THREADS = 256


class _Memset(ctypes.Structure):
    """The driver's memset parameters: `width` elements of `size` bytes in each of `height` rows."""

    _fields_ = [  # as ctypes wants them
        ("target", ctypes.c_uint64), ("pitch", ctypes.c_size_t), ("value", ctypes.c_uint), ("size", ctypes.c_uint),
        ("width", ctypes.c_size_t), ("height", ctypes.c_size_t),
    ]  # fmt: skip


class _Launch(ctypes.Structure):
    """The driver's kernel parameters."""

    _fields_ = [  # as ctypes wants them
        ("function", ctypes.c_void_p), ("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3),
        ("shared", ctypes.c_uint), ("arguments", ctypes.c_void_p), ("extra", ctypes.c_void_p),
        ("kernel", ctypes.c_void_p), ("context", ctypes.c_void_p),
    ]  # fmt: skip


class Fills:
    """Replacement of memsets by kernels. kernel: loaded from fill.cu. Raise OSError or AttributeError if there is no
    driver, or it lacks the calls."""

    def __init__(self, kernel: Any) -> None:
        self._function = ctypes.c_void_p(kernel.load().kernel.ptr)
        driver = ctypes.CDLL("libcuda.so.1")
        self._nodes, self._kind = driver.cuGraphGetNodes, driver.cuGraphNodeGetType
        self._memset = driver.cuGraphMemsetNodeGetParams
        self._ahead, self._behind = driver.cuGraphNodeGetDependencies_v2, driver.cuGraphNodeGetDependentNodes_v2
        self._add, self._order = driver.cuGraphAddKernelNode_v2, driver.cuGraphAddDependencies_v2
        self._destroy = driver.cuGraphDestroyNode

    def replace(self, graph: int) -> int:
        """Replace memsets in a captured graph before it is instantiated. Return their number."""
        own, count = ctypes.c_void_p(graph), ctypes.c_size_t()
        _checked(self._nodes(own, None, ctypes.byref(count)))
        nodes = (ctypes.c_void_p * count.value)()
        _checked(self._nodes(own, nodes, ctypes.byref(count)))
        return sum(self._replaced(own, ctypes.c_void_p(node)) for node in nodes)

    def _replaced(self, graph: Any, node: Any) -> bool:
        kind, given = ctypes.c_int(), _Memset()
        _checked(self._kind(node, ctypes.byref(kind)))
        if kind.value != _MEMSET:
            return False
        _checked(self._memset(node, ctypes.byref(given)))
        if given.height != 1 or not 0 < given.width * given.size <= _LARGEST:
            return False
        ahead, behind = self._neighbours(self._ahead, node), self._neighbours(self._behind, node)
        if ahead is None or behind is None:
            return False
        made = ctypes.c_void_p()
        count, value, size = given.width, given.value, given.size
        if size == 1 and not (given.target | count) % 4:
            count, value, size = count // 4, (value & 255) * 0x01010101, 4
        arguments = ctypes.c_uint64(given.target), ctypes.c_uint64(count), ctypes.c_uint(value), ctypes.c_uint(size)
        places = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(each) for each in arguments))
        blocks = -(-count // _THREADS)
        launch = _Launch(self._function, (blocks, 1, 1), (min(_THREADS, count), 1, 1), 0, ctypes.addressof(places))
        size_of = ctypes.c_size_t
        _checked(self._add(ctypes.byref(made), graph, ahead, size_of(len(ahead)), ctypes.byref(launch)))
        for other in behind:
            _checked(self._order(graph, ctypes.byref(made), ctypes.byref(ctypes.c_void_p(other)), None, size_of(1)))
        _checked(self._destroy(node))
        return True

    def _neighbours(self, call: Any, node: Any) -> Any:
        """Return the predecessors or successors of a node; None if there are edges of other than the default kind."""
        count = ctypes.c_size_t()
        if call(node, None, None, ctypes.byref(count)):
            return None
        found = (ctypes.c_void_p * count.value)()
        return None if count.value and call(node, found, None, ctypes.byref(count)) else found


class Captured:
    """Instantiated graph: a call replays it on the stream on which it was captured. cuda: CuPy's module of that name.
    graph: its address, which this object owns from now on."""

    def __init__(self, cuda: Any, graph: int, stream: Any) -> None:
        runtime = cuda.runtime
        self._launch: Callable[[int, int], None] = runtime.graphLaunch
        try:
            self._graph: int = runtime.graphInstantiate(graph)
        finally:
            runtime.graphDestroy(graph)
        self._stream = stream
        weakref.finalize(self, runtime.graphExecDestroy, self._graph).atexit = False
        runtime.graphUpload(self._graph, stream.ptr)

    def __call__(self) -> None:
        self._launch(self._graph, self._stream.ptr)


def _checked(status: int, what: str = "does not change a graph") -> None:
    if status:
        raise RuntimeError(f"CUDA's driver {what} (error {status})")


_check_node = partial(_checked, what="makes no conditional node")


# Conditional nodes of CUDA graphs: a body that the GPU repeats while a condition holds, or one of two bodies that it
# selects.
#
# CuPy does not offer them, so that the driver is called directly. Every nesting level of bodies is captured on its own
# stream.


Decide = Callable[[np.uint64], None]
"""Launch that sets the value of a handle by `cudaGraphSetConditional`."""

_NODES, _CHOICES = 12040, 12080
"""Driver versions that support conditional nodes, and conditional nodes with two bodies."""
_CONDITIONAL, _IF, _WHILE = 13, 0, 1
"""The driver's numbers of the node type and of kinds of conditional nodes."""
_PARAMETERS = 32
"""Size of a node's parameters in words of 8 bytes."""
_SET, _RELAXED = 1, 2
"""The driver's numbers for: replace dependencies; refuse no calls while a body is captured."""

_Word = ctypes.c_uint64


def conditional_nodes(cuda: Any) -> ConditionalNodes | None:
    """Return the maker of conditional nodes, or None if the driver does not support them. cuda: CuPy's module of that
    name."""
    with contextlib.suppress(OSError, AttributeError):
        if cuda.runtime.driverGetVersion() >= _NODES:
            return ConditionalNodes(cuda)
    return None


class ConditionalNodes:
    """Maker of conditional nodes in the graph that the current stream is being captured into.

    has_choices: nodes with two bodies are supported. cuda: CuPy's module of that name. Raise OSError or AttributeError
    if there is no driver, or it lacks the calls.
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
        """Repeat `turn` while `decide`, before each iteration, sets a nonzero value."""

        def body(handle: np.uint64) -> None:
            turn()
            decide(handle)

        self._node(_WHILE, decide, [body])

    def choice(self, decide: Decide, ways: Sequence[Launch]) -> None:
        """Run the first of two bodies if `decide` sets a nonzero value, else the second."""
        self._node(_IF, decide, [lambda _, way=way: way() for way in ways])

    def _node(self, kind: int, decide: Decide, bodies: Sequence[Callable[[np.uint64], None]]) -> None:
        stream = _Word(self._cuda.get_current_stream().ptr)
        context, handle, made = _Word(), _Word(), _Word()
        _check_node(self._context(ctypes.byref(context)))
        graph = self._captured(stream)[0]
        _check_node(self._make_handle(ctypes.byref(handle), graph, context, ctypes.c_uint(0), ctypes.c_uint(0)))
        decide(np.uint64(handle.value))
        size = len(bodies)
        parameters = (_Word * _PARAMETERS)(_CONDITIONAL, 0, handle.value, kind | size << 32, 0, context.value)
        _check_node(self._add_node(ctypes.byref(made), *self._captured(stream), ctypes.byref(parameters)))
        nothing = ctypes.c_void_p(None)
        _check_node(self._go_on_behind(stream, ctypes.byref(made), nothing, ctypes.c_size_t(1), ctypes.c_uint(_SET)))
        graphs = list((_Word * size).from_address(parameters[4]))
        for own, body in zip(graphs, bodies, strict=True):
            self._capture_into(_Word(own), body, np.uint64(handle.value))

    def _captured(self, stream: Any) -> tuple[Any, Any, Any, Any]:
        """Return the graph that a stream is captured into, and the dependencies of its next node: addresses of nodes
        and of edges, and their number."""
        state, number, graph, nodes, edges, count = (_Word() for _ in range(6))
        given = [ctypes.byref(word) for word in (state, number, graph, nodes, edges, count)]
        _check_node(self._information(stream, *given))
        return graph, nodes, edges, count

    def _capture_into(self, graph: Any, body: Callable[[np.uint64], None], handle: np.uint64) -> None:
        if self._depth == len(self._streams):
            self._streams.append(self._cuda.Stream(non_blocking=True))
        stream = self._streams[self._depth]
        own, ended, nothing = _Word(stream.ptr), _Word(), ctypes.c_void_p(None)
        _check_node(self._begin(own, graph, nothing, nothing, ctypes.c_size_t(0), ctypes.c_int(_RELAXED)))
        self._depth += 1
        try:
            with stream:
                body(handle)
        except BaseException:
            self._end(own, ctypes.byref(ended))  # an open capture would make all later work fail
            raise
        finally:
            self._depth -= 1
        _check_node(self._end(own, ctypes.byref(ended)))


# Last writers of parameters on a GPU: values that a step derives from parameters stay valid until another writer.


class Writers:
    """Last writer of every array, by address. All writes to arrays of parameters are reported: steps by `begin`, others
    by `outside`."""

    def __init__(self) -> None:
        self._last: dict[int, Any] = {}
        self._latest: Any = None

    def outside(self, array: Array) -> None:
        """Report a write to the array outside a step."""
        self._last.pop(address(array), None)
        self._latest = None

    def begin(self, step: Any, written: Sequence[int], copied: Sequence[int]) -> bool:
        """Report the start of a run of `step`, which writes the arrays at the addresses `written`. Return whether
        another writer has written one of `copied`, a subset, since the step's previous run."""
        if self._latest is step:
            return False
        changed = any(self._last.get(array) is not step for array in copied)
        self._last.update(dict.fromkeys(written, step))
        self._latest = step
        return changed
