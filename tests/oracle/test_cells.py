"""Cells against PyTorch's, values and gradients; every public cell has a judge, here or in a file that
tests/omissions.toml names, or a reason there why it has none."""

from functools import reduce
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc
import mspc as ms
from mspc import Tensor, mint, nn
from mspc.nn.layer.basic import DropoutExt

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch  # noqa: E402  # it imports PyTorch
from tests.oracle.step_cases import cases  # noqa: E402
from tests.test_omissions import excepted  # noqa: E402

F = torch.nn.functional
SMALL = floats(3, 4, 5, dtype=np.float32)
X = [floats(1, 3, 4, 6)]
IMAGES = [floats(2, 2, 3, 4, 5)]
NARROW = [floats(2, 2, 3, 4, 5, dtype=np.float32)]
PAIR = [floats(3, 4, 5), floats(4, 4, 5)]
SHARES = [floats(5, 4, 5, low=0.05, high=0.95), floats(6, 4, 5, low=0.05, high=0.95)]
ROWS = np.array([[0, 2], [4, 2]], np.int32)
CLASSES = [floats(7, 4, 5), np.array([0, 4, 2, 2], np.int64)]
WEIGHT, BIAS, TABLE = (floats(8, *shape, dtype=np.float32) for shape in ((3, 6), (3,), (5, 3)))


def tanh_gelu(x: Any) -> Any:
    return F.gelu(x, approximate="tanh")


JUDGED: dict[str, tuple[tuple[Any, ...], Any, list[np.ndarray]]] = {
    "nn.ELU mint.nn.ELU": ((), F.elu, X),
    "nn.FastGelu": ((), lambda x: x * torch.sigmoid(1.702 * x), X),
    "nn.Flatten": ((), lambda x: x.flatten(1), IMAGES),
    "nn.GELU": ((), tanh_gelu, X),
    "mint.nn.GELU": ((), F.gelu, X),
    "nn.GLU": ((), F.glu, X),
    "nn.HSigmoid mint.nn.Hardsigmoid": ((), F.hardsigmoid, X),
    "nn.HSwish mint.nn.Hardswish": ((), F.hardswish, X),
    "nn.Hardtanh": ((-0.5, 2.0), lambda x: F.hardtanh(x, -0.5, 2.0), X),
    "nn.MatMul": ((False, True), lambda x, y: x @ y.mT, PAIR),
    "nn.Norm": ((1,), lambda x: x.norm(dim=1), X),
    "nn.Tril": ((), torch.tril, X),
    "nn.Triu": ((), torch.triu, X),
    "nn.Identity mint.nn.Identity": ((), lambda x: x * 1, X),
    "nn.LeakyReLU": ((0.3,), lambda x: F.leaky_relu(x, 0.3), X),
    "nn.LogSigmoid mint.nn.LogSigmoid": ((), F.logsigmoid, X),
    "nn.LogSoftmax": ((1,), lambda x: F.log_softmax(x, 1), X),
    "mint.nn.LogSoftmax": ((1,), lambda x: F.log_softmax(x, 1), X),
    "nn.Mish mint.nn.Mish": ((), F.mish, X),
    "nn.ReLU mint.nn.ReLU": ((), F.relu, X),
    "nn.ReLU6 mint.nn.ReLU6": ((), F.relu6, X),
    "nn.SeLU mint.nn.SELU": ((), F.selu, X),
    "nn.SiLU mint.nn.SiLU": ((), F.silu, X),
    "nn.Sigmoid mint.nn.Sigmoid": ((), torch.sigmoid, X),
    "nn.Softmax": ((1,), lambda x: F.softmax(x, 1), X),
    "mint.nn.Softmax": ((1,), lambda x: F.softmax(x, 1), X),
    "nn.Tanh mint.nn.Tanh": ((), torch.tanh, X),
    "nn.Threshold": ((0.1, -2.0), lambda x: F.threshold(x, 0.1, -2.0), X),
    "nn.PReLU": ((3, 0.3), lambda x: F.prelu(x, torch.full((3,), 0.3)), NARROW),
    "nn.L1Loss mint.nn.L1Loss": ((), F.l1_loss, PAIR),
    "nn.MSELoss mint.nn.MSELoss": ((), F.mse_loss, PAIR),
    "mint.nn.BCELoss": ((), lambda x, y: F.binary_cross_entropy(x, y.detach()), SHARES),
    "mint.nn.BCEWithLogitsLoss": ((), lambda x, y: F.binary_cross_entropy_with_logits(x, y), PAIR),
    "mint.nn.CrossEntropyLoss": ((), F.cross_entropy, CLASSES),
    "mint.nn.NLLLoss": ((), F.nll_loss, CLASSES),
}
"""Arguments of the cell, what PyTorch computes, and inputs, by the cells' names."""


@pytest.mark.parametrize("name", [name for names in JUDGED for name in names.split()])
def test_a_cell_is_pytorchs(name: str) -> None:
    arguments, theirs, inputs = next(entry for names, entry in JUDGED.items() if name in names.split())
    cell = reduce(getattr, name.split("."), mspc)(*arguments)
    judged = [0] if len(inputs) > 1 else None
    same(cell, theirs, inputs, grads=judged, tolerance=1e-6)


@pytest.mark.parametrize("layer", [nn.Dense(6, 3), mint.nn.Linear(6, 3)])
def test_a_dense_layer_is_pytorchs(layer: Any) -> None:
    layer.weight.set_data(Tensor(WEIGHT))
    layer.bias.set_data(Tensor(BIAS))
    x = floats(1, 3, 4, 6, dtype=np.float32)
    same(layer, lambda x: F.linear(x, torch.tensor(WEIGHT), torch.tensor(BIAS)), [x], tolerance=1e-6)


@pytest.mark.parametrize("layer", [nn.Embedding(5, 3), mint.nn.Embedding(5, 3)])
def test_an_embedding_is_pytorchs(layer: Any) -> None:
    (table,) = layer.trainable_params()
    table.set_data(Tensor(TABLE))
    same(layer, lambda rows: F.embedding(rows, torch.tensor(TABLE)), [ROWS], tolerance=1e-6)


def test_layers_of_mint_under_their_other_names() -> None:
    assert DropoutExt is mint.nn.Dropout
    assert not hasattr(nn, "NothingExt")


def test_embeddings_and_norms_of_mint() -> None:

    table = mint.nn.Embedding(4000, 8, padding_idx=-2)
    assert abs(table.weight.asnumpy().std() - 1) < 0.02
    assert not table.weight.asnumpy()[-2].any()
    assert not mint.nn.Embedding(4, 3, _weight=Tensor(SMALL[:, :3]), _freeze=True).weight.requires_grad
    rows = np.array([1, 0, 1, 3])
    given = mint.nn.Embedding(4, 5, padding_idx=1, _weight=Tensor(SMALL))
    np.testing.assert_array_equal(given(Tensor(rows)).asnumpy(), SMALL[rows])
    weight = torch.from_numpy(SMALL.copy()).requires_grad_()
    F.embedding(torch.from_numpy(rows), weight, 1).sum().backward()
    found = mspc.grad(lambda i: given(i).sum(), None, given.trainable_params())(Tensor(rows))
    np.testing.assert_array_equal((found[0] if isinstance(found, tuple) else found).asnumpy(), weight.grad.numpy())
    for options in ({}, {"bias": False}, {"elementwise_affine": False}):
        layer, other = mint.nn.LayerNorm(5, 1e-3, **options), torch.nn.LayerNorm(5, 1e-3, **options)
        wanted = other(torch.from_numpy(SMALL)).detach().numpy()
        np.testing.assert_allclose(layer(Tensor(SMALL)).asnumpy(), wanted, rtol=1e-4, atol=1e-6)
        assert len(list(layer.get_parameters())) == len(list(other.parameters()))


def test_every_cell_has_a_judge_or_a_reason() -> None:
    found = {f"nn.{name}" for name in dir(nn) if name[0].isupper()} | {f"mint.nn.{name}" for name in dir(mint.nn)}
    # Optimizers have cases of training steps, which test_shared_steps.py runs.
    optimizers = {f"nn.{name}" for name in dir(nn) if name[0].isupper() and issubclass(getattr(nn, name), nn.Optimizer)}
    steps = {case.name.split()[0].rstrip(",") for case in cases()} & optimizers
    judged = {name for names in JUDGED for name in names.split()} | steps
    by_file = excepted()["cells_judged_elsewhere"]
    elsewhere, excused = ({name for names in each.values() for name in names}
                          for each in (by_file, excepted()["cells_without_judge"]))  # fmt: skip
    assert sorted(found - judged - elsewhere - excused) == []
    assert sorted(judged & excused | elsewhere & excused) == [], "they have a judge and a reason to have none"
    assert sorted((judged | elsewhere | excused) - found) == [], "there is no such cell"
    for file, names in by_file.items():
        text = Path(__file__).with_name(file).read_text(encoding="utf-8")
        assert [name for name in names if name not in text] == [], f"not in {file}"


SRC, TGT = floats(1, 5, 2, 8, dtype=np.float32), floats(2, 4, 2, 8, dtype=np.float32)
CAUSAL = np.triu(np.ones((4, 4), bool), 1)
PADDING = np.array([[False, False, False, True, True], [False] * 5])


def other_name(name: str) -> str:
    """LayerNorm has gamma and beta, the layers between are dense."""
    parts = name.replace("linear", "dense").split(".")
    if "norm" in (parts[-2] if len(parts) > 1 else ""):
        parts[-1] = {"weight": "gamma", "bias": "beta"}[parts[-1]]
    return ".".join(parts)


def held(mine: Any, theirs: Any) -> dict[str, Any]:
    """Parameters of both by the names of mine, with the same values."""
    own = {p.name: p for p in mine.get_parameters()}
    judged = {other_name(name): p for name, p in theirs.named_parameters()}
    assert sorted(own) == sorted(judged)
    generator = np.random.default_rng(7)
    for name, p in judged.items():
        value = generator.uniform(-0.5, 0.5, tuple(p.shape)).astype(np.float32)
        p.data, p.grad = torch.tensor(value), None
        own[name].set_data(Tensor(value))
    return judged


def compare(mine: Any, theirs: Any, arrays: list[np.ndarray], call: Any, judge: Any) -> None:
    """`call` of my cell's and `judge` of PyTorch's results on the same inputs."""
    judged = held(mine, theirs)
    tensors = [torch.tensor(a, requires_grad=True) for a in arrays]
    expected = judge(*tensors)
    factor = floats(9, *expected.shape, dtype=np.float32)
    (expected * torch.tensor(factor)).sum().backward()
    weights, weighing = list(mine.trainable_params()), Tensor(factor)

    def total(*inputs: Any) -> Any:
        found = call(*inputs)
        return (found * weighing).sum(), found

    places = tuple(range(len(arrays)))
    (_, found), (inputs, grads) = ms.value_and_grad(total, places, weights, has_aux=True)(*map(Tensor, arrays))
    near(found.asnumpy(), expected.detach().numpy(), "result")
    for i, (gradient, tensor) in enumerate(zip(inputs, tensors, strict=True)):
        wanted = tensor.grad
        near(gradient.asnumpy(), np.zeros(tensor.shape) if wanted is None else wanted.numpy(), f"gradient of input {i}")
    for weight, gradient in zip(weights, grads, strict=True):
        wanted = judged[weight.name].grad
        near(gradient.asnumpy(), np.zeros(weight.shape) if wanted is None else wanted.numpy(), weight.name)


@pytest.mark.parametrize("part", [0, 1])
@pytest.mark.parametrize("mask", ["none", "padding", "numbers", "heads"])
def test_attention(mask: str, part: int) -> None:
    mine, theirs = nn.MultiheadAttention(8, 2), torch.nn.MultiheadAttention(8, 2)
    given: dict[str, np.ndarray] = {
        "none": {}, "padding": {"key_padding_mask": PADDING},
        "numbers": {"attn_mask": floats(4, 4, 5, dtype=np.float32)},
        "heads": {"attn_mask": np.random.default_rng(5).random((4, 4, 5)) > 0.8},
    }[mask]  # fmt: skip
    own, other = ({k: make(v) for k, v in given.items()} for make in (Tensor, torch.tensor))
    compare(mine, theirs, [TGT, SRC], lambda q, k: mine(q, k, k * 2.0, **own)[part],
            lambda q, k: theirs(q, k, k * 2.0, **other)[part])  # fmt: skip


def test_attention_over_other_sizes() -> None:
    mine = nn.MultiheadAttention(8, 2, has_bias=False, kdim=3, vdim=5, batch_first=True)
    theirs = torch.nn.MultiheadAttention(8, 2, bias=False, kdim=3, vdim=5, batch_first=True)
    arrays = [floats(i, 2, 4, size, dtype=np.float32) for i, size in enumerate((8, 3, 5))]
    compare(mine, theirs, arrays, lambda q, k, v: mine(q, k, v, need_weights=False)[0],
            lambda q, k, v: theirs(q, k, v, need_weights=False)[0])  # fmt: skip
    compare(mine, theirs, arrays, lambda q, k, v: mine(q, k, v, average_attn_weights=False)[1],
            lambda q, k, v: theirs(q, k, v, average_attn_weights=False)[1])  # fmt: skip


@pytest.mark.parametrize("mask", ["padding", "numbers"])
def test_keys_and_values_that_the_layer_adds(mask: str) -> None:
    options: dict[str, Any] = {"add_bias_kv": True, "add_zero_attn": True, "batch_first": True}
    mine, theirs = nn.MultiheadAttention(8, 2, **options), torch.nn.MultiheadAttention(8, 2, **options)
    query, key = np.swapaxes(TGT, 0, 1), np.swapaxes(SRC, 0, 1)
    kinds = {"padding": {"key_padding_mask": PADDING}, "numbers": {"attn_mask": floats(4, 4, 5, dtype=np.float32)}}
    given = kinds[mask]
    own, other = ({k: make(v) for k, v in given.items()} for make in (Tensor, torch.tensor))
    compare(mine, theirs, [query, key], lambda q, k: mine(q, k, k, **own)[0],
            lambda q, k: theirs(q, k, k, **other)[0])  # fmt: skip


@pytest.mark.parametrize("part", [0, 1])
def test_attention_without_a_batch(part: int) -> None:
    mine, theirs = nn.MultiheadAttention(8, 2), torch.nn.MultiheadAttention(8, 2)
    heads = np.random.default_rng(5).random((2, 4, 5)) > 0.8
    own, other = ({"key_padding_mask": make(PADDING[0]), "attn_mask": make(heads)} for make in (Tensor, torch.tensor))
    compare(mine, theirs, [TGT[:, 0], SRC[:, 0]], lambda q, k: mine(q, k, k, **own)[part],
            lambda q, k: theirs(q, k, k, **other)[part])  # fmt: skip


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: nn.MultiheadAttention(8, 3), "MultiheadAttention: num_heads 3 does not divide embed_dim 8"),
        (lambda: nn.MultiheadAttention(8, 2, add_zero_attn=1),
         "MultiheadAttention: add_zero_attn must be True or False, not 1"),
    ],
)  # fmt: skip
def test_mistakes(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        make()
    assert raised.value.message == message


RECURRENT_X = floats(1, 5, 4, 3, dtype=np.float32)
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


def recurrent_compare(mine: Any, theirs: Any, inputs: Any, tensors: Any) -> None:
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
    recurrent_compare(layer, judged, [Tensor(RECURRENT_X)], [torch.tensor(RECURRENT_X, requires_grad=True)])


def test_lengths_and_first_states() -> None:
    torch.manual_seed(1)
    judged = torch.nn.LSTM(3, 6, bidirectional=True)
    layer = with_weights_of(judged, nn.LSTM(3, 6, bidirectional=True))
    h, c = floats(2, 2, 4, 6, dtype=np.float32), floats(3, 2, 4, 6, dtype=np.float32)
    lengths = [5, 4, 2, 1]
    packed = torch.nn.utils.rnn.pack_padded_sequence(torch.tensor(RECURRENT_X), lengths)
    expected, (last_h, last_c) = judged(packed, (torch.tensor(h), torch.tensor(c)))
    expected, _ = torch.nn.utils.rnn.pad_packed_sequence(expected)
    found, (mine_h, mine_c) = layer(Tensor(RECURRENT_X), (Tensor(h), Tensor(c)), Tensor(np.array(lengths, np.int32)))
    near(found.asnumpy(), expected.detach().numpy(), "outputs")
    near(mine_h.asnumpy(), last_h.detach().numpy(), "h")
    near(mine_c.asnumpy(), last_c.detach().numpy(), "c")


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU])
def test_results_have_the_element_type_of_the_input(kind: Any) -> None:
    layer = kind(3, 6, batch_first=True)
    output, last = layer(Tensor(RECURRENT_X.astype(np.float16)))
    lasts = last if isinstance(last, tuple) else (last,)
    assert [each.dtype for each in (output, *lasts)] == [ms.float16] * (1 + len(lasts))
    wide, _ = layer(Tensor(RECURRENT_X.astype(np.float16).astype(np.float32)))
    near(output.asnumpy(), wide.asnumpy().astype(np.float16), kind.__name__)


def test_single_steps() -> None:
    h, c = floats(2, 4, 6, dtype=np.float32), floats(3, 4, 6, dtype=np.float32)
    for mine, theirs in ((nn.GRUCell, torch.nn.GRUCell), (nn.RNNCell, torch.nn.RNNCell)):
        judged = theirs(3, 6)
        cell = with_weights_of(judged, mine(3, 6))
        near(
            cell(Tensor(RECURRENT_X[0]), Tensor(h)).asnumpy(),
            judged(torch.tensor(RECURRENT_X[0]), torch.tensor(h)).detach().numpy(),
        )
    judged = torch.nn.LSTMCell(3, 6)
    found = with_weights_of(judged, nn.LSTMCell(3, 6))(Tensor(RECURRENT_X[0]), (Tensor(h), Tensor(c)))
    for one, other in zip(found, judged(torch.tensor(RECURRENT_X[0]), (torch.tensor(h), torch.tensor(c))), strict=True):
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
def test_mistakes_of_recurrent_layers(make: Any, message: str) -> None:
    with pytest.raises((ValueError, TypeError)) as raised:
        make()
    assert raised.value.message == message
