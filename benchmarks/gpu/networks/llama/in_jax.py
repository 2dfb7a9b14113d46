"""LLaMA in JAX; in halves attention is cuDNN's on a GPU."""

import jax
from jax import numpy as jnp

from benchmarks.gpu.networks.layers_in_jax import cross_entropy, dense, embedded, rms_norm
from benchmarks.gpu.networks.sizes import angles


def rotated(x, turned):
    left, right = jnp.split(x, 2, -1)
    return (x * jnp.cos(turned) + jnp.concatenate((-right, left), -1) * jnp.sin(turned)).astype(x.dtype)


def attention(w, x, s):
    b, t, c = x.shape
    size, turned = c // s.heads, angles(s)[:, None]
    q = dense(w / "wq", x, c, bias=False).reshape(b, t, s.heads, size)
    k = dense(w / "wk", x, s.key_heads * size, bias=False).reshape(b, t, s.key_heads, size)
    v = dense(w / "wv", x, s.key_heads * size, bias=False).reshape(b, t, s.key_heads, size)
    way = "cudnn" if w.kind == jnp.bfloat16 and jax.default_backend() == "gpu" else "xla"
    mixed = jax.nn.dot_product_attention(rotated(q, turned), rotated(k, turned), v, is_causal=True, implementation=way)
    return dense(w / "wo", mixed.reshape(b, t, c), c, bias=False)


def feed_forward(w, x, s):
    gate = jax.nn.silu(dense(w / "w1", x, s.hidden, bias=False))
    return dense(w / "w2", gate * dense(w / "w3", x, s.hidden, bias=False), s.width, bias=False)


def loss_of(w, words, following, s, keys):
    """The mean cross entropy of the next words."""
    x = embedded(w / "embedding", words, s.vocabulary, s.width)
    for i in range(s.layers):
        layer = w / "layers" / i
        x = x + attention(layer / "attention", rms_norm(layer / "attention_norm", x), s)
        x = x + feed_forward(layer / "feed_forward", rms_norm(layer / "ffn_norm", x), s)
    return cross_entropy(dense(w / "output", rms_norm(w / "norm", x), s.vocabulary, bias=False), following)
