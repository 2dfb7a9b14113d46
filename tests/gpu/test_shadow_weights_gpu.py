"""Copies of parameters in halves that the optimizer's kernels write: the same bits as if every step made them anew."""

import contextlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.runtime.data import slice_parameter
from mspc.runtime.device_choice import GpuMemory
from tests.compiled_scripts import Config, compile_call
from tests.executors import GpuExecutor, LocalComm, World
from tests.gpu.emulated import EmulatedGpu
from tests.gpu.programs import drawn
from tests.gpu.test_ranks import EmulatedNccl
from tests.graphs import REGISTRY, ExecutionError, Graph, parse, print_graph
from tests.ops.cuda.cuda_emulator import NEEDED

COPIES = 5
"""Nodes that make the copies of `Halves`: three casts, a Concat of two more."""


def gpu(folder: Path) -> Any:
    """A GPU where there is one, else an emulated one."""
    with contextlib.suppress(ImportError):
        import cupy

        if cupy.cuda.is_available():
            from mspc.runtime.gpu.device import GpuDevice

            return GpuDevice(deterministic=True)
    if NEEDED is None:
        pytest.skip("neither a GPU nor g++ is there")
    folder.mkdir(exist_ok=True)
    return EmulatedGpu(folder)


class Halves(nn.Cell):
    """Two products in halves, the first by two weights side by side."""

    def __init__(self, kind: Any, layouts: tuple[Any, Any] | None = None) -> None:
        super().__init__()
        self.kind = kind
        self.w1 = Parameter(Tensor(drawn(8, 12) / 3), "w1")
        self.w2 = Parameter(Tensor(drawn(8, 20, seed=1) / 3), "w2")
        self.w3 = Parameter(Tensor(drawn(32, 8, seed=2) / 6), "w3")
        self.bias = Parameter(Tensor(drawn(8, seed=3)), "bias")
        self.first, self.second = ops.MatMul(), ops.MatMul()
        self.gelu, self.add, self.join = ops.GeLU(), ops.BiasAdd(), ops.Concat(1)

    def half(self, x: Any) -> Any:
        return ops.cast(x, self.kind)

    def construct(self, x: Any) -> Any:
        y = self.first(self.half(x), self.join((self.half(self.w1), self.half(self.w2))))
        y = self.add(self.second(self.gelu(y), self.half(self.w3)), self.half(self.bias))
        return ops.cast(y, ms.float32) + x


def program(kind: Any = ms.bfloat16, optimizer: str = "momentum", train: bool = True) -> tuple[Any, list[Any]]:
    ms.set_seed(1)
    network = nn.WithLossCell(Halves(kind), nn.MSELoss())
    weights = network.trainable_params()
    made = nn.Adam(weights, 0.01) if optimizer == "adam" else nn.Momentum(weights, 0.05, 0.9)
    target = nn.TrainOneStepCell(network, made) if train else network
    target.set_train(train)
    return target, [Tensor(drawn(16, 8, seed=5)), Tensor(drawn(16, 8, seed=6))]


def compiled(*options: Any, kept: bool = True) -> tuple[Graph, dict[str, Any], list[Any]]:
    """(execute graph, values of its parameters, inputs); `kept`: whether copies are kept."""
    target, args = program(*options)
    found = compile_call(target, args, Config(device="GPU"))
    graph = found.rank_graph(0)
    if not kept:
        forget(graph)
    values = {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
    values |= {p.name: found.traced.parameters[p.name].asnumpy() for p in graph.parameters if p.kind == "parameter"}
    return graph, values, [arg.asnumpy() for arg in args]


def forget(graph: Graph) -> None:
    for node in graph.nodes:
        node.attrs.pop("kept", None)


class Executor(GpuExecutor):
    """Counts how often the copies are made. Arrays in `values` stay as they are: they live on the device."""

    made = 0

    def __init__(self, graph: Graph, device: Any, values: dict[str, Any]) -> None:
        self._own = {id(value) for value in values.values()}
        super().__init__(graph, device, values)
        if self._step.anew:
            first, *others = self._step.anew
            self._step.anew = [replace(first, launch=self._counted(first.launch)), *others]

    def _counted(self, launch: Callable[[], None]) -> Callable[[], None]:
        def counted() -> None:
            self.made += 1
            launch()

        return counted

    def _copied(self, value: Any) -> Any:
        return value if id(value) in self._own else super()._copied(value)

    @property
    def launched(self) -> list[str]:
        """Names of the operators that a step launches."""
        return [self.graph.nodes[work.index].op.name for work in self._step.work if work.index >= 0]

    def loss(self, feeds: list[Any]) -> float:
        return float(np.asarray(self.run(feeds)[0]))


def pair(device: Any, *options: Any) -> tuple[Executor, Executor, list[Any]]:
    """An executor that keeps copies and one that makes them at every step, with parameters of their own."""
    made: list[Executor] = []
    feeds: list[Any] = []
    for kept in (True, False):
        graph, values, feeds = compiled(*options, kept=kept)
        placed = {name: GpuMemory(device).place(value) for name, value in values.items()}
        made.append(Executor(graph, device, placed))
    return made[0], made[1], feeds


def same(one: GpuExecutor, other: GpuExecutor) -> None:
    for parameter in one.graph.parameters:
        if parameter.kind == "parameter":
            np.testing.assert_array_equal(one.parameter(parameter.name), other.parameter(parameter.name))


@pytest.mark.parametrize("options", [(ms.bfloat16,), (ms.float16, "adam")])
def test_steps_are_those_that_make_all_copies(options: Any, tmp_path: Path) -> None:
    kept, plain, feeds = pair(gpu(tmp_path), *options)
    assert len(kept._step.anew) == COPIES
    assert len(plain.launched) == len(kept.launched) + COPIES
    assert "Concat" in plain.launched
    assert "Concat" not in kept.launched
    for step in range(4):
        fed = [feed * np.float32(1 + step) for feed in feeds]
        assert kept.loss(fed) == plain.loss(fed)
    same(kept, plain)
    assert kept.made == 1
    assert kept.captured


def test_writes_from_outside_are_seen(tmp_path: Path) -> None:
    device = gpu(tmp_path)
    kept, plain, feeds = pair(device)
    memory = GpuMemory(device)
    for step in range(6):
        for executor in (kept, plain):
            if step == 2:
                executor.replace("w1", drawn(8, 12, seed=8))
            if step == 4:
                memory.store(executor.array("w3"), drawn(32, 8, seed=9))
            if step == 5:  # no copy is of this one
                memory.store(executor.array("learning_rate"), np.float32(0.01))
        assert kept.loss(feeds) == plain.loss(feeds)
    same(kept, plain)
    assert kept.made == 3


def test_networks_in_turn_that_share_weights(tmp_path: Path) -> None:
    """Two that train, and one that evaluates in between, on the same arrays."""
    device = gpu(tmp_path)
    memory = GpuMemory(device)
    both: list[list[Executor]] = []
    feeds: list[Any] = []
    for kept in (True, False):
        shared: dict[str, Any] = {}
        both.append([])
        for options in ((ms.bfloat16,), (ms.bfloat16, "adam"), (ms.bfloat16, "momentum", False)):
            graph, values, feeds = compiled(*options, kept=kept)
            placed = {name: memory.place(value) for name, value in values.items()}
            for name in ("w1", "w2", "w3", "bias"):
                placed[name] = shared.setdefault(name, placed[name])
            both[-1].append(Executor(graph, device, placed))
    order = (0, 0, 2, 0, 1, 2, 1, 0, 1, 0, 0, 2)
    losses = [[executors[i].loss(feeds) for i in order] for executors in both]
    assert losses[0] == losses[1]
    assert len({*losses[0]}) > 8
    assert [executor.made for executor in both[0]] == [3, 2, 0]  # evaluation changes nothing


def test_networks_of_their_own_keep_their_copies(tmp_path: Path) -> None:
    device = gpu(tmp_path / "device")
    executors: list[Executor] = []
    feeds: list[Any] = []
    for _ in range(2):
        graph, values, feeds = compiled()
        executors.append(Executor(graph, device, {n: GpuMemory(device).place(v) for n, v in values.items()}))
    losses = [[executor.loss(feeds) for executor in executors] for _ in range(4)]
    assert all(one == other for one, other in losses)
    assert [executor.made for executor in executors] == [1, 1]


def test_a_loss_that_is_not_finite_leaves_the_copies_as_they_are(tmp_path: Path) -> None:
    device = gpu(tmp_path)
    kept, plain, feeds = pair(device)
    messages: list[str] = []
    for executor in (kept, plain):
        with device.stream("compute"):
            device.stop[...] = 0
        executor.run(feeds)
        executor.run(feeds)
        bad = [np.full_like(feeds[0], np.inf), *feeds[1:]]
        with np.errstate(all="ignore"), pytest.raises(ExecutionError) as caught:
            np.asarray(executor.run(bad)[0])
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    same(kept, plain)
    for node, pieces in kept.plan.shadow_weights.copies.items():
        if len(pieces) == 1:
            (array,) = kept._step.arrays(node)
            found = np.empty(array.shape, array.dtype)
            kept.device.receive(array, found)
            kept.device.synchronize()
            wanted = kept.parameter(pieces[0].parameter.name).astype(array.dtype)
            np.testing.assert_array_equal(found.view(np.uint16), wanted.view(np.uint16))


def test_a_weight_too_large_for_its_copy_is_found(tmp_path: Path) -> None:
    device = gpu(tmp_path)
    kept, plain, feeds = pair(device, ms.float16)
    messages: list[str] = []
    for executor in (kept, plain):
        with device.stream("compute"):
            device.stop[...] = 0
        executor.run(feeds)
        executor.replace("w3", np.full((32, 8), 1e6, np.float32))
        with np.errstate(all="ignore"), pytest.raises(ExecutionError) as caught:
            np.asarray(executor.run(feeds)[0])
        messages.append(caught.value.message)
    assert messages[0] == messages[1]
    assert "the first such value comes from Cast" in messages[0]


def test_timed_steps_make_no_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = 'extern "C" __global__ void delay(long long cycles) {}'
    monkeypatch.setattr("mspc.runtime.gpu.step._DELAY", source)
    device = gpu(tmp_path)
    device.kernel(source, "delay")
    kept, plain, feeds = pair(device)
    assert kept.loss(feeds) == plain.loss(feeds)
    results, times = kept.run_timed(feeds)
    assert float(np.asarray(results[0])) == plain.loss(feeds)
    assert [kept.graph.nodes[t.index].op.name for t in times] == kept.launched
    kept.replace("bias", drawn(8, seed=7))
    plain.replace("bias", drawn(8, seed=7))
    results, again = kept.run_timed(feeds)
    assert float(np.asarray(results[0])) == plain.loss(feeds)
    assert len(again) == len(times)
    assert kept.made == 2


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
@pytest.mark.parametrize(("data", "tensor"), [(2, 1), (2, 2)])
def test_sharded_steps_are_those_that_make_all_copies(data: int, tensor: int, tmp_path: Path) -> None:
    ms.set_seed(1)
    network = Halves(ms.bfloat16)
    network.first.shard(((data, 1), (1, tensor)))
    network.second.shard(((data, tensor), (tensor, 1)))
    loss = nn.WithLossCell(network, nn.MSELoss())
    target = nn.TrainOneStepCell(loss, nn.Momentum(loss.trainable_params(), 0.05, 0.9))
    target.set_train()
    args = [Tensor(drawn(16, 8, seed=5)), Tensor(drawn(16, 8, seed=6))]
    config = Config(ranks=data * tensor, mode="semi_auto_parallel", dataset_strategy="full_batch", device="GPU")
    found = compile_call(target, args, config)
    full = {name: np.asarray(p.array) for name, p in found.traced.parameters.items()}

    def run(comm: LocalComm) -> list[tuple[Any, ...]]:
        folder = tmp_path / str(comm.rank)
        folder.mkdir()
        device = EmulatedGpu(folder, EmulatedNccl(comm))
        executors = [executor(comm, device, graphs[comm.rank]) for graphs in (kept, plain)]
        feeds = [arg.asnumpy() for arg in args]
        return [([float(np.asarray(each.run(feeds)[0])) for _ in range(3)], each) for each in executors]

    def executor(comm: LocalComm, device: Any, graph: Graph) -> GpuExecutor:
        own = {p.name: np.array(slice_parameter(p, full[p.name], comm.rank, "")) for p in graph.parameters
               if p.kind == "parameter"}  # fmt: skip
        own |= {p.name: np.asarray(found.traced.constants[p.name]) for p in graph.parameters if p.kind == "constant"}
        return GpuExecutor(graph, device, own, host=comm)

    kept = [found.rank_graph(rank) for rank in range(data * tensor)]
    plain = [parse(print_graph(graph), REGISTRY).main for graph in kept]
    for graph in plain:
        forget(graph)
    for (losses, one), (others, other) in World(data * tensor).run(run):
        assert losses == others
        assert one._step.anew
        assert not other._step.anew
        assert len(one._step.work) + len(one._step.anew) == len(other._step.work)
        same(one, other)
