"""Activations against PyTorch, at the ends of their pieces and of their range too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import mint, nn, ops
from mspc.mindspore_api.nn.activation import get_activation

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, same  # noqa: E402  # it imports PyTorch

F = torch.nn.functional
ENDS = np.array([0.0, -0.0, 1e-30, 25.0, -25.0, 90.0, -90.0, 800.0, -800.0, np.nan])
EVERYWHERE: list[tuple[str, Any, Any]] = [
    ("relu", ops.relu, F.relu), ("relu6", ops.relu6, F.relu6), ("sigmoid", ops.sigmoid, F.sigmoid),
    ("tanh", ops.tanh, F.tanh), ("silu", ops.silu, F.silu),
    ("gelu", ops.gelu, F.gelu), ("gelu tanh", lambda x: ops.gelu(x, "tanh"), lambda x: F.gelu(x, approximate="tanh")),
    ("GeLU", lambda x: ops.GeLU()(x), lambda x: F.gelu(x, approximate="tanh")),
    ("nn.GELU", nn.GELU(), lambda x: F.gelu(x, approximate="tanh")), ("nn.GELU exact", nn.GELU(False), F.gelu),
    ("mint gelu", mint.nn.functional.gelu, F.gelu),
    ("fast_gelu", ops.fast_gelu, lambda x: x * F.sigmoid(1.702 * x)),
    ("elu", ops.elu, F.elu), ("elu 0.5", lambda x: ops.elu(x, 0.5), lambda x: F.elu(x, 0.5)),
    ("celu", lambda x: ops.celu(x, 0.5), lambda x: F.celu(x, 0.5)),
    ("celu below 0", lambda x: ops.celu(x, -2.0), lambda x: F.celu(x, -2.0)), ("selu", ops.selu, F.selu),
    ("leaky_relu", ops.leaky_relu, lambda x: F.leaky_relu(x, 0.2)),
    ("leaky_relu above 1", lambda x: ops.leaky_relu(x, 3.0), lambda x: F.leaky_relu(x, 3.0)),
    ("mint leaky_relu", mint.nn.functional.leaky_relu, F.leaky_relu), ("nn.LeakyReLU", nn.LeakyReLU(0.1), lambda x: F.leaky_relu(x, 0.1)),  # noqa: E501
    ("mish", ops.mish, F.mish), ("hardswish", ops.hardswish, F.hardswish), ("hardsigmoid", ops.hardsigmoid, F.hardsigmoid),  # noqa: E501
    ("hardtanh", lambda x: ops.hardtanh(x, -0.5, 2.0), lambda x: F.hardtanh(x, -0.5, 2.0)),
    ("hardshrink", ops.hardshrink, F.hardshrink), ("softshrink", ops.softshrink, F.softshrink),
    ("tanhshrink", ops.tanhshrink, F.tanhshrink), ("softsign", ops.softsign, F.softsign),
    ("threshold", lambda x: ops.threshold(x, 0.1, -2.0), lambda x: F.threshold(x, 0.1, -2.0)),
    ("logsigmoid", ops.logsigmoid, F.logsigmoid), ("softplus", ops.softplus, F.softplus),
    ("softplus 2 5", lambda x: ops.softplus(x, 2.0, 5.0), lambda x: F.softplus(x, 2.0, 5.0)),
]  # fmt: skip


@pytest.mark.parametrize(("mine", "theirs"), [e[1:] for e in EVERYWHERE], ids=[e[0] for e in EVERYWHERE])
def test_everywhere(mine: Any, theirs: Any) -> None:
    with np.errstate(all="ignore"):
        same(mine, theirs, [floats(1, 3, 40)], tolerance=1e-7)  # PyTorch's 1 / 6 is a Float32
        same(mine, theirs, [np.array(0.7)], tolerance=1e-7)
        same(mine, theirs, [ENDS[:-1]], tolerance=1e-7)
        same(mine, theirs, [ENDS], grads=[])
        same(mine, theirs, [np.array([np.inf, -np.inf])], grads=[])
        same(mine, theirs, [floats(2, 50, dtype=np.float16)])


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_along_an_axis(axis: int) -> None:
    x = floats(1, 4, 6, 2)
    same(lambda a: ops.softmax(a, axis), lambda a: F.softmax(a, axis), [x])
    same(lambda a: ops.log_softmax(a, axis), lambda a: F.log_softmax(a, axis), [x])
    same(nn.GLU(axis), lambda a: F.glu(a, axis), [x])
    wide = floats(2, 3, 3000, 2, dtype=np.float16)
    same(lambda a: ops.softmax(a, 1), lambda a: F.softmax(a, 1), [wide])
    same(lambda a: ops.log_softmax(a, 1), lambda a: F.log_softmax(a, 1), [wide])
    masked = x.copy()
    masked[0, :, 0] = -np.inf
    with np.errstate(all="ignore"):
        same(lambda a: ops.softmax(a, axis), lambda a: F.softmax(a, axis), [masked], grads=[])


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2, 2)])
def test_prelu(shape: tuple[int, ...]) -> None:
    same(ops.prelu, F.prelu, [floats(1, *shape), floats(2, 3)])
    same(ops.prelu, F.prelu, [floats(1, *shape), floats(2, 1)])


@pytest.mark.parametrize(
    ("name", "theirs"),
    [("fast_gelu", lambda x: x * F.sigmoid(1.702 * x)), ("hswish", F.hardswish), ("hsigmoid", F.hardsigmoid),
     ("elu", F.elu), ("logsigmoid", F.logsigmoid), ("softmax", lambda x: F.softmax(x, -1)), ("hardtanh", F.hardtanh),
     ("leakyrelu", lambda x: F.leaky_relu(x, 0.2))],
)  # fmt: skip
def test_activations_by_name(name: str, theirs: Any) -> None:
    same(get_activation(name), theirs, [floats(1, 4, 6)], tolerance=1e-7)
