"""Conditional nodes as the driver is asked for them, of a driver that takes notes."""

import contextlib
import ctypes
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.runtime.gpu.graph_nodes import ConditionalNodes, conditional_nodes

CONTEXT, STEP = 77, 1000
"""The address of the context, and that of the stream that a step is captured on."""


class Driver:
    """Graphs are numbers; a node's body gets the next one. nodes: (graph, kind, handle, graphs of the bodies, what it
    depends on). captured: the graph of every stream that is captured."""

    def __init__(self) -> None:
        self.nodes: list[tuple[int, str, int, list[int], list[int]]] = []
        self.captured = {STEP: 1}
        self.behind: dict[int, Any] = {STEP: (ctypes.c_uint64 * 1)(500)}
        self.graphs, self.handles = 1, 0
        self.kept: list[Any] = []
        self.failing = ""

    def __getattr__(self, name: str) -> Any:
        call = getattr(type(self), f"call_{name}", None)
        if call is None:
            raise AttributeError(name)
        return lambda *given: 801 if self.failing == name else call(self, *given) or 0

    def call_cuCtxGetCurrent(self, context: Any) -> None:
        context._obj.value = CONTEXT

    def call_cuStreamGetCaptureInfo_v3(self, stream: Any, state: Any, number: Any, graph: Any, *found: Any) -> None:
        behind = self.behind[stream.value]
        state._obj.value, number._obj.value, graph._obj.value = 1, 3, self.captured[stream.value]
        for word, value in zip(found, (ctypes.addressof(behind), 0, len(behind)), strict=True):
            word._obj.value = value

    def call_cuGraphConditionalHandleCreate(
        self, handle: Any, graph: Any, context: Any, value: Any, flags: Any
    ) -> None:  # fmt: skip
        assert (context.value, value.value, flags.value) == (CONTEXT, 0, 0)
        assert graph.value in self.captured.values()
        self.handles += 1
        handle._obj.value = self.handles

    def call_cuGraphAddNode_v2(self, made: Any, graph: Any, behind: Any, edges: Any, count: Any, given: Any) -> None:
        words = list(given._obj)
        size = words[3] >> 32
        assert words[:2] == [13, 0]
        assert words[5] == CONTEXT
        assert not any(words[6:])
        self.kept.append((ctypes.c_uint64 * size)(*range(self.graphs + 1, self.graphs + 1 + size)))
        self.graphs += size
        given._obj[4] = ctypes.addressof(self.kept[-1])
        depends = list((ctypes.c_uint64 * count.value).from_address(behind.value)) if count.value else []
        kind = {0: "if", 1: "while"}[words[3] & 0xFFFFFFFF]
        self.nodes.append((graph.value, kind, words[2], list(self.kept[-1]), depends))
        made._obj.value = 500 + len(self.nodes)

    def call_cuStreamUpdateCaptureDependencies_v2(
        self, stream: Any, nodes: Any, edges: Any, count: Any, flags: Any
    ) -> None:  # fmt: skip
        assert (edges.value, count.value, flags.value) == (None, 1, 1)
        self.behind[stream.value] = (ctypes.c_uint64 * 1)(nodes._obj.value)

    def call_cuStreamBeginCaptureToGraph(
        self, stream: Any, graph: Any, nodes: Any, edges: Any, count: Any, mode: Any
    ) -> None:  # fmt: skip
        assert (nodes.value, edges.value, count.value, mode.value) == (None, None, 0, 2)
        assert stream.value not in self.captured
        self.captured[stream.value] = graph.value
        self.behind[stream.value] = (ctypes.c_uint64 * 0)()

    def call_cuStreamEndCapture(self, stream: Any, graph: Any) -> None:
        graph._obj.value = self.captured.pop(stream.value)


class Streams:
    """CuPy's streams: the current one, and others that become it for a while."""

    def __init__(self) -> None:
        self.current = [STEP]
        self.made = 0

    def get_current_stream(self) -> Any:
        return SimpleNamespace(ptr=self.current[-1])

    def Stream(self, non_blocking: bool) -> Any:  # CuPy's name
        assert non_blocking
        self.made += 1
        return Current(self, STEP + self.made)


class Current(contextlib.AbstractContextManager[None]):
    def __init__(self, streams: Streams, ptr: int) -> None:
        self.streams, self.ptr = streams, ptr

    def __enter__(self) -> None:
        self.streams.current.append(self.ptr)

    def __exit__(self, *_: object) -> None:
        self.streams.current.pop()


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    found = Driver()
    monkeypatch.setattr(ctypes, "CDLL", lambda _: found)
    yield found
    assert found.captured == {STEP: 1}, "a body is still captured"


def cuda(version: int) -> Any:
    streams = Streams()
    runtime = SimpleNamespace(driverGetVersion=lambda: version)
    return SimpleNamespace(runtime=runtime, get_current_stream=streams.get_current_stream, Stream=streams.Stream)


def test_nested_nodes_and_what_they_depend_on(driver: Driver) -> None:
    nodes = ConditionalNodes(cuda(12080))
    said: list[tuple[str, int, int]] = []

    def say(what: str, handle: Any = 0) -> None:
        said.append((what, int(handle), driver.captured[nodes._cuda.get_current_stream().ptr]))

    def turn() -> None:
        say("turn")
        nodes.choice(lambda handle: say("chooses", handle), [lambda: say("one"), lambda: say("other")])

    nodes.loop(lambda handle: say("goes on", handle), turn)
    nodes.choice(lambda handle: say("chooses", handle), [lambda: say("one"), lambda: say("other")])
    assert said == [
        ("goes on", 1, 1), ("turn", 0, 2), ("chooses", 2, 2), ("one", 0, 3), ("other", 0, 4), ("goes on", 1, 2),
        ("chooses", 3, 1), ("one", 0, 5), ("other", 0, 6),
    ]  # fmt: skip
    assert driver.nodes == [(1, "while", 1, [2], [500]), (2, "if", 2, [3, 4], []), (1, "if", 3, [5, 6], [501])]


def test_a_body_that_fails_is_captured_no_more(driver: Driver) -> None:
    nodes = ConditionalNodes(cuda(13000))

    def fail() -> None:
        raise KeyError("it is broken")

    def turn() -> None:
        nodes.loop(lambda _: None, fail)

    for _ in range(2):
        with pytest.raises(KeyError, match="it is broken"):
            nodes.loop(lambda _: None, turn)
    driver.failing = "cuGraphAddNode_v2"
    with pytest.raises(RuntimeError, match=r"no conditional node \(error 801\)"):
        nodes.loop(lambda _: None, turn)
    driver.failing = ""
    nodes.loop(lambda handle: None if isinstance(handle, np.uint64) else fail(), lambda: None)
    assert driver.nodes[-1][1] == "while"


@pytest.mark.parametrize(("version", "loops", "choices"), [(12030, False, False), (12040, True, False),
                                                          (12080, True, True)])  # fmt: skip
def test_older_drivers(version: int, loops: bool, choices: bool, driver: Driver) -> None:
    found = conditional_nodes(cuda(version))
    assert (found is not None) == loops
    assert choices == (found is not None and found.has_choices)


def test_a_driver_that_lacks_the_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(cuCtxGetCurrent=None))
    assert conditional_nodes(cuda(13000)) is None
