"""Training steps in mspc, as scripts of MindSpore write them."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import mspc as ms
from benchmarks.gpu.networks.program import Program, Ranks, Task, next_line, resident
from benchmarks.gpu.networks.sizes import Optimizer, first_values, same_name
from mspc import Tensor, amp, mint, nn, ops


def optimizer_of(said: Optimizer, parameters: Any) -> Any:
    if said.kind == "adamw":
        return mint.optim.AdamW(parameters, said.rate, weight_decay=said.weight_decay)
    if said.kind == "adam":
        return nn.Adam(parameters, said.rate)
    return nn.SGD(parameters, said.rate, said.momentum)


def trained(network: Any, optimizer: Any, clip: float | None) -> Callable[..., Any]:
    """A step; optimizers of `nn` have a cell of their own for it."""
    if clip is None and not isinstance(optimizer, mint.optim.AdamW):
        return nn.TrainOneStepCell(network, optimizer).set_train()
    network.set_train()
    gradients = ms.value_and_grad(network, None, optimizer.parameters)

    @ms.jit
    def step(*data: Any) -> Any:
        loss, grads = gradients(*data)
        if clip is not None:
            grads = ops.clip_by_global_norm(grads, clip)
        optimizer(grads)
        return loss

    return step


def divide_in_stages(network: Any, task: Task) -> Any:
    """Divide a network's layers among the stages; the embedding is of the first one, what follows the layers of the
    last. A `zero_bubble_v` goes through the stages there and back."""
    stages, layers = task.ranks.stages, network.layers
    chunks = [*range(stages), *reversed(range(stages))] if task.schedule == "zero_bubble_v" else list(range(stages))
    for cell in network.cells():
        cell.pipeline_stage = 0 if cell is network.embedding else chunks[-1]
    for number, layer in enumerate(layers):
        layer.pipeline_stage = chunks[number * len(chunks) // len(layers)]
    config = {"pipeline_scheduler": task.schedule, "pipeline_interleave": len(chunks) > stages}
    ms.set_auto_parallel_context(pipeline_stages=stages, pipeline_config=config)
    return nn.PipelineCell(network, task.micro_batches)


def begin(ranks: Ranks) -> Callable[[], str]:
    """Become one of several ranks, to which layouts spread from the batch and from what a network's `shard` says; how
    all of them hear what the first one is told."""
    from mpi4py import MPI

    from mspc.communication import init

    init()
    fed = "data_parallel" if ranks.count == ranks.data else "full_batch"
    ms.set_auto_parallel_context(
        parallel_mode="auto_parallel", search_mode="sharding_propagation", dataset_strategy=fed, device_num=ranks.count
    )
    world = MPI.COMM_WORLD
    return lambda: world.bcast(next_line() if not world.rank else "")


def built(task: Task) -> Program:
    """The program of a task."""
    tf32 = {"gpu_config": {"matmul_allow_tf32": task.dtype != "f32"}} if task.device == "gpu" else {}
    ms.set_context(mode=ms.GRAPH_MODE, device_target=task.device.upper(), **tf32)
    line = begin(task.ranks) if task.ranks.count > 1 else next_line
    ms.set_seed(1)
    network = importlib.import_module(f"benchmarks.gpu.networks.{task.network}.in_mspc").Network(task.sizes)
    parameters = network.parameters_dict()
    values = first_values({name: parameter.shape for name, parameter in parameters.items()})
    for name, parameter in parameters.items():
        parameter.set_data(Tensor(values[name]))
    if task.ranks.tensor > 1:
        importlib.import_module(f"benchmarks.gpu.networks.{task.network}.shard_in_mspc").shard(network, *task.ranks[:2])
    if task.ranks.stages > 1:
        network = divide_in_stages(network, task)
    if task.dtype == "bf16":
        network = amp.auto_mixed_precision(network, "auto", ms.bfloat16)
    optimizer = optimizer_of(task.optimizer, network.trainable_params())
    step = trained(network, optimizer, task.optimizer.clip)
    parts = task.ranks.data if task.ranks.count == task.ranks.data else 1
    place = ms.communication.get_rank() if parts > 1 else 0
    data = [Tensor(value[len(value) // parts * place :][: len(value) // parts]) for value in task.data]
    peak = ms.runtime.max_memory_allocated if task.device == "gpu" else resident
    shapes = {same_name(name): parameter.shape for name, parameter in parameters.items()}
    return Program(
        lambda: step(*data), lambda loss: float(loss.asnumpy()) / task.micro_batches, ms.runtime.synchronize, peak,
        shapes, line, task.ranks.count == 1 or ms.communication.get_rank() == 0,
    )  # fmt: skip
