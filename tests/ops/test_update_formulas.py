"""Operators of updates beside their formulas, element by element, at once and block by block."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ops.cpu.blocks import BLOCK
from mspc.ops.optim.optimizer import Adam, AdamWeightDecay, InplaceCopy, Update
from tests.graphs import FLOAT16, FLOAT32, INT32, REGISTRY, MspcError, TensorType, TupleType
from tests.ops.backend import BACKEND

SHAPES = ((), (7,), (3, 5), (2, BLOCK // 2 + 3))
"""The last is computed in blocks."""
Numbers = dict[str, Any]


def momentum(op: Any, n: Numbers) -> Numbers:
    gradient = op.gradient_scale * n["gradient"]
    moved = n["momentum"] * n["accumulation"] + gradient
    step = gradient + n["momentum"] * moved if op.use_nesterov else moved
    return {"variable": n["variable"] - n["learning_rate"] * step, "accumulation": moved}


def descent(op: Any, n: Numbers) -> Numbers:
    """The state `stat` is 1 before the first step, which dampening does not touch."""
    gradient = n["gradient"] + op.weight_decay * n["parameters"]
    if n["momentum"] == 0:
        return {"parameters": n["parameters"] - n["learning_rate"] * gradient}
    later = n["momentum"] * n["accum"] + (1 - op.dampening) * gradient
    moved = np.where(n["stat"] > 0, gradient, later)
    step = gradient + n["momentum"] * moved if op.nesterov else moved
    return {"parameters": n["parameters"] - n["learning_rate"] * step, "accum": moved, "stat": 0 * n["stat"]}


def moments(n: Numbers) -> tuple[Any, Any]:
    first = n["beta1"] * n["m"] + (1 - n["beta1"]) * n["gradient"]
    return first, n["beta2"] * n["v"] + (1 - n["beta2"]) * n["gradient"] ** 2


def adam(op: Any, n: Numbers) -> Numbers:
    m, v = moments(n)
    step = n["beta1"] * m + (1 - n["beta1"]) * n["gradient"] if op.use_nesterov else m
    rate = n["lr"] * math.sqrt(1 - n["beta2_power"]) / (1 - n["beta1_power"])
    return {"var": n["var"] - rate * step / (np.sqrt(v) + n["epsilon"]), "m": m, "v": v}


def decayed(op: Any, n: Numbers) -> Numbers:
    m, v = moments(n)
    step = m / (np.sqrt(v) + n["epsilon"]) + n["decay"] * n["var"]
    return {"var": n["var"] - n["lr"] * step, "m": m, "v": v}


CASES: list[tuple[str, Callable[[Any, Numbers], Numbers], Numbers]] = [
    ("Assign", lambda op, n: {"variable": n["value"]}, {}),
    ("AssignAdd", lambda op, n: {"variable": n["variable"] + n["value"]}, {}),
    ("AssignSub", lambda op, n: {"variable": n["variable"] - n["value"]}, {}),
    *[("ApplyMomentum", momentum, {"use_nesterov": nesterov, "gradient_scale": scale})
      for nesterov in (False, True) for scale in (1.0, 0.25)],
    *[("SGD", descent, {"nesterov": nesterov, "dampening": dampening, "weight_decay": decay})
      for nesterov, dampening, decay in
      ((False, 0.0, 0.0), (False, 0.3, 0.0), (False, 0.3, 0.1), (True, 0.0, 0.0), (True, 0.0, 0.1))],
    *[("Adam", adam, {"use_nesterov": nesterov}) for nesterov in (False, True)],
    ("AdamWeightDecay", decayed, {}),
]  # fmt: skip


class Counted:
    """A module like NumPy that is not NumPy, as CuPy is for kernels."""

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


class OtherArrays:
    xp: Any = Counted()
    comm: Any = None
    step = 0


@pytest.mark.parametrize("backend", [BACKEND, OtherArrays()], ids=["NumPy", "other arrays"])
@pytest.mark.parametrize("shape", SHAPES, ids=["one", "row", "matrix", "blocks"])
@pytest.mark.parametrize(("name", "formula", "fields"), CASES, ids=[f"{c[0]}{list(c[2].values())}" for c in CASES])
def test_an_update_is_its_formula(
    name: str, formula: Callable[[Any, Numbers], Numbers], fields: Numbers, shape: tuple[int, ...], backend: Any
) -> None:
    op: Any = REGISTRY[name](**fields)
    assert isinstance(op, Update)
    draw = np.random.default_rng(3)
    for some_momentum in (0.7, 0.0) if name == "SGD" else (0.7,):
        numbers: Numbers = {
            operand: np.asarray(draw.uniform(0.1, 0.9, () if index in op.scalars else shape))
            for index, operand in enumerate(op.operands)
        }
        if "stat" in numbers:
            numbers["stat"] = np.asarray(draw.integers(0, 2, shape), np.float64)
            numbers["momentum"] = np.asarray(some_momentum)
        expected = formula(op, {key: value.copy() for key, value in numbers.items()})
        before = {key: value.copy() for key, value in numbers.items()}
        given = op.kernel(backend)(*numbers.values())
        for operand, value in numbers.items():
            np.testing.assert_allclose(value, expected.get(operand, before[operand]), rtol=1e-12, err_msg=operand)
        results = given if op.outputs > 1 else (given,)
        assert len(results) == op.outputs
        for place, result in zip(op.mutates, results, strict=False):
            assert np.shares_memory(result, list(numbers.values())[place])


@pytest.mark.parametrize(("kinds", "result"), [
    ((FLOAT32, FLOAT32), (FLOAT32, FLOAT32, FLOAT32)), ((FLOAT16, FLOAT32), (FLOAT16, FLOAT32, FLOAT32)),
    ((FLOAT32, FLOAT16), (FLOAT32, FLOAT16, FLOAT16)),
])  # fmt: skip
def test_states_may_be_wider_or_narrower_than_their_parameter(kinds: Any, result: Any) -> None:
    parameter, state = (TensorType(kind, (4, 2)) for kind in kinds)
    scalar = TensorType(FLOAT32, ())
    found = AdamWeightDecay().infer(parameter, state, state, *[scalar] * 5, parameter)
    assert found == TupleType(tuple(TensorType(kind, (4, 2)) for kind in result))
    whole = TensorType(INT32, (4, 2))
    with pytest.raises(MspcError):
        AdamWeightDecay().infer(parameter, whole, whole, *[scalar] * 5, parameter)
    with pytest.raises(MspcError, match=r"input 2 \(v\) has shape \(2, 4\)"):
        Adam().infer(parameter, parameter, TensorType(kinds[0], (2, 4)), *[scalar] * 6, parameter)


@pytest.mark.parametrize(("source", "fits"), [
    ((4, 6), True), ((6,), True), ((4, 1), True), ((), True), ((1, 1), True),
    ((2, 6), False), ((4, 2), False), ((1, 4, 6), False), ((5,), False),
])  # fmt: skip
def test_what_is_copied_into_a_parameter_is_broadcast_to_it(source: tuple[int, ...], fits: bool) -> None:
    target = np.zeros((4, 6))
    types = TensorType(FLOAT32, (4, 6)), TensorType(FLOAT32, source)
    if not fits:
        with pytest.raises(MspcError, match="does not fit"):
            InplaceCopy().infer(*types)
        return
    assert InplaceCopy().infer(*types) == types[0]
    given = np.random.default_rng(1).uniform(size=source)
    assert InplaceCopy().run(BACKEND, target, given) is target
    np.testing.assert_array_equal(target, np.broadcast_to(given, (4, 6)))


@pytest.mark.parametrize("backend", [BACKEND, OtherArrays()], ids=["NumPy", "other arrays"])
@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(("operand", "place"), [(0, 0), (0, -1), (1, 0), (1, BLOCK - 1), (1, BLOCK), (1, -1), (2, 0)])
def test_one_number_anywhere_that_is_not_finite_is_found(backend: Any, number: float, operand: int, place: int) -> None:
    all_finite = REGISTRY["AllFinite"]().kernel(backend)
    operands = [np.zeros(size, np.float32) for size in (3, 2 * BLOCK + 5, 1)]
    assert bool(all_finite(*operands))
    operands[operand][place] = number
    assert not bool(all_finite(*operands))
