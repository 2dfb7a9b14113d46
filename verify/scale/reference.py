"""What ranks are held to: one device that runs the network of small sizes on the global batch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from multiprocessing import get_all_start_methods, get_context
from multiprocessing.connection import Connection
from typing import Any, Protocol

import numpy as np

from mspc.engine.garbage import leaving_out_made
from mspc.ir.graph import Graph, Node
from mspc.ir.layout import Layout
from mspc.verify.difference import Noise
from mspc.verify.one_device import OneDevice
from mspc.verify.scale.execution import KindState, run_step
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.slices import Slices
from mspc.verify.scale.watch import Known, known_values

Array = Any
Inputs = Sequence[Mapping[str, Array]]
"""Of every step the global inputs, by name."""


class ReferenceRun(Protocol):
    """One device, or one in the place of every rank.

    graph: what it runs. fed: which slices of global inputs ranks have, by name, where their programs do not say it.
    """

    graph: Graph
    fed: Mapping[str, Layout]

    def result(self, step: int, number: int) -> Array | None:
        """A result of a step, None where there is none."""
        ...

    def stored(self, step: int, name: str) -> Array:
        """A parameter behind a step."""
        ...

    def of_ranks(self, slices: Slices, array: Array, layout: Layout | None) -> Array:
        """What the ranks of a kind hold of such a value, with leading dimensions."""
        ...

    def noise(self, step: int, key: Any) -> Noise:
        """How far rounding moves a value: ("result", number), or a parameter's name."""
        ...

    def known(self, step: int) -> Known:
        """The values of all nodes in a step. Raises NodeError."""
        ...


class OneDeviceReference:
    """One device, which computes in Float64. weights: first values."""

    def __init__(self, graph: Graph, weights: dict[str, Array], inputs: Inputs) -> None:
        self.graph, self.fed = graph, dict[str, Layout]()
        self._weights, self._inputs = weights, inputs
        self._device = OneDevice(graph, weights, [[list(step.values()) for step in inputs]], "")
        self._told: Connection | None = None
        """What one device in another process tells."""

    @contextmanager
    def beside(self) -> Generator[None]:
        """Compute what is expected in a process of its own meanwhile, where there can be one."""
        if "fork" not in get_all_start_methods():
            yield
            return
        context = get_context("fork")
        self._told, told = context.Pipe(duplex=False)
        process = context.Process(target=_run, args=(self._device, told), daemon=True)
        # Both share the memory of the programs for as long as nobody writes to it, as a search for garbage does.
        with leaving_out_made():
            process.start()
            told.close()
            try:
                yield
            finally:
                process.terminate()
                process.join()

    @cached_property
    def _expected(self) -> list[list[dict[Any, Array]]]:
        if self._told is None:
            return self._device.run()
        try:
            return self._told.recv()
        except EOFError:  # it has ended without a result, so that its failure shows here
            return self._device.run()

    @cached_property
    def _noise(self) -> Callable[[int, int, Any], Noise]:
        return self._device.noise(self._expected)

    def result(self, step: int, number: int) -> Array | None:
        return self._expected[step][0].get(("result", number))

    def stored(self, step: int, name: str) -> Array:
        return self._expected[step][0][name]

    def of_ranks(self, slices: Slices, array: Array, layout: Layout | None) -> Array:
        return slices.of(array, layout)

    def noise(self, step: int, key: Any) -> Noise:
        return self._noise(step, 0, key)

    def known(self, step: int) -> Known:
        values: dict[Node, dict[tuple[int, ...], Any]] = {}
        states = [self.state()]
        for number in range(step + 1):
            run_step(states, [self.fed_in(number)], number + 1, known_values(values) if number == step else None)
        return values

    def state(self) -> KindState:
        """What it stores at first, as a kind of one rank."""
        kind = RankKind((0,), self.graph, mesh=(1,))
        held = {p.name: np.array(self._weights[p.name])[None] for p in self.graph.parameters if p.kind != "input"}
        return KindState(kind, held)

    def fed_in(self, step: int) -> dict[str, Array]:
        """The inputs of a step, as those of a kind of one rank."""
        return {name: array[None] for name, array in self._inputs[step].items()}


def _run(device: OneDevice, told: Connection) -> None:
    told.send(device.run())
