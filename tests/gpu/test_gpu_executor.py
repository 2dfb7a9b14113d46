"""The GPU executor beside the NumPy executor: the same networks, planned memory, the real CUDA code of all kernels."""

import contextlib
import json
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.commands.report.profile import show_profile
from mspc.engine.job import Job
from mspc.engine.profile import StepProfiler
from mspc.engine.profile_options import ProfileOptions
from mspc.runtime.gpu.launches import HostRead
from tests.executors import Executor, GpuExecutor, NumPyBackend, OneRank, parse_passes, run_passes
from tests.gpu.emulated import EmulatedGpu, Event
from tests.gpu.programs import SCRIPTS, compiled
from tests.graphs import FLOAT32, INT32, INT64, REGISTRY, Builder, ExecutionError, Graph, Parameter, TensorType, parse
from tests.operators import ExpertPlaces, ExpertProduct, TupleGetItem
from tests.ops.cuda.cuda_emulator import NEEDED

HEAD = Path(__file__).parents[1] / "passes" / "fusion" / "row_pitch" / "head.ir"


def _unwritten(array: Any) -> Any:
    """The array full of what an emulated GPU's memory holds: CUDA hands out what others have left."""
    array.reshape(-1).view(np.uint8)[...] = 0xFF
    return array


def device(folder: Path) -> Any:
    """A GPU where there is one, else an emulated one."""
    with contextlib.suppress(ImportError):
        import cupy

        if cupy.cuda.is_available():
            from mspc.runtime.gpu.device import GpuDevice

            found = GpuDevice()
            pinned = found.pinned
            found.pinned = lambda shape, dtype: _unwritten(pinned(shape, dtype))
            return found
    if NEEDED is None:
        pytest.skip("neither a GPU nor g++ is there")
    return EmulatedGpu(folder)


def both(name: str, folder: Path) -> tuple[Executor, GpuExecutor, list[Any]]:
    graph, values, feeds = compiled(name, "GPU")
    ours = {key: np.array(value) for key, value in values.items()}
    gpu = GpuExecutor(graph, device(folder), ours)
    return Executor(graph, NumPyBackend(OneRank()), {k: np.array(v) for k, v in values.items()}), gpu, feeds


@pytest.mark.parametrize("name", SCRIPTS)
def test_steps_equal_numpys(name: str, tmp_path: Path) -> None:
    cpu, gpu, feeds = both(name, tmp_path)
    for step in range(4):
        fed = [feed + np.float32(0.1 * step) if feed.dtype.kind == "f" else feed for feed in feeds]
        wanted, got = cpu.run(fed), gpu.run(fed)
        for one, other in zip(wanted, got, strict=True):
            np.testing.assert_allclose(np.asarray(other), one, rtol=2e-5, atol=1e-6)
    for parameter in cpu.graph.parameters:
        if parameter.kind == "parameter":
            got, wanted = gpu.parameter(parameter.name), cpu.parameter(parameter.name)
            # Four steps of rounding in another order; entries near zero have lost digits.
            np.testing.assert_allclose(got, wanted, rtol=2e-5, atol=1e-5, err_msg=parameter.name)
    assert gpu.captured


def test_rows_with_gaps_hold_the_same_numbers(tmp_path: Path) -> None:
    graph = run_passes(parse(HEAD.read_text(encoding="utf-8"), REGISTRY).main, parse_passes("row_pitch"))
    draw = np.random.default_rng(2)
    values = {p.name: draw.standard_normal(p.shape).astype(p.tensor_type.dtype.numpy) for p in graph.parameters}
    held = {p.name: values[p.name] for p in graph.parameters if p.kind == "parameter"}
    feeds = [values[p.name] for p in graph.parameters if p.kind == "input"]
    gpu = device(tmp_path)
    gpu.takes_gaps = True
    wanted = Executor(graph, NumPyBackend(OneRank()), held).run(feeds)
    found = GpuExecutor(graph, gpu, held)
    assert sorted(place.pitch for node in graph.nodes for place in found.plan.places[node])[-1] == 520
    for _ in range(3):
        for one, other in zip(wanted, found.run(feeds), strict=True):
            difference = np.asarray(other).astype(np.float32) - one.astype(np.float32)
            assert np.abs(difference).max() <= 0.01 * np.abs(one.astype(np.float32)).max()


def test_a_resumed_run_draws_the_masks_of_its_steps(tmp_path: Path) -> None:
    cpu, gpu, feeds = both("classifier", tmp_path)
    cpu.set_step_count(5)
    gpu.set_step_count(5)
    for _ in range(4):
        wanted, got = cpu.run(feeds)[0], gpu.run(feeds)[0]
        np.testing.assert_allclose(np.asarray(got), wanted, rtol=2e-5)
    anew, _, _ = both("classifier", tmp_path)
    assert float(anew.run(feeds)[0]) != pytest.approx(float(wanted), rel=1e-3)


def test_loss_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    cpu, gpu, feeds = both("feed_forward", tmp_path)
    gpu.run(feeds)
    bad = [np.full_like(feeds[0], np.inf), *feeds[1:]]
    (loss,) = gpu.run(bad)
    before = gpu.parameter("w1")
    with pytest.raises(ExecutionError, match="the loss of step 2 is NaN on rank 0"):
        np.asarray(loss)
    cpu.run(feeds)
    np.testing.assert_allclose(before, cpu.parameter("w1"), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", ["classifier", "tables"])
def test_an_index_out_of_range_names_the_operator(name: str, tmp_path: Path) -> None:
    cpu, gpu, feeds = both(name, tmp_path)
    before = gpu.run(feeds) and {p.name: gpu.parameter(p.name) for p in gpu.graph.parameters if p.kind == "parameter"}
    for outside in (100, -100):
        bad = [feeds[0].copy(), *feeds[1:]]
        bad[0][2, 3] = outside
        for executor in (cpu, gpu):
            with pytest.raises(ExecutionError, match=r"Gather.* failed.*index (-?\d+ is out|is outside) of"):
                executor.run(bad)
    for _ in range(2):  # the step that fails leaves nothing of its inputs
        with pytest.raises(ExecutionError, match="is outside of"):
            gpu.run(bad, bad)
    for key, value in before.items():
        np.testing.assert_array_equal(gpu.parameter(key), value)


def test_a_step_that_is_looked_into_has_its_own_inputs(tmp_path: Path) -> None:
    """Those of the step behind it are on the GPU when its loss is read, whoever says that they have not changed."""
    _, gpu, feeds = both("feed_forward", tmp_path)
    origins = [object() for _ in feeds]
    gpu.run(feeds, origins)
    bad = [feeds[0], np.full_like(feeds[1], np.inf), *feeds[2:]]
    (loss,) = gpu.run(bad, [origins[0], object(), *origins[2:]])
    gpu.run([feed + 1 for feed in feeds], [object() for _ in feeds])
    with pytest.raises(ExecutionError, match=r"step 2 is .*; argument .* held such a value before the step"):
        np.asarray(loss)
    np.testing.assert_array_equal(gpu.parameter(gpu.inputs[0].name), feeds[0])


def test_results_are_kept_until_they_are_read(tmp_path: Path) -> None:
    cpu, gpu, feeds = both("feed_forward", tmp_path)
    late = [gpu.run(feeds)[0] for _ in range(6)]
    wanted = [float(cpu.run(feeds)[0]) for _ in range(6)]
    np.testing.assert_allclose([float(np.asarray(one)) for one in late], wanted, rtol=2e-5)


def test_same_origin_is_not_fed_again(tmp_path: Path) -> None:
    cpu, gpu, feeds = both("feed_forward", tmp_path)
    origins = [object() for _ in feeds]
    gpu.run(feeds, origins)
    (loss,) = gpu.run([np.full_like(feed, np.nan) for feed in feeds], origins)
    cpu.run(feeds)
    assert np.asarray(loss) == pytest.approx(float(cpu.run(feeds)[0]), rel=2e-5)


def test_large_inputs_are_staged_once_they_change(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.runtime.gpu.executor.SMALL", 0)
    cpu, gpu, feeds = both("feed_forward", tmp_path)
    for step in range(5):
        fed = [feed + np.float32(step) for feed in feeds]
        np.testing.assert_allclose(np.asarray(gpu.run(fed)[0]), cpu.run(fed)[0], rtol=2e-5)


def test_out_of_memory_names_node_bytes_and_peak(tmp_path: Path) -> None:
    class OutOfMemoryError(Exception):
        """As CuPy's."""

    _, gpu, _ = both("feed_forward", tmp_path)
    node = gpu.graph.nodes[0]
    error = OutOfMemoryError("Out of memory allocating 2,147,483,648 bytes (allocated so far: 7 bytes).")
    failure = gpu._failure(error, node, "cannot be prepared")
    assert failure.message.startswith(f"out of memory on GPU 0 (rank 0): {node.label} ({node.type}) needs 2.0 GiB")
    assert "the plan's peak is " in failure.message
    assert failure.index == 0


# Sizes that the host needs to launch products of groups of rows are copied once in a step, and early.


STEPS = 4


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[HostRead]:
    """Whatever begins to copy, as often as it does."""
    found: list[HostRead] = []
    begin = HostRead.begin
    monkeypatch.setattr(HostRead, "begin", lambda read: (found.append(read), begin(read)))
    return found


def test_ends_of_groups_are_copied_once_for_all_products(tmp_path: Path, begun: list[HostRead]) -> None:
    graph, values, feeds = compiled("experts", "GPU")
    gpu = GpuExecutor(graph, device(tmp_path), {key: np.array(value) for key, value in values.items()})
    cpu = Executor(graph, NumPyBackend(OneRank()), {key: np.array(value) for key, value in values.items()})
    for step in range(STEPS):
        fed = [feed + np.float32(0.1 * step) for feed in feeds]
        np.testing.assert_allclose(np.asarray(gpu.run(fed)[0]), cpu.run(fed)[0], rtol=2e-5)
    assert gpu.captured
    assert len(begun) == STEPS
    assert len(set(begun)) == 1


def test_ends_in_blocks_are_copied_once_behind_what_makes_them(tmp_path: Path, begun: list[HostRead]) -> None:
    graph = Graph("blocks")
    graph.attrs |= {"mode": "stand_alone", "ranks": 1}
    b = Builder(graph)
    types = {
        "ends": TensorType(INT64, (4,)), "source": TensorType(INT32, (16,)), "x": TensorType(FLOAT32, (32, 4)),
        "w": TensorType(FLOAT32, (4, 4, 4)),
    }  # fmt: skip
    ends, source, x, w = graph.parameters = [Parameter(name, type, kind="input") for name, type in types.items()]
    in_blocks = b.emit(TupleGetItem(3), b.emit(ExpertPlaces(parts=2), ends, source))
    once = b.emit(ExpertProduct(), x, w, in_blocks)
    graph.results = [b.emit(ExpertProduct(transpose_b=True), once, w, in_blocks)]
    draw = np.random.default_rng(1)
    feeds = [
        np.array([3, 9, 9, 16]), np.arange(16, dtype=np.int32), draw.standard_normal((32, 4), np.float32),
        draw.standard_normal((4, 4, 4), np.float32),
    ]  # fmt: skip
    gpu, cpu = GpuExecutor(graph, device(tmp_path), {}), Executor(graph, NumPyBackend(OneRank()), {})
    for _ in range(STEPS):
        np.testing.assert_allclose(np.asarray(gpu.run(feeds)[0]), cpu.run(feeds)[0], rtol=1e-5)
    assert len(begun) == 3 * STEPS  # what `ExpertPlaces` checks are two arrays


def test_ends_of_groups_are_made_ahead_of_what_does_not_need_them() -> None:
    graph = compiled("experts", "GPU")[0]
    names = [node.op.name for node in graph.nodes]
    assert names.index("CumSum") < names.index("Sort") < names.index("GroupedProduct")


# A profile of steps on a GPU: the same numbers, times of all launches, memory beside the plan.


class TimedGpu(EmulatedGpu):
    """An emulated GPU with a clock, which is a microsecond further at every look, and a pool that counts."""

    def __init__(self, folder: Path) -> None:
        self.used = 0
        self.looks = 0
        self.pool = SimpleNamespace(used_bytes=lambda: self.used)
        super().__init__(folder)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        array = super().empty(shape, dtype)
        self.used += array.nbytes
        return array

    def signal(self, timed: bool = False) -> Any:
        event: Any = Event()
        self.looks += 1
        event.time = self.looks * 1e-6
        return event

    def milliseconds(self, first: Any, second: Any) -> float:
        return 1000 * (second.time - first.time)

    def kernel(self, source: str, name: str) -> Any:
        return (lambda *_: None) if name == "delay" else super().kernel(source, name)


def test_timed_steps_equal_numpys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(globals(), "EmulatedGpu", TimedGpu)
    cpu, gpu, feeds = both("feed_forward", tmp_path)
    job = Job(OneRank(), OneRank())
    job.profile = StepProfiler(ProfileOptions(tmp_path / "trace.json", 3), sys.stdout, show_profile)
    for _ in range(8):
        (loss,) = job.run(gpu, feeds)
        job.step_done()
        np.testing.assert_allclose(np.asarray(loss), cpu.run(feeds)[0], rtol=2e-5)
    assert gpu.captured
    spans = [e for e in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if e["ph"] == "X"]
    assert {e["args"]["step"] for e in spans} == {3, 4, 5}
    assert all(0 <= e["dur"] < 1e5 for e in spans)
    out = capsys.readouterr().out
    assert "rank 0, median of steps 3 to 5\n" in out
    planned, used = (_bytes_of(name, out) for name in ("planned together", "in use on GPU"))
    assert planned <= used < planned + (64 << 20)


def _bytes_of(name: str, out: str) -> float:
    """Return the size in the row of a table that begins with `name`, in bytes."""
    found = re.search(rf"{name}.*?  ([\d.,]+) ([KMG]iB|B)\n", out)
    assert found is not None, out
    return float(found[1].replace(",", "")) * 1024 ** ("B", "KiB", "MiB", "GiB").index(found[2])
