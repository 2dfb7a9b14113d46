"""The building blocks of the JAX programs: parameters by name, and the layers that several of them have.

Products are computed in the kind of the weights' holder; norms and the loss in Float32.
"""

import jax
from jax import numpy as jnp


class Weights:
    """Parameters by the names of all programs, under a path: `w / "blocks" / 0` is a part, `w("weight", 4, 8)` a value.

    `get(name, shape)` finds a value, or notes that there is one.
    """

    def __init__(self, get, kind, path=""):
        self.get, self.kind, self.path = get, kind, path

    def __truediv__(self, part):
        return Weights(self.get, self.kind, f"{self.path}{part}.")

    def __call__(self, name, *shape):
        return self.get(self.path + name, shape)


class Keys:
    """A stream of keys of random numbers, each used once."""

    def __init__(self, key):
        self.key = key

    def __call__(self):
        self.key, used = jax.random.split(self.key)
        return used


def dense(w, x, outputs, bias=True):
    y = x.astype(w.kind) @ w("weight", outputs, x.shape[-1]).astype(w.kind).T
    return y + w("bias", outputs).astype(w.kind) if bias else y


def embedded(w, ids, count, width):
    return w("weight", count, width)[ids]


def layer_norm(w, x, epsilon=1e-5):
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    scaled = (wide - mean) * jax.lax.rsqrt(jnp.square(wide - mean).mean(-1, keepdims=True) + epsilon)
    return scaled * w("weight", x.shape[-1]) + w("bias", x.shape[-1])


def rms_norm(w, x, epsilon=1e-5):
    wide = x.astype(jnp.float32)
    return wide * jax.lax.rsqrt(jnp.square(wide).mean(-1, keepdims=True) + epsilon) * w("weight", x.shape[-1])


def dropped(x, rate, keys):
    if not rate:
        return x
    return jnp.where(jax.random.bernoulli(keys(), 1 - rate, x.shape), x / (1 - rate), 0).astype(x.dtype)


def cross_entropy(logits, classes, smoothing=0.0):
    """The mean over all rows; `smoothing` of the wanted class goes to all."""
    scores = jax.nn.log_softmax(logits.astype(jnp.float32), -1)
    picked = jnp.take_along_axis(scores, classes[..., None], -1)
    return -((1 - smoothing) * picked.mean() + smoothing * scores.mean())
