"""States and activations in the host's memory on a GPU: pinned arrays, copies on streams of their own, equal bits."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn
from mspc.ir.graph import OFFLOAD, Graph
from mspc.runtime.device_choice import GpuMemory
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.gpu.host_arrays import PinnedArray
from tests.compiled_scripts import Config, compile_call
from tests.gpu.programs import drawn
from tests.gpu.test_shadow_weights_gpu import gpu

WIDTH, LAYERS, STEPS = 48, 3, 4


class Net(nn.Cell):
    """Layers that keep their activations on the host, where that is asked for."""

    def __init__(self, prefetch: Any) -> None:
        super().__init__()
        made = [nn.SequentialCell([nn.Dense(WIDTH, WIDTH), nn.GELU()]) for _ in range(LAYERS)]
        if prefetch is not None:
            for layer in made:
                layer.offload(prefetch)
        self.layers = nn.SequentialCell(made)
        self.head = nn.Dense(WIDTH, 4)

    def construct(self, x: Any) -> Any:
        return self.head(self.layers(x))


def compiled(prefetch: Any, states: bool, half: bool = False) -> tuple[Graph, dict[str, Any], list[Any]]:
    """(execute graph, values of its parameters, inputs)"""
    ms.set_seed(1)
    network = nn.WithLossCell(Net(prefetch), nn.MSELoss())
    if half:
        network.backbone_network.to_float(ms.bfloat16)
    optimizer = nn.Adam(network.trainable_params(), 0.01)
    if states:
        optimizer.offload()
    target = nn.TrainOneStepCell(network, optimizer).set_train()
    args = [Tensor(drawn(64, WIDTH)), Tensor(drawn(64, 4, seed=1))]
    found = compile_call(target, args, Config(device="GPU"))
    graph = found.rank_graph(0)
    values = {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
    values |= {p.name: found.traced.parameters[p.name].asnumpy() for p in graph.parameters if p.kind == "parameter"}
    return graph, values, [arg.asnumpy() for arg in args]


def trained(device: Any, *options: Any) -> tuple[GpuExecutor, list[Any]]:
    graph, values, feeds = compiled(*options)
    executor = GpuExecutor(graph, device, {name: GpuMemory(device).place(v) for name, v in values.items()})
    losses = [np.array(executor.run(feeds)[0]) for _ in range(STEPS)]
    return executor, [*losses, *[executor.parameter(name) for name in values]]


@pytest.mark.parametrize("half", [False, True])
def test_offloaded_steps_give_the_same_bits(tmp_path: Path, half: bool) -> None:
    device = gpu(tmp_path / "kernels")
    plain, wanted = trained(device, None, False, half)
    for prefetch, states in (("Auto", True), (2, False), (None, True)):
        executor, found = trained(device, prefetch, states, half)
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
        assert executor.captured == plain.captured
        assert executor.plan.on_host > 0
        streams = {work.stream for work in executor._step.work}
        assert {"to_host", "from_host"} <= streams
        if states:
            moved = sum(p.type.nbytes for p in executor.graph.parameters if OFFLOAD in p.attrs)
            assert executor.plan.kept_on_host == moved == plain.plan.states - executor.plan.states


def test_states_on_the_host_are_read_and_replaced(tmp_path: Path) -> None:
    device = gpu(tmp_path / "kernels")
    executor, _ = trained(device, None, True)
    name = next(p.name for p in executor.graph.parameters if OFFLOAD in p.attrs)
    value = np.ones_like(executor.parameter(name))
    executor.replace(name, value)
    np.testing.assert_array_equal(executor.parameter(name), value)


def test_a_rank_holds_states_in_pinned_memory(tmp_path: Path) -> None:
    device = gpu(tmp_path / "kernels")
    memory = GpuMemory(device)
    graph, values, feeds = compiled(None, True)
    placed = {p.name: memory.place(values[p.name], OFFLOAD in p.attrs) for p in graph.parameters if p.name in values}
    executor = GpuExecutor(graph, device, placed)
    memory.executors.append(executor)
    executor.run(feeds)
    for parameter in (p for p in graph.parameters if OFFLOAD in p.attrs):
        array = placed[parameter.name]
        assert isinstance(array, PinnedArray)
        assert executor.array(parameter.name) is array
        assert memory.fetch(array).any()
        memory.store(array, np.zeros_like(array))
        assert not executor.parameter(parameter.name).any()
