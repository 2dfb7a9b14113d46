"""Names that public networks and scripts use, and that are a few operators here, or nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import mspc
from mspc import Tensor, nn
from mspc.dataset import vision
from mspc.ops import operations as P

DRAWS = np.random.default_rng(5)
IMAGES = DRAWS.random((2, 3, 9, 12)).astype(np.float32)
OTHERS = DRAWS.random((2, 3, 9, 12)).astype(np.float32)
ROWS = np.log(DRAWS.dirichlet(np.ones(5), 4)).astype(np.float32)
WEIGHTS = np.arange(1.0, 6.0, dtype=np.float32)
LABELS = np.array([1, 2, 0, 4], np.int32)


def in_graph(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a network that calls the function."""

    class Net(nn.Cell):
        def construct(self, *given):
            return function(*given)

    return Net()(*map(Tensor, arguments))


def test_operators_that_are_functions() -> None:
    x, y = np.array([1, 2], np.int32), np.array([3, 4, 5], np.int32)
    for indexing in ("xy", "ij"):
        found = in_graph(lambda a, b, way=indexing: P.Meshgrid(way)((a, b)), x, y)
        for one, other in zip(found, np.meshgrid(x, y, indexing=indexing), strict=True):
            np.testing.assert_array_equal(one.asnumpy(), other)
    loss, total = in_graph(lambda a, b, w: P.NLLLoss("sum", ignore_index=2)(a, b, w), ROWS, LABELS, WEIGHTS)
    kept = LABELS != 2
    wanted = WEIGHTS[LABELS] * kept
    np.testing.assert_allclose(loss.asnumpy(), -np.sum(ROWS[range(4), LABELS] * wanted), rtol=1e-5)
    assert total.asnumpy() == wanted.sum()
    found = in_graph(lambda a, b: P.BCEWithLogitsLoss("sum")(a, b, b, b), ROWS, np.full_like(ROWS, 0.5)).asnumpy()
    log = np.log1p(np.exp(-ROWS))
    np.testing.assert_allclose(found, np.sum(0.5 * (0.5 * 0.5 * log + 0.5 * (ROWS + log))), rtol=1e-5)
    found = in_graph(lambda a: P.ReverseSequence(1)(a, Tensor([1, 2, 3, 4])), ROWS).asnumpy()
    np.testing.assert_array_equal(found[2], ROWS[2, [2, 1, 0, 3, 4]])
    np.testing.assert_allclose(in_graph(lambda a: P.Einsum("ij,kj->ik")((a, a)), ROWS).asnumpy(), ROWS @ ROWS.T, 1e-5)
    np.testing.assert_array_equal(in_graph(lambda a: P.Diag()(a), WEIGHTS).asnumpy(), np.diag(WEIGHTS))
    np.testing.assert_array_equal(in_graph(lambda a: P.DiagPart()(a), ROWS[:, :4]).asnumpy(), np.diag(ROWS))
    found = in_graph(lambda a: P.Scatter()(a, 0, Tensor([[0, 0, 1, 1, 2]]), a[:1], 1), ROWS).asnumpy()
    wanted = ROWS.copy()
    wanted[[0, 0, 1, 1, 2], range(5)] += ROWS[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert P.ScalarToTensor()(3, mspc.int32).asnumpy() == 3
    assert P.ScalarToArray()(2.5).dtype == mspc.float32
    assert P.ScalarCast()(3.7, mspc.int32) == 3


def test_drawn_numbers() -> None:
    drawn = P.StandardNormal(seed=2)((4000,)).asnumpy()
    assert abs(drawn.mean()) < 0.06
    assert abs(drawn.std() - 1) < 0.05
    numbers, counts = np.unique(P.UniformInt(seed=2)((3000,), 2, 5).asnumpy(), return_counts=True)
    assert numbers.tolist() == [2, 3, 4]
    assert counts.min() > 900


def test_cells_of_gates_that_scripts_write() -> None:
    from mspc.nn.layer.rnn_cells import RNNCellBase

    cell = RNNCellBase(4, 5, True, num_chunks=3)
    assert [(p.name, p.shape) for p in cell.get_parameters()] == [
        ("weight_ih", (15, 4)), ("weight_hh", (15, 5)), ("bias_ih", (15,)), ("bias_hh", (15,))
    ]  # fmt: skip


def test_a_part_of_a_file_is_decoded() -> None:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray((IMAGES[0].transpose(1, 2, 0) * 255).astype(np.uint8)).save(file, "PNG")
    raw = np.frombuffer(file.getvalue(), np.uint8)
    whole = vision.RandomCropDecodeResize((9, 12), (1.0, 1.0), (12 / 9, 12 / 9))(raw)
    np.testing.assert_array_equal(whole, vision.Decode()(raw))
