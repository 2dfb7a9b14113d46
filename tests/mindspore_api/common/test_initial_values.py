"""Uses that keep the values of tensors and parameters undrawn, and uses that change them.

Tensors outside compiled graphs.
"""

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, ParameterTuple, Tensor, mint, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import common
from mspc.mindspore_api.common.initializers import Initializer, Normal, XavierUniform
from mspc.mindspore_api.common.tensor import REPLICATED

initializer = common.initializer.initializer


class Orthogonal(Initializer):
    """Rows that are orthogonal: it needs the global matrix."""

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return np.linalg.qr(generator.standard_normal(shape))[0]


class EveryThird(Normal):
    """A subclass with a `draw` of its own."""

    def draw(self, generator: Any, shape: tuple[int, ...]) -> Any:
        return np.asarray(super().draw(generator, shape)) * (np.arange(shape[-1]) % 3 == 0)


def described(tensor: Tensor) -> Any:
    """The entry of `program.json`, None where there is none."""
    found = tensor.initial.description() if tensor.initial is not None else None
    return None if found is None else found.entry()


def normal() -> Tensor:
    return initializer(Normal(0.02), [8, 6], ms.float32)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Parameter(normal(), "w"),
        lambda: Parameter(normal().init_data(), "w"),
        lambda: Parameter(Tensor(shape=(8, 6), dtype=ms.float32, init=Normal(0.02)), "w"),
        lambda: Parameter(initializer(normal(), [8, 6]), "w"),
        lambda: Parameter(Parameter(normal()), "w"),
        lambda: Parameter(normal(), "w").clone(),
        lambda: ParameterTuple([Parameter(normal(), "w")]).clone("copy")[0],
        lambda: Parameter(Tensor(np.ones((8, 6), np.float32)), "w").set_data(normal()),
        lambda: Parameter(initializer("zeros", [8, 6]), "w").set_data(Parameter(normal(), "v")),
        lambda: nn.Dense(6, 8, weight_init=Normal(0.02)).weight,
        lambda: Parameter(normal().astype(ms.bfloat16).to(ms.bfloat16), "w"),
    ],
)
def test_what_an_initializer_makes_is_described(make: Any) -> None:
    ms.set_seed(2)
    parameter = make()
    entry = described(parameter)
    assert (entry["initializer"], entry["sigma"], entry["seed"]) == ("Normal", 0.02, 2)
    whole = parameter.asnumpy()
    assert described(parameter) == entry, "reading changes nothing"
    part = (slice(2, 4), slice(0, 3))
    np.testing.assert_array_equal(parameter.initial.fill(part), whole[part])


@pytest.mark.parametrize(
    "change",
    [
        lambda w: w.set_data(Tensor(np.ones((8, 6), np.float32))),
        lambda w: w.set_data(w + 1),
        lambda w: w.assign_value(w * 2),
        lambda w: w.__setitem__(0, 5),
        lambda w: ops.assign(w, Tensor(np.ones((8, 6), np.float32))),
        lambda w: ops.AssignAdd()(w, Tensor(np.ones((8, 6), np.float32))),
    ],
)
@pytest.mark.parametrize("read_before", [False, True])
def test_changed_values_are_the_scripts(change: Any, read_before: bool) -> None:
    w = Parameter(normal(), "w")
    before = Parameter(w).asnumpy()
    if read_before:
        w.asnumpy()
    change(w)
    assert w.initial is None
    assert (w.asnumpy() != before).any()
    assert (w.shape, w.dtype) == ((8, 6), ms.float32)


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16, ms.float64, ms.int32])
@pytest.mark.parametrize("init", ["normal", "ones", 0.1, Normal(3.0), XavierUniform()])
def test_element_types_are_cast_as_drawn_values_are(dtype: Any, init: Any) -> None:
    def tensor() -> Tensor:
        ms.set_seed(4)
        return initializer(init, [8, 6], ms.float32)

    whole = tensor().asnumpy()
    w = Parameter(tensor(), "w")
    w.set_dtype(dtype)
    assert w.dtype == dtype
    np.testing.assert_array_equal(w.asnumpy(), whole.astype(dtype.numpy))
    if dtype != ms.int32:
        taken = Parameter(Tensor(np.zeros((8, 6)), dtype), "w").set_data(tensor())
        assert taken.dtype == dtype
        np.testing.assert_array_equal(taken.asnumpy(), whole.astype(dtype.numpy))
        if init != 0.1:
            assert described(taken) is not None


def test_values_are_not_rounded_twice() -> None:
    halves = initializer("normal", [8, 6], ms.float16)
    w = Parameter(Tensor(np.zeros((8, 6)), ms.float32), "w").set_data(halves)
    assert described(w) is None
    np.testing.assert_array_equal(w.asnumpy(), halves.asnumpy().astype(np.float32))


def test_a_parameter_of_another_element_type_keeps_its_type() -> None:
    w = Parameter(initializer("normal", [8, 6]), "w")
    w.set_dtype(ms.float16)
    w.set_data(Tensor(np.ones((8, 6), np.float32)))
    assert (w.dtype, w.asnumpy().dtype) == (ms.float16, np.float16)


@pytest.mark.parametrize("init", [Orthogonal(), EveryThird(1.0), common.initializer.Constant(np.arange(6.0))])
def test_what_needs_the_whole_tensor_is_drawn_whole_and_cut(init: Any) -> None:
    w = Parameter(initializer(init, [8, 6]), "w")
    assert described(w) is None
    whole = w.asnumpy()
    part = (slice(2, 6), slice(3, 6))
    np.testing.assert_array_equal(w.initial.fill(part), whole[part])
    assert w.initial.fill(part).base is None
    if isinstance(init, EveryThird):
        assert not whole[:, 1].any()
        assert whole[:, 0].all()


def test_the_zero_row_of_an_embedding_is_described() -> None:
    ms.set_seed(1)
    table = nn.Embedding(10, 4, padding_idx=3).embedding_table
    assert table.has_init
    assert described(table)["zero_row"] == 3
    ms.set_seed(1)
    rows = nn.Embedding(10, 4).embedding_table.asnumpy()
    rows[3] = 0
    np.testing.assert_array_equal(table.asnumpy(), rows)
    np.testing.assert_array_equal(table.initial.fill((slice(2, 5), slice(0, 4))), rows[2:5])
    given = nn.Embedding(3, 2, embedding_table=Tensor(np.ones((3, 2), np.float32)), padding_idx=1).embedding_table
    assert given.asnumpy().tolist() == [[1, 1], [0, 0], [1, 1]]


@pytest.mark.parametrize(
    ("make", "value", "dtype"),
    [
        (lambda w: ops.zeros((8, 6), ms.float16), 0, ms.float16),
        (lambda w: ops.ones((8, 6), ms.int32), 1, ms.int32),
        (lambda w: ops.full((8, 6), 0.5), 0.5, ms.float32),
        (lambda w: ops.zeros_like(w), 0, ms.float32),
        (lambda w: ops.full_like(w, 3), 3, ms.float32),
        (lambda w: ops.ZerosLike()(w), 0, ms.float32),
        (lambda w: ops.OnesLike()(w), 1, ms.float32),
        (lambda w: ops.Ones()((8, 6), ms.bfloat16), 1, ms.bfloat16),
        (lambda w: mint.zeros((8, 6)), 0, ms.float32),
    ],
)
def test_tensors_of_one_number_are_not_made(make: Any, value: float, dtype: Any) -> None:
    ms.set_seed(3)
    w = Parameter(normal(), "w")
    state = Parameter(make(w), "state")
    assert w.has_init
    assert state.has_init
    assert (described(state), state.dtype) == ({"initializer": "Constant", "value": value}, dtype)
    assert (state.asnumpy() == value).all()
    after = normal().asnumpy()
    ms.set_seed(3)
    normal()
    np.testing.assert_array_equal(normal().asnumpy(), after, "the numbers of what follows do not depend on it")


def test_a_tensor_of_one_number_can_be_changed_and_refuses_what_does_not_fit() -> None:
    x = ops.zeros((3,))
    x[1] = 4
    assert x.asnumpy().tolist() == [0, 4, 0]
    with pytest.raises(MspcError, match="is no number of Int8"):
        ops.full((2,), 300, dtype=ms.int8)


def test_data_are_not_drawn_before_somebody_reads_them() -> None:
    assert normal().init_data().has_init


def test_attributes_describe_shape_and_size():
    x = Tensor(np.zeros((2, 3, 4), np.float32))
    assert (x.shape, x.ndim, x.size, x.itemsize, x.nbytes, len(x)) == ((2, 3, 4), 3, 24, 4, 96, 2)
    assert str(ms.float32) == "Float32"


def test_repr_shows_type_and_values():
    assert repr(Tensor([1.0, 2.5])) == "Tensor(shape=[2], dtype=Float32, value=[1. , 2.5])"
    assert str(Tensor(0.25)) == "0.25"
    assert f"{Tensor(0.25):.3f}" == "0.250"


@pytest.mark.parametrize(
    ("result", "dtype", "values"),
    [
        (lambda: Tensor([1, 2], ms.int32) + 1, ms.int32, [2, 3]),
        (lambda: Tensor([1, 2], ms.int32) + 1.5, ms.float32, [2.5, 3.5]),
        (lambda: 1 - Tensor([1.0, 2.0]), ms.float32, [0, -1]),
        (lambda: Tensor([1, 2], ms.int32) / 2, ms.float32, [0.5, 1]),
        (lambda: Tensor([1, 2], ms.int32) * Tensor([1.5, 2.0]), ms.float32, [1.5, 4]),
        (lambda: Tensor([1.0], ms.float16) + Tensor([1.0], ms.float32), ms.float32, [2]),
        (lambda: Tensor([3, 4], ms.int32) // 2, ms.int32, [1, 2]),
        (lambda: Tensor([1.0, 3.0]) > 2, ms.bool_, [False, True]),
        (lambda: Tensor([1.0, 3.0]) == Tensor([1.0, 2.0]), ms.bool_, [True, False]),
        (lambda: -Tensor([1.0]), ms.float32, [-1]),
        (lambda: Tensor([[1.0, 2.0]]) @ Tensor([[1.0], [2.0]]), ms.float32, [[5.0]]),
        (lambda: 2 ** Tensor([1.0, 3.0]), ms.float32, [2, 8]),
        (lambda: np.float64(2) * Tensor([1.5], ms.float32), ms.float32, [3]),
        (lambda: Tensor([True, False]) + 1, ms.int64, [2, 1]),
    ],
)
def test_arithmetic_promotes_as_mindspore(result, dtype, values):
    found = result()
    assert found.dtype == dtype
    assert found.array.tolist() == values


def test_reductions_keep_the_element_type():
    x = Tensor([1, 2], ms.float16)
    assert {x.sum().dtype, x.mean().dtype, x.std().dtype, x.prod().dtype} == {ms.float16}


def test_item_and_python_numbers():
    x = Tensor([[2.5]])
    assert (x.item(), float(x), int(Tensor(3)), bool(Tensor(0)), [1, 2, 3][Tensor(1)]) == (2.5, 2.5, 3, False, 2)


def test_what_is_computed_from_whole_tensors_alone_is_whole():
    whole, data = Tensor(np.ones((4, 2), np.float32)), Tensor(np.ones((4, 2), np.float32))
    whole.placement = REPLICATED
    weight = ms.Parameter(Tensor(np.ones((4, 2), np.float32)), "w")
    kept = [whole * 2, 1 - whole, -whole, whole + weight, whole.clip(0, 1), whole.T, whole.copy(), Tensor(whole)]
    kept += [abs(whole), ops.ReLU()(whole), ops.Add()(whole, weight), whole * Tensor(2.0), whole.astype(ms.float16)]
    assert [x.placement for x in kept] == [REPLICATED] * len(kept)
    lost = [whole + data, data * whole, whole * np.ones((4, 2)), whole[:2], whole[0], whole.sum(0)]
    lost += [ops.Add()(data, whole), Tensor(whole.asnumpy()), data * 2, *whole, *whole.split(2)]
    assert [x.placement for x in lost] == [None] * len(lost)
    assert ms.Parameter(whole, "v").placement == weight.placement != REPLICATED
