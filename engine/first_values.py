"""First values are drawn ahead, several tensors at the same time: random numbers are most of the time that a large
network's first step takes on a processor."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ops.cpu.threads import thread_count
from mspc.runtime.slices import slices_of

if TYPE_CHECKING:
    from concurrent.futures import Future

Array = Any

WORTH = 1 << 22
"""Elements of all tensors together from which threads pay: some 40 ms of one core."""
LEAST = 1 << 15
"""Elements of a tensor from which it is drawn ahead."""
MOST_BYTES = 1 << 30
"""Of tensors that are drawn and not taken yet; one alone may have more."""


class _Wanted(NamedTuple):
    key: int
    initial: Any
    slices: tuple[slice, ...] | None
    nbytes: int


class FirstValues:
    """The drawn first values of Parameters, which are taken in the order of `wanted`.

    Only what mspc's own initializers draw is drawn ahead, by the same numbers as in its turn. rank: whose slices.
    """

    def __init__(self, wanted: Iterable[tuple[Any, GraphParameter]], rank: int) -> None:
        self._waiting = deque(self._drawn(wanted, rank))
        self._begun: dict[int, tuple[Future[Array], int]] = {}
        self._nbytes = 0
        self._pool: Any = None
        threads = min(thread_count(), len(self._waiting))
        if threads < 2 or sum(each.nbytes for each in self._waiting) < 4 * WORTH:
            self._waiting.clear()
            return
        from concurrent.futures import ThreadPoolExecutor  # late: what is small needs none

        self._pool = ThreadPoolExecutor(threads, "mspc-first-values")
        self._begin()

    def take(self, parameter: Any) -> Array | None:
        """This rank's slice of a Parameter's first values; None where they are still to be made. Raises what drawing
        them raises."""
        found = self._begun.pop(id(parameter), None)
        if found is None:
            return None
        future, nbytes = found
        try:
            return future.result()
        finally:
            self._nbytes -= nbytes
            self._begin()

    def close(self) -> None:
        """Draw no more."""
        self._waiting.clear()
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def _drawn(self, wanted: Iterable[tuple[Any, GraphParameter]], rank: int) -> list[_Wanted]:
        found: dict[int, _Wanted] = {}
        for parameter, of_graph in wanted:
            initial = parameter.initial
            if initial is not None and of_graph.tensor_type.size >= LEAST and _is_random(initial):
                slices = slices_of(of_graph, rank)
                found.setdefault(
                    id(parameter), _Wanted(id(parameter), initial, slices, of_graph.tensor_type.nbytes)
                )
        return list(found.values())

    def _begin(self) -> None:
        while self._waiting and (not self._begun or self._nbytes + self._waiting[0].nbytes <= MOST_BYTES):
            each = self._waiting.popleft()
            self._begun[each.key] = self._pool.submit(each.initial.fill, each.slices), each.nbytes
            self._nbytes += each.nbytes


def _is_random(initial: Any) -> bool:
    try:
        described = initial.description()
    except MspcError:  # it is told in its turn
        return False
    return described is not None and described.distribution.random
