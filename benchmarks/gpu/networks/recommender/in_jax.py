"""DLRM in JAX."""

import jax
import numpy as np
from jax import numpy as jnp

from benchmarks.gpu.networks.layers_in_jax import dense, embedded


def loss_of(w, numbers, rows, clicks, s, keys):
    """The mean loss of clicks."""
    x = numbers
    for i, width in enumerate((*s.bottom, s.width)):
        x = jax.nn.relu(dense(w / "bottom" / i, x, width))
    tables = [embedded(w / "embeddings" / i, rows[:, i], s.rows, s.width).astype(x.dtype) for i in range(s.tables)]
    stacked = jnp.stack((x, *tables), 1)
    products = jnp.einsum("bfw,bgw->bfg", stacked, stacked)
    y = jnp.concatenate((x, products[(slice(None), *np.tril_indices(s.tables + 1, -1))]), 1)
    for i, width in enumerate(s.top):
        y = jax.nn.relu(dense(w / "top" / i, y, width))
    logits = dense(w / "top" / len(s.top), y, 1)[:, 0].astype(jnp.float32)
    return (jax.nn.softplus(logits) - clicks * logits).mean()
