"""GPT-2 in JAX. Attention is written out: that of `jax.nn` has no dropout."""

import math

import jax
from jax import numpy as jnp

from benchmarks.gpu.networks.layers_in_jax import cross_entropy, dense, dropped, embedded, layer_norm


def attention(w, x, s, keys):
    b, t, c = x.shape
    q, k, v = jnp.split(dense(w / "qkv", x, 3 * c), 3, -1)
    q, k, v = (y.reshape(b, t, s.heads, -1) for y in (q, k, v))
    scores = jnp.einsum("bqhd,bkhd->bhqk", q, k).astype(jnp.float32) / math.sqrt(c // s.heads)
    scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -1e9)
    shares = dropped(jax.nn.softmax(scores, -1).astype(w.kind), s.dropout, keys)
    mixed = jnp.einsum("bhqk,bkhd->bqhd", shares, v).reshape(b, t, c)
    return dropped(dense(w / "proj", mixed, c), s.dropout, keys)


def mlp(w, x, s, keys):
    hidden = jax.nn.gelu(dense(w / "fc", x, 4 * s.width), approximate=True)
    return dropped(dense(w / "proj", hidden, s.width), s.dropout, keys)


def loss_of(w, words, following, s, keys):
    """The mean cross entropy of the next words."""
    table, position = w / "embedding", w("position", s.length, s.width)
    x = dropped(embedded(table, words, s.vocabulary, s.width) + position, s.dropout, keys)
    for i in range(s.layers):
        block = w / "blocks" / i
        x = x + attention(block / "attn", layer_norm(block / "ln_1", x), s, keys)
        x = x + mlp(block / "mlp", layer_norm(block / "ln_2", x), s, keys)
    x = layer_norm(w / "ln_f", x)
    return cross_entropy(x.astype(w.kind) @ table("weight", s.vocabulary, s.width).astype(w.kind).T, following)
