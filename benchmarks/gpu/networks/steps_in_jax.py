"""Training steps in JAX: one jitted function, its state donated."""

from __future__ import annotations

import importlib
from typing import Any

import jax
from jax import numpy as jnp

from benchmarks.gpu.networks.layers_in_jax import Keys, Weights
from benchmarks.gpu.networks.program import Program, Task, resident
from benchmarks.gpu.networks.sizes import Optimizer, first_values

BETAS, EPSILON = (0.9, 0.999), 1e-8


def updated(said: Optimizer, parameters: Any, state: Any, gradients: Any, count: Any) -> Any:
    """(parameters, state) after one update; the state is (first moments, second moments)."""
    if said.kind == "sgd":
        assert not said.momentum
        return jax.tree.map(lambda p, g: p - said.rate * g, parameters, gradients), state
    first = jax.tree.map(lambda m, g: BETAS[0] * m + (1 - BETAS[0]) * g, state[0], gradients)
    second = jax.tree.map(lambda v, g: BETAS[1] * v + (1 - BETAS[1]) * g * g, state[1], gradients)

    def moved(p: Any, m: Any, v: Any) -> Any:
        scaled = m / (1 - BETAS[0]**count) / (jnp.sqrt(v / (1 - BETAS[1]**count)) + EPSILON)  # fmt: skip
        return p * (1 - said.rate * said.weight_decay) - said.rate * scaled

    return jax.tree.map(moved, parameters, first, second), (first, second)


def built(task: Task) -> Program:
    """The program of a task."""
    if task.device == "gpu" and jax.default_backend() != "gpu":
        raise ModuleNotFoundError("JAX finds no GPU")
    jax.config.update("jax_default_matmul_precision", "highest" if task.dtype == "f32" else "tensorfloat32")
    loss_of = importlib.import_module(f"benchmarks.gpu.networks.{task.network}.in_jax").loss_of
    kind = jnp.bfloat16 if task.dtype == "bf16" else jnp.float32
    shapes: dict[str, tuple[int, ...]] = {}

    def noted(name: str, shape: tuple[int, ...]) -> Any:
        shapes[name] = shape
        return jnp.zeros(shape)

    jax.eval_shape(lambda key: loss_of(Weights(noted, kind), *task.data, task.sizes, Keys(key)), jax.random.key(0))
    parameters = {name: jnp.asarray(value) for name, value in first_values(shapes).items()}
    zeros = {} if task.optimizer.kind == "sgd" else jax.tree.map(jnp.zeros_like, parameters)
    held = [parameters, (zeros, jax.tree.map(jnp.copy, zeros)), jnp.zeros((), jnp.int32)]
    data = [jnp.asarray(value) for value in task.data]
    if task.ranks.count > 1:
        mesh = jax.make_mesh((task.ranks.count,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
        along, everywhere = (jax.NamedSharding(mesh, jax.P(*axes)) for axes in (("data",), ()))
        held, data = jax.device_put(held, everywhere), jax.device_put(data, along)

    def train(parameters: Any, state: Any, count: Any, *data: Any) -> Any:
        def loss(parameters: Any) -> Any:
            keys = Keys(jax.random.fold_in(jax.random.key(1), count))
            return loss_of(Weights(lambda name, _: parameters[name], kind), *data, task.sizes, keys)

        found, gradients = jax.value_and_grad(loss)(parameters)
        return *updated(task.optimizer, parameters, state, gradients, count + 1), count + 1, found

    compiled = jax.jit(train, donate_argnums=(0, 1, 2))

    def step() -> Any:
        *held[:], found = compiled(*held, *data)
        return found

    def peak() -> int:
        found = jax.local_devices()[0].memory_stats()
        return found["peak_bytes_in_use"] if task.device == "gpu" and found else resident()

    return Program(step, float, lambda: jax.block_until_ready(held), peak, shapes)
