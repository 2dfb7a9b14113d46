"""The quick start's step in JAX; prints one line of JSON. See compare.py."""

import argparse
import json

import jax
import numpy as np
import transformer
from jax import numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

parser = argparse.ArgumentParser()
parser.add_argument("--data", type=int, default=1)
parser.add_argument("--tensor", type=int, default=1)
parser.add_argument("--steps", type=int, default=200)
parser.add_argument("--repeats", type=int, default=5)
options = parser.parse_args()
jax.config.update("jax_default_matmul_precision", "highest")
devices = np.array(jax.devices()[: options.data * options.tensor]).reshape(options.data, options.tensor)
mesh = jax.sharding.Mesh(devices, ("data", "tensor"))


def placed(value, *axes):
    return jax.device_put(jnp.asarray(value), NamedSharding(mesh, PartitionSpec(*axes)))


def loss_of(parameters, x, y):
    w, w2 = parameters
    return ((jax.nn.relu(x @ w) @ w2 - y) ** 2).mean()


def step(parameters, moments, x, y):
    loss, gradients = jax.value_and_grad(loss_of)(parameters, x, y)
    moments = jax.tree.map(lambda m, g: 0.1 * m + g, moments, gradients)
    return jax.tree.map(lambda p, m: p - 0.2 * m, parameters, moments), moments, loss


generator = np.random.default_rng(1)
w, w2 = (generator.normal(0, 0.01, shape).astype(np.float32) for shape in ((32, 16), (16, 16)))
x, y = (generator.random(shape).astype(np.float32) for shape in ((16, 32), (16, 16)))
x, y = placed(x, "data", "tensor"), placed(y, "data")
parameters = (placed(w, "tensor"), placed(w2))
moments = jax.tree.map(jnp.zeros_like, parameters)
compiled = jax.jit(step, donate_argnums=(0, 1))


def once():
    global parameters, moments
    parameters, moments, loss = compiled(parameters, moments, x, y)
    return loss


print(json.dumps(transformer.measured(once, float, options)))
