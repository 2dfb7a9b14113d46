"""ConvNeXt in JAX, channels last."""

import jax
from jax import numpy as jnp

from benchmarks.gpu.networks.layers_in_jax import cross_entropy, dense, dropped, layer_norm
from benchmarks.gpu.networks.sizes import SMOOTHING, dropped_paths


def conv(w, x, outputs, length, stride=1, padding=0, groups=1):
    kernel = w("weight", outputs, x.shape[-1] // groups, length, length).astype(w.kind)
    y = jax.lax.conv_general_dilated(
        x.astype(w.kind), kernel.transpose(2, 3, 1, 0), (stride, stride), [(padding, padding)] * 2,
        dimension_numbers=("NHWC", "HWIO", "NHWC"), feature_group_count=groups,
    )  # fmt: skip
    return y + w("bias", outputs).astype(w.kind)


def block(w, x, rate, keys):
    width = x.shape[-1]
    y = layer_norm(w / "norm", conv(w / "dwconv", x, width, 7, padding=3, groups=width), 1e-6)
    y = dense(w / "pwconv2", jax.nn.gelu(dense(w / "pwconv1", y, 4 * width), approximate=False), width)
    y = w("layer_scale", width) * y
    return x + y * dropped(jnp.ones((x.shape[0], 1, 1, 1), y.dtype), rate, keys)


def loss_of(w, images, classes, s, keys):
    """The loss of classes."""
    x = conv(w / "stem", images.transpose(0, 2, 3, 1), s.widths[0], 4, 4)
    x = layer_norm(w / "stem_norm" / "norm", x, 1e-6)
    rates, number = dropped_paths(s), 0
    for depth, width in zip(s.depths, s.widths, strict=True):
        if width != x.shape[-1]:
            x = layer_norm(w / "layers" / number / "norm", x, 1e-6)
            x = conv(w / "layers" / (number + 1), x, width, 2, 2)
            number += 2
        for _ in range(depth):
            x = block(w / "layers" / number, x, rates.pop(0), keys)
            number += 1
    return cross_entropy(dense(w / "head", layer_norm(w / "norm", x.mean((1, 2)), 1e-6), s.classes), classes, SMOOTHING)
