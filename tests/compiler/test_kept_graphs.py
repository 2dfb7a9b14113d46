"""Ranks' graphs on disk: a second start reads what the first has made, and nothing else that looks like it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.compiler import driver, kept_graphs
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, compile_traced, trace_call
from mspc.compiler.pipeline import OPTIONAL
from mspc.compiler.rank_graphs import RankGraphs
from mspc.ir.compare import difference
from mspc.ir.graph import Graph
from mspc.mindspore_api import context
from mspc.passes.base import VERIFY
from mspc.runtime.gpu.executor import GpuExecutor
from tests.conftest import HANG
from tests.gpu.emulated import EmulatedGpu

PassesRan = Callable[[], int]


class Tower(nn.Cell):
    """Layers one by one, with random masks, a norm and numbers of several kinds."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Dense(8, 8)
        self.norm = nn.LayerNorm((8,))
        self.dropout = nn.Dropout(p=0.25)
        self.last = nn.Dense(8, 4)

    def construct(self, x: Any) -> Any:
        return self.last(self.dropout(ops.gelu(self.norm(self.first(x))) * 0.3))


class Turns(nn.Cell):
    """A loop whose turns depend on values."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(8, 8)

    def construct(self, x: Any) -> Any:
        while x.sum() < 4.0:
            x = ops.abs(self.dense(x)) + 1.0
        return x


@pytest.fixture(autouse=True)
def small_graphs_are_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv(VERIFY)
    monkeypatch.setattr(kept_graphs, "MIN_NODES", 1)


def counted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> PassesRan:
    """How often a function ran so far."""
    ran: list[int] = []
    made = getattr(owner, name)

    def counting(*arguments: Any) -> Any:
        ran.append(1)
        return made(*arguments)

    monkeypatch.setattr(owner, name, counting)
    return lambda: len(ran)


@pytest.fixture
def passes_ran(monkeypatch: pytest.MonkeyPatch) -> PassesRan:
    """How often the passes of a rank ran so far."""
    return counted(monkeypatch, RankGraphs, "executable")


@pytest.fixture
def shared_ran(monkeypatch: pytest.MonkeyPatch) -> PassesRan:
    """How often the passes that all ranks share ran so far."""
    return counted(monkeypatch, driver, "run_shared_passes")


def step_of(
    net: nn.Cell, ranks: int = 1, mode: str = "stand_alone", device: str = "CPU"
) -> Callable[[bool], Compiled]:
    """Compiles a training step of a network; told whether graphs are kept."""
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params())).set_train()
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=ranks)
    config = replace(Config.from_context(context.freeze(step), ranks, ""), device=device)
    inputs = [Tensor(np.ones((4, 8), np.float32)), Tensor(np.ones((4, 4), np.float32))]
    return lambda keeps: compile_traced(trace_call(step, describe_call(inputs, []), config), keeps=keeps)


def forward_of(net: nn.Cell) -> Callable[[bool], Compiled]:
    config = Config.from_context(context.freeze(net), 1, "")
    call = describe_call([Tensor(np.ones((4, 8), np.float32))], [])
    return lambda keeps: compile_traced(trace_call(net, call, config), keeps=keeps)


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "mspc" / "graphs").glob("*"))


def whole(graph: Graph) -> Graph:
    """A graph whose nodes are made."""
    assert graph.nodes
    return graph


def test_a_second_start_reads_the_same_graph(passes_ran: PassesRan, tmp_path: Path) -> None:
    compiled = step_of(Tower())
    plain = whole(compiled(False).rank_graph(0))
    assert files(tmp_path) == []
    made = whole(compiled(True).rank_graph(0))
    assert passes_ran() == 2
    found = compiled(True).rank_graph(0)
    assert passes_ran() == 2
    assert len(files(tmp_path)) == 1
    assert difference(plain, made) == difference(plain, found) == ""
    assert any(node.frames for node in found.nodes)


def test_of_one_rank_the_shared_passes_run_when_they_are_needed(shared_ran: PassesRan) -> None:
    compiled = step_of(Tower())
    first, second = compiled(True), None
    whole(first.rank_graph(0))
    assert shared_ran() == 1
    second = compiled(True)
    assert second.rank_graph(0).nodes
    assert second.compile_id == first.compile_id
    assert second.placements == first.placements == [None]
    assert len(second.results) == len(first.graph.results)
    assert second.stages == first.stages
    assert shared_ran() == 1
    assert difference(first.graph, second.graph) == ""
    assert shared_ran() == 2
    assert [p.name for p in second.inputs] == [p.name for p in first.inputs]
    assert shared_ran() == 2


def test_of_several_ranks_the_shared_passes_run(shared_ran: PassesRan) -> None:
    compiled = step_of(Tower(), 2, "data_parallel")
    for _ in range(2):
        whole(compiled(True).rank_graph(0))
    assert shared_ran() == 2


class Attention(nn.Cell):
    def __init__(self, mask: Any) -> None:
        super().__init__()
        self.mask = Tensor(mask)

    def construct(self, x: Any) -> Any:
        return ops.softmax(ops.matmul(x, x.T) + self.mask)


def test_what_passes_read_in_constants_tells_graphs_apart() -> None:
    hidden = np.triu(np.full((32, 32), -1e9, np.float32), 1)
    programs = set[str]()
    for mask in (hidden, np.zeros((32, 32), np.float32), np.triu(hidden, 2)):
        net = Attention(mask)
        config = replace(Config.from_context(context.freeze(net), 1, ""), device="GPU")
        call = describe_call([Tensor(np.ones((32, 8), np.float32))], [])
        kept = compile_traced(trace_call(net, call, config), keeps=True).kept
        assert kept is not None
        programs.add(kept.program)
    assert len(programs) == 3


def test_a_gpu_is_asked_for_the_same_kernels(passes_ran: PassesRan, tmp_path: Path) -> None:
    compiled = step_of(Tower(), device="GPU")
    asked: list[list[tuple[str, str]]] = []
    for keeps in (False, True, True):
        graph = compiled(keeps).rank_graph(0)
        device = EmulatedGpu(tmp_path / "kernels")
        kinds = {p.name: p.tensor_type for p in graph.parameters if p.kind != "input"}
        GpuExecutor(graph, device, {name: device.zeros(t.shape, t.dtype.numpy) for name, t in kinds.items()})
        asked.append(list(device.sources))
    assert passes_ran() == 2
    assert len(asked[0]) > 5
    assert asked[0] == asked[1] == asked[2]


def test_of_graphs_with_stages_the_passes_run(passes_ran: PassesRan) -> None:
    compiled = step_of(Tower())
    compiled(True).rank_graph(0)
    second = compiled(True)
    stages: list[str] = []
    second.rank_graph(0)
    second.rank_graph(0, lambda stage: stages.append(stage.name))
    assert stages == [name for name in second.rank_graphs.passes if name not in OPTIONAL]
    assert passes_ran() == 1


@pytest.mark.parametrize("mode", ["data_parallel", "semi_auto_parallel"])
def test_every_rank_has_its_own(mode: str, passes_ran: PassesRan, tmp_path: Path) -> None:
    compiled = step_of(Tower(), 2, mode)
    first = compiled(True)
    made = [whole(first.rank_graph(rank)) for rank in range(2)]
    second = compiled(True)
    assert [difference(made[rank], second.rank_graph(rank)) for rank in range(2)] == ["", ""]
    assert passes_ran() == 2
    assert len(files(tmp_path)) == 2


def test_graphs_that_nodes_run_are_kept_with_them(passes_ran: PassesRan) -> None:
    compiled = forward_of(Turns())
    made = whole(compiled(True).rank_graph(0))
    found = compiled(True).rank_graph(0)
    assert len(found.graphs()) > 1
    assert difference(made, found) == ""
    assert passes_ran() == 1


@pytest.mark.parametrize("damage", ["cut off", "a bit", "nothing", "edited", "no graph"])
def test_damaged_files_are_made_anew(damage: str, passes_ran: PassesRan, tmp_path: Path) -> None:
    compiled = step_of(Tower())
    made = whole(compiled(True).rank_graph(0))
    (path,) = files(tmp_path)
    right = path.read_bytes()
    if damage == "no graph":
        kept_graphs.write_text(path, "subgraph @x() {\n  %0 = ")
    else:
        path.write_bytes({
            "cut off": right[:-40], "a bit": right[:500] + bytes([right[500] ^ 1]) + right[501:], "nothing": b"",
            "edited": right.replace(b"keep_prob=0.75", b"keep_prob=0.25").replace(b"p: 0.25", b"p: 0.75"),
        }[damage])  # fmt: skip
    assert path.read_bytes() != right
    assert difference(made, compiled(True).rank_graph(0)) == ""
    assert passes_ran() == 2
    assert path.read_bytes() == right


def test_another_mspc_reads_none(passes_ran: PassesRan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiled = step_of(Tower())
    whole(compiled(True).rank_graph(0))
    monkeypatch.setattr(kept_graphs, "_versions", lambda: ("of another one",))
    whole(compiled(True).rank_graph(0))
    assert passes_ran() == 2
    assert len(files(tmp_path)) == 2


def test_a_changed_source_is_another_mspc(tmp_path: Path) -> None:
    folder = tmp_path / "sources"
    (folder / "passes" / "tests").mkdir(parents=True)
    source = folder / "passes" / "fold.py"
    source.write_text("one = 1")
    (folder / "passes" / "notes.txt").write_text("")
    (folder / "passes" / "tests" / "test_fold.py").write_text("")
    before = list(kept_graphs.sources(str(folder)))
    assert [path for path, _, _ in before] == [str(source)]
    os.utime(source, ns=(0, 0))
    assert list(kept_graphs.sources(str(folder))) != before


def test_where_passes_are_checked_they_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VERIFY, "1")
    whole(step_of(Tower())(True).rank_graph(0))
    assert files(tmp_path) == []


def test_small_graphs_are_not_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(kept_graphs, "MIN_NODES", 10_000)
    whole(step_of(Tower())(True).rank_graph(0))
    assert files(tmp_path) == []


def test_a_folder_that_takes_no_file_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "mspc").write_text("in the way")
    assert whole(step_of(Tower())(True).rank_graph(0)).nodes


def test_what_was_not_used_for_longest_goes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    steps = [step_of(Tower()), step_of(nn.Dense(8, 4)), forward_of(nn.Dense(8, 4))]
    sizes = list[int]()
    for number, compiled in enumerate(steps[:2]):
        whole(compiled(True).rank_graph(0))
        new = max(files(tmp_path), key=lambda path: path.stat().st_mtime_ns)
        sizes.append(new.stat().st_size)
        os.utime(new, ns=(number + 1, number + 1))
    first, second = sorted(files(tmp_path), key=lambda path: path.stat().st_mtime_ns)
    steps[0](True).rank_graph(0)  # the older one is used again
    monkeypatch.setattr(kept_graphs, "MAX_BYTES", sum(sizes))
    whole(steps[2](True).rank_graph(0))
    assert first.exists()
    assert not second.exists()
    assert len(files(tmp_path)) == 2


SCRIPT = """
import sys
import numpy as np
import mspc as ms
from mspc import nn
from mspc.compiler import driver, kept_graphs
from mspc.compiler.rank_graphs import RankGraphs

kept_graphs.MIN_NODES = 1
made = RankGraphs.executable

def told(self, rank):
    print("the passes ran")
    return made(self, rank)

RankGraphs.executable = told
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
ms.set_seed(1)
net = nn.SequentialCell(nn.Dense(8, 8), nn.Dropout(p=0.5), nn.Dense(8, 4))
net[0].matmul.shard(((2, 1), (1, 1)))
step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params())).set_train()
x, y = (ms.Tensor(np.linspace(0, 1, 4 * n, dtype=np.float32).reshape(4, n)) for n in (8, 4))
print([float(step(x, y).asnumpy()).hex() for _ in range(3)])
"""


@pytest.mark.thorough
def test_ranks_of_mpirun_train_as_before(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    said = list[list[str]]()
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-m", "mspc", "run", str(script), "--ranks", "2"], capture_output=True, text=True,
            check=True, timeout=HANG,
        )  # fmt: skip
        said.append(done.stdout.splitlines())
    first, second = said
    assert sum("the passes ran" in line for line in first) == 2
    assert not any("the passes ran" in line for line in second)
    assert [line for line in first if "0x" in line] == [line for line in second if "0x" in line] != []
    assert len(files(tmp_path)) == 2
