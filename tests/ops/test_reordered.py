"""Operators that say how they work on tensors in other orders do so: the same numbers, whatever the order."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ops.memory_order import DimensionPart, MemoryOrder
from mspc.ops.op import REGISTRY, Op, Sample
from tests.executors import NumPyBackend, World
from tests.graphs import MspcError, TensorType, element_types
from tests.passes.fusion.test_fuse_elementwise import operands_of

SAID = [kind for _, kind in sorted(REGISTRY.items()) if kind.samples and (
    kind.reordered is not Op.reordered or kind.reshapes
)]  # fmt: skip


def stored(array: Any, order: MemoryOrder) -> Any:
    """The elements of a value in an order."""
    sizes, places = in_parts(order)
    return array.reshape(sizes).transpose(places).reshape(order.stored)


def value(array: Any, order: MemoryOrder) -> Any:
    """The value whose elements lie in an order."""
    sizes, places = in_parts(order)
    turned = array.reshape([sizes[place] for place in places])
    return turned.transpose(np.argsort(places)).reshape(order.shape)


def in_parts(order: MemoryOrder) -> tuple[list[int], list[int]]:
    """The sizes of all parts in the order of the value, and where in these the stored dimensions are."""
    parts = [part for dim in range(order.rank) for part in order.of_dim(dim)]
    return [part.size for part in parts], [parts.index(part) for part in order.parts if part.dim >= 0]


def orders_of(shape: tuple[int, ...]) -> Iterator[MemoryOrder]:
    """Orders of a value: with its dimensions turned round, channels last, and with its parts apart."""
    rank = len(shape)
    yield MemoryOrder.of(shape, reversed(range(rank)))
    yield MemoryOrder.of(shape, (0, *range(2, rank), 1) if rank > 1 else (0,) * rank)
    halves = [d for d, n in enumerate(shape) if n % 2 == 0 and n > 2]
    for dim in halves[-2:]:
        parts = [DimensionPart(d, 0, n) for d, n in enumerate(shape) if d != dim]
        yield MemoryOrder((DimensionPart(dim, 1, shape[dim] // 2), *parts, DimensionPart(dim, 0, 2)), rank)


def tried(op: Op, sample: Sample) -> Iterator[tuple[list[TensorType], list[Any], list[MemoryOrder]]]:
    """Operands with one of them, or all of one shape, in another order."""
    types, operands = operands_of(sample)
    plain = [MemoryOrder.of(type.shape) for type in types]
    for index, type in enumerate(types):
        for order in orders_of(type.shape):
            if not order.is_plain:
                yield types, operands, [order if i == index else own for i, own in enumerate(plain)]
                alike = [order if t.shape == type.shape else own for t, own in zip(types, plain, strict=True)]
                yield types, operands, alike


def ran(op: Op, operands: Sequence[Any]) -> list[Any]:
    (found,) = World(1).run(lambda comm: op.kernel(NumPyBackend(comm))(*(x.copy() for x in operands)))
    return [np.array(each) for each in (found if isinstance(found, tuple) else (found,))]


@pytest.mark.parametrize("kind", SAID, ids=[kind.__name__ for kind in SAID])
def test_an_operator_computes_the_same_in_every_order(kind: type[Op]) -> None:
    for sample in kind.samples:
        op = kind(**sample.fields)
        for types, operands, orders in itertools.islice(tried(op, sample), 12):
            found = op.reordered(types, orders)
            if found is None:
                continue
            made = element_types(op.infer(*types))
            assert [order.shape for order in found.results] == [type.shape for type in made]
            given = [stored(x, order) for x, order in zip(operands, found.operands, strict=True)]
            expected = ran(op, operands)
            if found.op is None:
                results = given[:1]
            else:
                inner = found.op.infer(*(t.with_shape(x.shape) for t, x in zip(types, given, strict=True)))
                results = ran(found.op, given)
                assert [type.shape for type in element_types(inner)] == [each.shape for each in results]
            for order, a, b in zip(found.results, results, expected, strict=True):
                np.testing.assert_allclose(value(a, order), b, rtol=1e-6, atol=1e-9, err_msg=f"{op} {orders}")


@pytest.mark.parametrize("name", ["BroadcastTo", "Mul", "ReLU"])
def test_an_operator_makes_its_result_in_every_order(name: str) -> None:
    kind = REGISTRY[name]
    for sample in kind.samples:
        op, (types, operands) = kind(**sample.fields), operands_of(sample)
        (expected,) = ran(op, operands)
        for order in orders_of(expected.shape):
            found = op.made_in(order, types)
            if found is not None:
                given = [stored(x, own) for x, own in zip(operands, found.operands, strict=True)]
                np.testing.assert_array_equal(value(ran(found.op, given)[0], order), expected)


def test_a_mask_is_drawn_in_every_order() -> None:
    shape = (2, 6, 4, 5)
    mask = REGISTRY["Dropout"](keep_prob=0.5, Seed0=3).mask(shape)
    (drawn,) = ran(mask, [])
    for order in orders_of(shape):
        found = mask.made_in(order, ())
        assert found is not None
        np.testing.assert_array_equal(ran(found.op, [])[0], stored(drawn, order))


def test_orders_of_one_memory_are_alike() -> None:
    """Groups of channels, their views and back; the channels of tokens lie as those of images do."""
    image = MemoryOrder.of((2, 6, 4, 5), (0, 2, 3, 1))
    groups = image.view((2, 3, 40))
    assert groups is not None
    assert groups.stored == (2, 4, 5, 3, 2)
    again = groups.view((2, 6, 4, 5))
    assert again is not None
    assert again.memory == image.memory != MemoryOrder.of((2, 6, 4, 5)).memory
    tokens = image.view((2, 6, 20))
    assert tokens is not None
    assert tokens.transposed((0, 2, 1)).is_plain
    assert image.view((2, 4, 30)) is None
    assert groups.ones([2]).is_plain


def test_a_mistake_is_still_one() -> None:
    with pytest.raises(MspcError, match="data_format must be 'NCHW', not 'NCWH'"):
        REGISTRY["ResizeBilinear"](size=(2, 2), data_format="NCWH").infer(*operands_of(Sample(((1, 1, 2, 2),), {}))[0])
