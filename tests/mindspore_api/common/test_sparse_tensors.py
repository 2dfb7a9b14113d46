"""Sparse tensors, held against the dense ones that they stand for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import COOTensor, CSRTensor, Tensor, nn, ops
from mspc.commands.run import run_script

PLACES = np.array([[2, 1], [0, 1], [1, 2], [0, 0], [2, 1]], np.int32)
NUMBERS = np.array([1, 2, 3, 4, 5], np.float32)
SHAPE = (4, 3)
DENSE = np.zeros(SHAPE, np.float32)
np.add.at(DENSE, tuple(PLACES.T), NUMBERS)
MATRIX = np.arange(6, dtype=np.float32).reshape(3, 2)


def coo(values: Any = NUMBERS) -> COOTensor:
    return COOTensor(Tensor(PLACES), Tensor(values) if isinstance(values, np.ndarray) else values, SHAPE)


def test_attributes() -> None:
    tensor = coo()
    assert (tensor.shape, tensor.ndim, tensor.size, tensor.itemsize, tensor.dtype) == (SHAPE, 2, 5, 4, ms.float32)
    shown = "COOTensor(shape=[4, 3], dtype=Float32, indices=Tensor(shape=[5, 2], dtype=Int32, value=[[2, 1],\n"
    assert repr(tensor).startswith(shown)
    assert [type(part) for part in tensor.to_tuple()] == [Tensor, Tensor, tuple]
    assert COOTensor(coo_tensor=tensor) is tensor
    rows = tensor.to_csr()
    assert rows.indptr.asnumpy().tolist() == [0, 2, 3, 5, 5]
    assert rows.indices.asnumpy().tolist() == [0, 1, 2, 1, 1]
    assert rows.astype(ms.float16).dtype == ms.float16
    assert CSRTensor(csr_tensor=rows) is rows


def test_they_are_the_dense_tensors() -> None:
    tensor = coo()
    assert np.array_equal(tensor.to_dense().asnumpy(), DENSE)
    rows = tensor.to_csr()
    assert np.array_equal(rows.to_dense().asnumpy(), DENSE)
    assert np.array_equal(ops.csr_to_dense(rows).asnumpy(), DENSE)
    assert np.array_equal(ops.csr_to_coo(rows).to_dense().asnumpy(), DENSE)
    negative = coo(-NUMBERS)
    assert np.array_equal(negative.abs().to_dense().asnumpy(), DENSE)
    assert np.array_equal(negative.to_csr().abs().to_dense().asnumpy(), DENSE)


def test_products() -> None:
    rows = coo().to_csr()
    column = Tensor(MATRIX[:, :1])
    assert np.allclose(rows.mm(Tensor(MATRIX)).asnumpy(), DENSE @ MATRIX)
    assert np.allclose(ops.csr_mm(rows, Tensor(MATRIX)).asnumpy(), DENSE @ MATRIX)
    assert np.allclose(rows.mv(column).asnumpy(), DENSE @ MATRIX[:, :1])
    assert np.allclose(ops.csr_mv(rows, column).asnumpy(), DENSE @ MATRIX[:, :1])


class Graph(nn.Cell):
    """A layer of a graph network."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(2, 2, weight_init="ones", has_bias=False)

    def construct(self, edges: Any, x: Any) -> Any:
        y = edges.mm(self.dense(x))
        places = edges.to_coo()
        return y, places, COOTensor(places.indices, edges.values * 2, edges.shape).to_dense(), edges.ndim


def test_networks_take_and_return_them() -> None:
    net = Graph()
    found, edges, doubled, dimensions = net(coo().to_csr(), Tensor(MATRIX))
    assert np.allclose(found.asnumpy(), DENSE @ MATRIX.sum(1, keepdims=True) * np.ones(2))
    assert isinstance(edges, COOTensor)
    assert np.array_equal(edges.to_dense().asnumpy(), DENSE)
    assert np.array_equal(doubled.asnumpy(), 2 * DENSE)
    assert dimensions == 2
    again = net(coo(3 * NUMBERS).to_csr(), Tensor(MATRIX))  # values are no constants of the graph
    assert np.allclose(again[0].asnumpy(), 3 * found.asnumpy())


def test_one_of_another_kind_is_another_graph() -> None:
    kind = ms.jit(lambda x: x.to_dense().sum() if hasattr(x, "to_dense") else x[1].sum() * 100)
    assert float(kind(coo()).asnumpy()) == 15
    assert float(kind(coo().to_tuple()).asnumpy()) == 1500


def test_gradients() -> None:
    out = np.arange(8, dtype=np.float32).reshape(4, 2)

    def loss(values: Any, matrix: Any) -> Any:
        return (COOTensor(Tensor(PLACES), values, SHAPE).to_csr().mm(matrix) * Tensor(out)).sum()

    of_values, of_matrix = ms.grad(loss, (0, 1))(Tensor(NUMBERS), Tensor(MATRIX))
    assert np.allclose(of_matrix.asnumpy(), DENSE.T @ out)
    assert np.allclose(of_values.asnumpy(), (out @ MATRIX.T)[tuple(PLACES.T)])


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: COOTensor(Tensor(PLACES), Tensor(NUMBERS), (3,)), ValueError,
     "COOTensor: indices of shape (5, 2) do not fit values of shape (5,) in a tensor of 1 dimensions"),
    (lambda: COOTensor(Tensor(PLACES), Tensor(NUMBERS)), TypeError,
     "COOTensor: shape must be a tuple of integers, not None"),
    (lambda: COOTensor(Tensor(PLACES * 1.0), Tensor(NUMBERS), SHAPE), TypeError,
     "COOTensor: indices must be of Int32 or Int64, not Float64"),
    (lambda: COOTensor(3, Tensor(NUMBERS), SHAPE), TypeError, "COOTensor: indices must be a Tensor, not 3"),
    (lambda: COOTensor(Tensor(PLACES), Tensor(DENSE), SHAPE), ValueError,
     "COOTensor: values must have 1 dimensions, not 2"),
    (lambda: CSRTensor(Tensor([0, 1]), Tensor([0]), Tensor([1.0]), (2, 2)), ValueError,
     "CSRTensor: indptr of shape (2,), indices of shape (1,) and values of shape (1,) do not fit a matrix of shape "
     "(2, 2)"),
    (lambda: coo() + coo(), TypeError, "COOTensor has no +: how many values the result holds depends on these"),
    (lambda: ms.jit(lambda x: x * x)(coo().to_csr()), TypeError, "CSRTensor has no *"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_mistakes(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert message in str(caught.value)


SHARDED = """
import numpy as np
import mindspore as ms
from mindspore import nn, CSRTensor, Tensor
from mindspore.communication import init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4, weight_init="ones", has_bias=False)
        self.dense.matmul.shard(((1, 2), (1, 2)))

    def construct(self, edges, x):
        return edges.mm(self.dense(x))


edges = CSRTensor(Tensor([0, 2, 3], ms.int32), Tensor([0, 1, 1], ms.int32), Tensor([1.0, 2.0, 3.0]), (2, 2))
print(Net()(edges, Tensor(np.arange(8).reshape(2, 4), ms.float32)).asnumpy().tolist())
"""


def test_on_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "sparse.py"
    script.write_text(SHARDED)
    run_script(script, 2, simulate=True)
    assert capsys.readouterr().out.splitlines() == [str([[50.0] * 4, [66.0] * 4])] * 2
