"""Losses of labels along a sequence and recurrent operators, against PyTorch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, mint, nn, ops
from mspc.ir.diagnostics import MspcError

torch = pytest.importorskip("torch")
F = torch.nn.functional

DRAWN = np.random.default_rng(0)
X = DRAWN.normal(size=(5, 3, 4)).astype(np.float32)
TARGETS = np.array([[1, 2, 2], [3, 1, 0], [1, 1, 2]], np.int32)
TIMES, LENGTHS = np.array([5, 4, 3], np.int32), np.array([3, 2, 3], np.int32)
"""The labels of the last sequence do not fit into its time."""


def theirs(x: np.ndarray, reduction: str, zero: bool, lengths: np.ndarray = LENGTHS) -> tuple[np.ndarray, np.ndarray]:
    """(loss, gradient of its sum)"""
    given = torch.tensor(x, requires_grad=True)
    numbers = [torch.tensor(value) for value in (TARGETS, TIMES, lengths)]
    loss = F.ctc_loss(torch.log_softmax(given, -1), *numbers, 0, reduction, zero)
    loss.sum().backward()
    return loss.detach().numpy(), given.grad.numpy()


@pytest.mark.parametrize(("reduction", "zero"), [("none", True), ("mean", True), ("sum", True), ("none", False)])
def test_ctc_loss(reduction: str, zero: bool) -> None:
    lengths = LENGTHS if zero else np.array([3, 0, 2], np.int32)
    rest = [Tensor(value) for value in (TARGETS, TIMES, lengths)]

    def loss(x: Any) -> Any:
        return ops.ctc_loss(ops.log_softmax(x, -1), *rest, 0, reduction, zero)[0]

    expected, slopes = theirs(X, reduction, zero, lengths)
    np.testing.assert_allclose(loss(Tensor(X)).asnumpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(ms.grad(loss)(Tensor(X)).asnumpy(), slopes, atol=1e-6)
    cell = nn.CTCLoss(0, reduction, zero)
    probable = ops.log_softmax(Tensor(X), -1)
    np.testing.assert_allclose(cell(probable, *rest).asnumpy(), expected, rtol=1e-5)
    flat = Tensor(np.concatenate([row[:length] for row, length in zip(TARGETS, lengths, strict=True)]))
    np.testing.assert_allclose(cell(probable, flat, *rest[1:]).asnumpy(), expected, rtol=1e-5)
    one = ops.ctc_loss(probable, rest[0], tuple(TIMES.tolist()), tuple(lengths.tolist()), 0, reduction, zero)[0]
    np.testing.assert_allclose(one.asnumpy(), expected, rtol=1e-5)


def test_what_does_not_fit_is_never() -> None:
    rest = [Tensor(value) for value in (TARGETS, TIMES, LENGTHS)]
    assert np.isinf(ops.ctc_loss(ops.log_softmax(Tensor(X), -1), *rest, 0, "none")[0].asnumpy()).tolist() == [0, 0, 1]
    alone = nn.CTCLoss(0)(ops.log_softmax(Tensor(X), -1)[:, 0], rest[0][0], rest[1][:1], rest[2][:1])
    assert alone.shape == ()
    np.testing.assert_allclose(alone.asnumpy(), theirs(X, "none", True)[0][0] / 3, rtol=1e-5)


def test_the_operator_takes_labels_by_their_places() -> None:
    """Its blank is the last class: the same with classes turned round."""
    turned = X[:, :, [1, 2, 3, 0]].copy()
    places = Tensor([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [2, 0], [2, 1], [2, 2]], ms.int64)
    labels = Tensor([0, 1, 1, 2, 0, 0, 0, 1], ms.int32)
    loss, slopes = ops.CTCLoss(ignore_longer_outputs_than_inputs=True)(Tensor(turned), places, labels, Tensor(TIMES))
    expected, gradient = theirs(X, "none", True)
    np.testing.assert_allclose(loss.asnumpy(), expected, rtol=1e-5)
    np.testing.assert_allclose(slopes.asnumpy(), gradient[:, :, [1, 2, 3, 0]], atol=1e-6)


def test_dynamic_rnn_is_an_lstm() -> None:
    """Its gates stand as input, memory, forget, output, those of PyTorch as input, forget, memory, output."""
    lstm = torch.nn.LSTM(4, 2)
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    rows = [0, 1, 4, 5, 2, 3, 6, 7]
    enter, own, bias, own_bias = (getattr(lstm, name).detach().numpy()[rows] for name in names)
    weight, state = np.concatenate([enter, own], 1).T.copy(), np.full((1, 3, 2), 0.3, np.float32)
    found = ops.DynamicRNN()(Tensor(X), Tensor(weight), Tensor(bias + own_bias), None, Tensor(state), Tensor(state))
    output, (_, memory) = lstm(torch.tensor(X), (torch.tensor(state), torch.tensor(state)))
    assert [each.shape for each in found] == [(5, 3, 2)] * 8
    np.testing.assert_allclose(found[0].asnumpy(), output.detach().numpy(), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found[2].asnumpy()[-1], memory.detach().numpy()[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose((found[6] * found[7]).asnumpy(), found[1].asnumpy(), rtol=1e-5)


@pytest.mark.parametrize("order", ["rzh", "zrh"])
def test_dynamic_gru_is_a_gru(order: str) -> None:
    gru = torch.nn.GRU(4, 2)
    rows = [0, 1, 2, 3, 4, 5] if order == "rzh" else [2, 3, 0, 1, 4, 5]
    names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    given = [Tensor(getattr(gru, name).detach().numpy()[rows].T.copy()) for name in names]
    state = np.full((3, 2), 0.3, np.float32)
    found = ops.DynamicGRUV2(gate_order=order)(Tensor(X), *given, None, Tensor(state))
    output, _ = gru(torch.tensor(X), torch.tensor(state[None]))
    np.testing.assert_allclose(found[0].asnumpy(), output.detach().numpy(), rtol=1e-5, atol=1e-6)
    fresh = (1 - found[2]) * found[4] + found[2] * mint.cat((Tensor(state[None]), found[1][:-1]))
    np.testing.assert_allclose(fresh.asnumpy(), found[1].asnumpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("call", "message"), [
    (lambda: ops.CTCLoss(True),
     "CTCLoss: preprocess_collapse_repeated=True and ctc_merge_repeated=False are not there"),
    (lambda: ops.DynamicRNN(cell_depth=2), "DynamicRNN: cell_depth must be 1, not 2"),
    (lambda: ops.DynamicGRUV2(gate_order="zhr"), "DynamicGRUV2: gate_order must be 'rzh' or 'zrh', not 'zhr'"),
    (lambda: ops.DynamicRNN()(*[Tensor(X)] * 6), "DynamicRNN: seq_length must be None"),
    (lambda: ops.CTCLossV2(7)(*map(Tensor, (X, TARGETS, TIMES, LENGTHS))),
     "CTCLossV2: blank 7 is none of the 4 classes"),
])  # fmt: skip
def test_mistakes(call: Any, message: str) -> None:
    with pytest.raises(MspcError) as caught:
        call()
    assert caught.value.message == message
