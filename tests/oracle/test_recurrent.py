"""Recurrent layers against PyTorch's with the same weights: outputs, last states, and every gradient."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch

X = floats(1, 5, 4, 3, dtype=np.float32)
KINDS: list[tuple[Any, Any, dict[str, Any], dict[str, Any]]] = [
    (kind, getattr(torch.nn, kind.__name__), mine, theirs)
    for kind in (nn.LSTM, nn.GRU, nn.RNN)
    for mine, theirs in (
        ({}, {}),
        ({"num_layers": 2, "bidirectional": True}, {"num_layers": 2, "bidirectional": True}),
        ({"has_bias": False, "batch_first": True}, {"bias": False, "batch_first": True}),
    )
] + [(nn.RNN, torch.nn.RNN, {"nonlinearity": "relu"}, {"nonlinearity": "relu"})]


def with_weights_of(theirs: Any, mine: Any) -> Any:
    own = {p.name: p for p in mine.get_parameters()}
    assert sorted(own) == sorted(name for name, _ in theirs.named_parameters())
    for name, array in theirs.named_parameters():
        own[name].set_data(Tensor(array.detach().numpy().copy()))
    return mine


def flat(values: Any) -> list[Any]:
    return [v for value in values for v in flat(value)] if isinstance(values, tuple) else [values]


def compare(mine: Any, theirs: Any, inputs: Any, tensors: Any) -> None:
    """Outputs, and gradients of a weighted sum of them all in the inputs and weights."""
    expected = flat(theirs(*tensors))
    factors = [floats(50 + i, *e.shape, dtype=np.float32) for i, e in enumerate(expected)]
    sum((e * torch.tensor(f)).sum() for e, f in zip(expected, factors, strict=True)).backward()
    weights, held = list(mine.trainable_params()), [Tensor(f) for f in factors]

    def total(x: Any) -> Any:
        found = mine(x, *inputs[1:])
        values = [v for value in found for v in (value if isinstance(value, tuple) else (value,))]
        parts = [(v * f).sum() for v, f in zip(values, held, strict=True)]
        result = parts[0]
        for part in parts[1:]:
            result = result + part
        return result, values

    (_, found), (dx, grads) = ms.value_and_grad(total, 0, weights, has_aux=True)(inputs[0])
    for one, other in zip(found, expected, strict=True):
        near(one.asnumpy(), other.detach().numpy(), "result")
    near(dx.asnumpy(), tensors[0].grad.numpy(), "gradient of x")
    names = dict(theirs.named_parameters())
    for weight, gradient in zip(weights, grads, strict=True):
        near(gradient.asnumpy(), names[weight.name].grad.numpy(), weight.name)


@pytest.mark.parametrize(("kind", "judge", "mine", "theirs"), KINDS)
def test_layers(kind: Any, judge: Any, mine: Any, theirs: Any) -> None:
    torch.manual_seed(1)
    judged = judge(3, 6, **theirs)
    layer = with_weights_of(judged, kind(3, 6, **mine))
    compare(layer, judged, [Tensor(X)], [torch.tensor(X, requires_grad=True)])


def test_lengths_and_first_states() -> None:
    torch.manual_seed(1)
    judged = torch.nn.LSTM(3, 6, bidirectional=True)
    layer = with_weights_of(judged, nn.LSTM(3, 6, bidirectional=True))
    h, c = floats(2, 2, 4, 6, dtype=np.float32), floats(3, 2, 4, 6, dtype=np.float32)
    lengths = [5, 4, 2, 1]
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(X), lengths)
    expected, (last_h, last_c) = judged(packed, (torch.tensor(h), torch.tensor(c)))
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected)
    found, (mine_h, mine_c) = layer(Tensor(X), (Tensor(h), Tensor(c)), Tensor(np.array(lengths, np.int32)))
    near(found.asnumpy(), expected.detach().numpy(), "outputs")
    near(mine_h.asnumpy(), last_h.detach().numpy(), "h")
    near(mine_c.asnumpy(), last_c.detach().numpy(), "c")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_results_have_the_element_type_of_the_input(kind: Any) -> None:
    layer = kind(3, 6, batch_first=True)
    output, last = layer(Tensor(X.astype(np.float16)))
    lasts = last if isinstance(last, tuple) else (last,)
    assert [each.dtype for each in (output, *lasts)] == [ms.float16] * (1 + len(lasts))
    wide, _ = layer(Tensor(X.astype(np.float16).astype(np.float32)))
    near(output.asnumpy(), wide.asnumpy().astype(np.float16), kind.__name__)


def test_single_steps() -> None:
    h, c = floats(2, 4, 6, dtype=np.float32), floats(3, 4, 6, dtype=np.float32)
    for mine, theirs in ((nn.GRUCell, torch.nn.GRUCell), (nn.RNNCell, torch.nn.RNNCell)):
        judged = theirs(3, 6)
        cell = with_weights_of(judged, mine(3, 6))
        near(cell(Tensor(X[0]), Tensor(h)).asnumpy(), judged(torch.tensor(X[0]), torch.tensor(h)).detach().numpy())
    judged = torch.nn.LSTMCell(3, 6)
    found = with_weights_of(judged, nn.LSTMCell(3, 6))(Tensor(X[0]), (Tensor(h), Tensor(c)))
    for one, other in zip(found, judged(torch.tensor(X[0]), (torch.tensor(h), torch.tensor(c))), strict=True):
        near(one.asnumpy(), other.detach().numpy())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.LSTM(0, 6), "LSTM: input_size 0 must be at least 1"),
        (lambda: nn.GRU(3, 6, dropout=1.0), "GRU: dropout 1.0 must be at least 0 and below 1"),
        (lambda: nn.RNN(3, 6, nonlinearity="gelu"), "RNN: nonlinearity 'gelu' is neither 'tanh' nor 'relu'"),
        (lambda: nn.LSTM(3, 6, bidirectional=1), "LSTM: bidirectional must be True or False, not 1"),
    ],
)
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        make()
    assert raised.value.message == message
