"""The transformer of cpu_step.py in JAX on host devices; prints the seconds of every step.

    python benchmarks/cpu_step_jax.py STEPS LAYERS DEVICES [rows]     # DEVICES are split data x tensor, 8 into 2 x 4

Activations are [batch, sequence, width], as transformers are written in JAX; with `rows` they are [batch * sequence,
width], for which XLA's products on the CPU are three times as fast.
"""

import json
import math
import os
import sys
import time

STEPS, LAYERS, DEVICES = (int(word) for word in sys.argv[1:4])
os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={DEVICES}"

import jax  # noqa: E402  # the number of devices is set before  # reads the flags above
import numpy as np  # noqa: E402  # the number of devices is set before
from jax import numpy as jnp  # noqa: E402  # the number of devices is set before
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402  # the number of devices is set before

WIDTH, HEADS, SEQUENCE, BATCH, HIDDEN = 512, 8, 128, 16, 2048
SHAPE = (BATCH * SEQUENCE, WIDTH) if sys.argv[4:] == ["rows"] else (BATCH, SEQUENCE, WIDTH)
TENSOR = math.gcd(DEVICES, 4)
mesh = jax.sharding.Mesh(np.array(jax.devices()).reshape(DEVICES // TENSOR, TENSOR), ("data", "tensor"))


def placed(value, *axes):
    return jax.device_put(jnp.asarray(value, jnp.float32), NamedSharding(mesh, PartitionSpec(*axes)))


def constrained(value, *axes):
    return jax.lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec(*axes)))


def norm(x, gamma, beta):
    mean = x.mean(-1, keepdims=True)
    variance = ((x - mean) ** 2).mean(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * gamma + beta


def heads(x):
    x = x.reshape(BATCH, SEQUENCE, HEADS, WIDTH // HEADS).transpose(0, 2, 1, 3)
    return constrained(x, "data", "tensor")


def block(x, p):
    y = norm(x, p["gamma1"], p["beta1"])
    query, key, value = heads(y @ p["wq"]), heads(y @ p["wk"]), heads(y @ p["wv"])
    scores = query @ key.swapaxes(-1, -2) * (1 / math.sqrt(WIDTH // HEADS))
    mixed = (jax.nn.softmax(scores) @ value).transpose(0, 2, 1, 3).reshape(x.shape)
    x = constrained(mixed @ p["wo"], "data") + x
    y = norm(x, p["gamma2"], p["beta2"])
    hidden = constrained(jax.nn.gelu(y @ p["w1"], approximate=True), "data", *[None] * (len(SHAPE) - 2), "tensor")
    return constrained(hidden @ p["w2"], "data") + x


def loss_of(parameters, x, y):
    for p in parameters:
        x = block(x, p)
    return ((x - y) ** 2).mean()


def step(parameters, moments, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    moments = jax.tree.map(lambda m, g: 0.9 * m + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - 0.01 * m, parameters, moments), moments, loss


rng = np.random.default_rng(1)


def weight(inputs, outputs, *axes):
    bound = math.sqrt(6 / (inputs + outputs))
    return placed(rng.uniform(-bound, bound, (inputs, outputs)), *axes)


parameters = [
    {
        **{f"gamma{i}": placed(np.ones(WIDTH)) for i in (1, 2)},
        **{f"beta{i}": placed(np.zeros(WIDTH)) for i in (1, 2)},
        **{name: weight(WIDTH, WIDTH, None, "tensor") for name in ("wq", "wk", "wv")},
        "wo": weight(WIDTH, WIDTH, "tensor", None),
        "w1": weight(WIDTH, HIDDEN, None, "tensor"),
        "w2": weight(HIDDEN, WIDTH, "tensor", None),
    }
    for _ in range(LAYERS)
]
moments = jax.tree.map(jnp.zeros_like, parameters)
x, y = (placed(rng.standard_normal(SHAPE), "data") for _ in range(2))
compiled = jax.jit(step, donate_argnums=(0, 1))
times, losses = [], []
for _ in range(STEPS):
    start = time.perf_counter()
    parameters, moments, loss = compiled(parameters, moments, x, y)
    losses.append(float(loss))
    jax.block_until_ready(parameters)
    times.append(time.perf_counter() - start)
print(json.dumps({"times": times, "losses": losses}))
