"""The transformer of compare.py in JAX: jit with NamedSharding; prints one line of JSON."""

import json
import math

import jax
import numpy as np
import transformer
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

sizes, options = transformer.parsed()
jax.config.update("jax_default_matmul_precision", "tensorfloat32")
devices = np.array(jax.devices()[: sizes.data * sizes.tensor]).reshape(sizes.data, sizes.tensor)
mesh = jax.sharding.Mesh(devices, ("data", "tensor"))
KIND = jnp.bfloat16 if sizes.precision == "bf16" else jnp.float32
FUSED = options.attention == "fused" and sizes.precision == "bf16"
SHAPE = (sizes.batch, sizes.sequence)


def placed(value, *axes):
    return jax.device_put(jnp.asarray(value), NamedSharding(mesh, PartitionSpec(*axes)))


def constrained(value, *axes):
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec(*axes)))


def norm(x, gamma, beta):
    wide = x.astype(jnp.float32)
    mean = wide.mean(-1, keepdims=True)
    variance = ((wide - mean) ** 2).mean(-1, keepdims=True)
    return ((wide - mean) * jax.lax.rsqrt(variance + 1e-5) * gamma + beta).astype(KIND)


def attention(query, key, value):
    query, key, value = (
        constrained(x.reshape(*SHAPE, sizes.heads, sizes.head), "data", None, "tensor") for x in (query, key, value)
    )
    scale = 1 / math.sqrt(sizes.head)
    if FUSED:
        mixed = jax.nn.dot_product_attention(query, key, value, scale=scale, implementation="cudnn")
    else:
        scores = jnp.einsum("bsnd,btnd->bnst", query, key) * scale
        mixed = jnp.einsum("bnst,btnd->bsnd", jax.nn.softmax(scores, axis=-1), value)
    return mixed.reshape(*SHAPE, sizes.width)


def block(x, p):
    y = norm(x, p["gamma1"], p["beta1"])
    w = {name: p[name].astype(KIND) for name in ("wq", "wk", "wv", "wo", "w1", "w2")}
    mixed = attention(y @ w["wq"], y @ w["wk"], y @ w["wv"])
    x = constrained(mixed @ w["wo"], "data") + x
    y = norm(x, p["gamma2"], p["beta2"])
    hidden = constrained(jax.nn.gelu(y @ w["w1"], approximate=True), "data", None, "tensor")
    return constrained(hidden @ w["w2"], "data") + x


def loss_of(parameters, x, y):
    x = x.astype(KIND)
    for p in parameters:
        x = block(x, p)
    return ((x.astype(jnp.float32) - y) ** 2).mean()


def step(parameters, moments, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    moments = jax.tree.map(lambda m, g: transformer.MOMENTUM * m + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - transformer.RATE * m, parameters, moments), moments, loss


AXES = {"wq": (None, "tensor"), "wk": (None, "tensor"), "wv": (None, "tensor"), "wo": ("tensor", None),
        "w1": (None, "tensor"), "w2": ("tensor", None)}  # fmt: skip
parameters = [{n: placed(v, *AXES.get(n, ())) for n, v in p.items()} for p in transformer.weights(sizes)]
moments = jax.tree.map(jnp.zeros_like, parameters)
x, y = (placed(v.reshape(*SHAPE, sizes.width), "data") for v in transformer.batch(sizes))
compiled = jax.jit(step, donate_argnums=(0, 1))


def once():
    global parameters, moments
    parameters, moments, loss = compiled(parameters, moments, x, y)
    return loss


print(json.dumps(transformer.measured(once, float, options)))
