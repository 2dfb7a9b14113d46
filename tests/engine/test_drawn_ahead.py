"""First values that are drawn ahead are those that are drawn in their turn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn
from mspc.api import call_handler
from mspc.api.common.initial_values import InitialValue
from mspc.engine import parameter_store
from mspc.engine.parameter_store import FirstValues
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType

SHAPE = (64, 8)


@pytest.fixture(autouse=True)
def small_tensors_are_drawn_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_store, "WORTH", 1)
    monkeypatch.setattr(parameter_store, "LEAST", 16)
    monkeypatch.setattr(parameter_store, "thread_count", lambda: 3)


def wanted(*inits: Any, layout: Layout | None = None) -> list[tuple[Any, GraphParameter]]:
    found: list[tuple[Any, GraphParameter]] = []
    for number, init in enumerate(inits):
        parameter = Parameter(ms.common.initializer.initializer(init, SHAPE, ms.float32), name=f"p{number}")
        of_graph = GraphParameter(f"p{number}", TensorType(FLOAT32, SHAPE), "parameter")
        if layout is not None:
            of_graph.type, of_graph.global_type = TensorType(FLOAT32, layout.local_shape(SHAPE)), of_graph.type
            of_graph.layout = layout
        found.append((parameter, of_graph))
    return found


def test_values_are_those_that_the_initializer_makes() -> None:
    entries = wanted("normal", "he_uniform", "xavier_uniform", "truncatedNormal", "uniform")
    ahead = FirstValues(entries, 0)
    for parameter, _ in entries:
        found = ahead.take(parameter)
        np.testing.assert_array_equal(found, parameter.initial.fill())
        assert ahead.take(parameter) is None
    ahead.close()


def test_a_rank_draws_its_slice() -> None:
    entries = wanted("normal", "normal", layout=Layout.of((4,), [(0,), ()]))
    ahead = FirstValues(entries, 3)
    for parameter, _ in entries:
        np.testing.assert_array_equal(ahead.take(parameter), parameter.initial.fill()[48:])
    ahead.close()


def test_what_costs_nothing_or_is_the_scripts_own_is_left() -> None:
    class Own(ms.common.initializer.Initializer):
        def _initialize(self, arr: Any) -> None:
            raise AssertionError

    entries = [*wanted("zeros", Own(), "normal", "normal"), (Parameter(Tensor(np.ones(SHAPE, np.float32))), None)]
    entries[-1] = (entries[-1][0], entries[0][1])
    ahead = FirstValues(entries, 0)
    assert [ahead.take(parameter) is None for parameter, _ in entries] == [True, True, False, False, True]
    ahead.close()


def test_no_more_than_a_limit_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    nbytes = 64 * 8 * 4
    monkeypatch.setattr(parameter_store, "MOST_BYTES", 2 * nbytes)
    drawn: list[int] = []
    fill = InitialValue.fill
    monkeypatch.setattr(InitialValue, "fill", lambda self, *slices: drawn.append(1) or fill(self, *slices))
    entries = wanted(*["normal"] * 5)
    ahead = FirstValues(entries, 0)
    for number, (parameter, _) in enumerate(entries):
        assert ahead.take(parameter) is not None
        assert len(drawn) <= min(5, number + 3)
    ahead.close()
    monkeypatch.setattr(parameter_store, "MOST_BYTES", 1)
    entries = wanted(*["normal"] * 3)
    ahead = FirstValues(entries, 0)
    assert all(ahead.take(parameter) is not None for parameter, _ in entries)
    ahead.close()


def test_errors_come_in_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = wanted("normal", "normal")
    ahead = FirstValues(entries, 0)
    ahead.close()
    fill = InitialValue.fill

    def refused(self: InitialValue, *slices: Any) -> Any:
        if self is entries[1][0].initial:
            raise MspcError("it is refused")
        return fill(self, *slices)

    monkeypatch.setattr(InitialValue, "fill", refused)
    ahead = FirstValues(entries, 0)
    assert ahead.take(entries[0][0]) is not None
    with pytest.raises(MspcError, match="it is refused"):
        ahead.take(entries[1][0])
    ahead.close()


def test_few_values_need_no_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameter_store, "WORTH", 1 << 20)
    entries = wanted("normal", "normal")
    assert FirstValues(entries, 0).take(entries[0][0]) is None


def test_a_network_begins_with_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    def outputs() -> Any:
        ms.set_seed(5)
        net = nn.SequentialCell(nn.Dense(8, 64), nn.ReLU(), nn.Dense(64, 64), nn.Dense(64, 4))
        found = net(Tensor(np.ones((2, 8), np.float32))).asnumpy()
        return [found, *(parameter.asnumpy() for parameter in net.get_parameters())]

    ahead = outputs()
    call_handler.install(None)
    monkeypatch.setattr(parameter_store, "WORTH", 1 << 30)
    for one, other in zip(ahead, outputs(), strict=True):
        np.testing.assert_array_equal(one, other)
