"""`mspc calibrate --time-limit`: what is missed most is timed first, and nothing takes another element type's rates."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from mspc.analysis.cost.machine import DRAWS, ELEMENTWISE, H200, LIKE, PRODUCTS, Machine, Rate
from mspc.engine.job import Job
from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT32
from mspc.runtime.device_choice import DeviceChoice, Hardware, SharedMemory
from mspc.search.calibration.measured import ON_CPU, ON_GPU, calibrate
from mspc.search.calibration.timed_operators import TimingSizes, by_urgency, timing_tasks
from mspc.search.calibration.timer import Timer
from tests.executors import OneRank, World
from tests.search.calibration.test_calibration import SMALL
from tests.search.calibration.test_timer import CALM, put_in

EVERY_KIND = replace(
    ON_GPU, products=(64, 128), images=(((4, 16, 8),), ((8, 16, 8),)), sequences=(32,),
    touched=(1 << 14, 1 << 22, 1 << 24), sent=(1 << 10, 1 << 16, 1 << 20), copies=(), rotated=0, settling=0.0,
)  # fmt: skip
KINDS = list(dict.fromkeys(timed.kind for timed in timing_tasks(EVERY_KIND)))
RATES = {"BFloat16": 8e11, "Float32": 5e10, "TF32": 4e11, "Float64": 6e10}
KNOWN = replace(
    H200, device="CPU", work={PRODUCTS: {name: Rate.of(rate) for name, rate in RATES.items()}}, ranks_per_host=0
)


def pretended(monkeypatch: pytest.MonkeyPatch, begun: int, comm: Any = None) -> tuple[Machine, list[str]]:
    """(what a machine of known rates is measured to be where the time is over after so many questions for it, what was
    timed)."""
    put_in(monkeypatch, KNOWN, lambda: CALM)
    asked: dict[int, int] = {}

    def is_over(timer: Timer, _: float, limit: float) -> bool:
        asked[timer.job.rank] = asked.get(timer.job.rank, 0) + 1
        return bool(limit) and asked[timer.job.rank] > begun

    monkeypatch.setattr(Timer, "is_over", is_over)
    said: list[str] = []
    comm = comm or OneRank()
    job = Job(comm, comm, hardware=Hardware(local_rank=comm.rank, simulated=comm.size > 1))
    return calibrate(job, "here", said.append, EVERY_KIND, limit=60.0), said


def places(sizes: TimingSizes) -> list[tuple[str, str]]:
    return [(timed.kind, timed.rates) for timed in by_urgency(list(timing_tasks(sizes)))]


@pytest.mark.parametrize("sizes", [ON_CPU, ON_GPU])
def test_all_kinds_are_timed_once_those_that_others_are_like_first(sizes: TimingSizes) -> None:
    every = [(timed.kind, timed.rates) for timed in timing_tasks(sizes)]
    order = places(sizes)
    assert sorted(order) == sorted(every)
    assert len(set(order)) == len(order)
    kinds = list(dict.fromkeys(kind for kind, _ in order))
    for kind in kinds:
        assert [dtype for each, dtype in order if each == kind] == [dtype for each, dtype in every if each == kind]
    changes = [kind for kind, following in pairwise([*(kind for kind, _ in order), ""]) if kind != following]
    assert changes == kinds, "all element types of a kind follow each other"
    for place, kind in enumerate(kinds):
        assert LIKE.get(kind) not in kinds[place:], "a kind that another one is like is timed before that"


def test_the_order_of_a_gpu() -> None:
    order = places(ON_GPU)
    assert order[:10] == [
        (PRODUCTS, "BFloat16"), (PRODUCTS, "Float32"), (PRODUCTS, "TF32"), (PRODUCTS, "Float64"),
        ("attention", "BFloat16"), ("attention", "Float32"), ("attention", "TF32"),
        ("attention_gradients", "BFloat16"), ("attention_gradients", "Float32"), ("attention_gradients", "TF32"),
    ]  # fmt: skip
    kinds = list(dict.fromkeys(kind for kind, _ in order))
    assert kinds[3:6] == ["convolutions", "convolution_inputs", "convolution_filters"]
    assert kinds[6:8] == [ELEMENTWISE, DRAWS], "draws are timed beside arithmetic whose rate is known"
    assert kinds[8:15] == [
        "deep_products", "flat_products", "causal_attention", "causal_attention_gradients", "pointwise_convolutions",
        "pointwise_convolution_inputs", "pointwise_convolution_filters",
    ]  # fmt: skip


@pytest.mark.parametrize("begun", [0, 5, 1000])
def test_what_is_left_out(begun: int, monkeypatch: pytest.MonkeyPatch) -> None:
    machine, said = pretended(monkeypatch, begun)
    timed = said[said.index("links") + 1 :]
    names = [f"{kind.replace('_', ' ')} of {dtype}" for kind, dtype in places(EVERY_KIND)]
    assert timed == names[: 4 + begun], "products of every element type, whatever the time"
    left = names[4 + begun :]
    assert machine.source.endswith(f"no time was left for {', '.join(left)}" if left else "on 1 rank")
    assert list(machine.work) == [kind for kind in KINDS if kind in machine.work], "in the order of files"
    assert list(machine.work[PRODUCTS]) == ["BFloat16", "Float32", "TF32", "Float64"]
    assert set(machine.traffic) == {"column_sums", "updates", "row_sums"}
    assert machine.other_products == machine.work[PRODUCTS]["Float32"], "the slowest"
    for kind in KINDS[:4]:
        for rates, dtype in (("BFloat16", BFLOAT16), ("Float32", FLOAT32), ("TF32", FLOAT32)):
            own = replace(machine, rounds=rates == "TF32")
            assert own.work_rate(kind, dtype).points[-1][1] == pytest.approx(RATES[rates], rel=0.25)


def test_ranks_leave_out_the_same_and_links_never(monkeypatch: pytest.MonkeyPatch) -> None:
    found = World(2).run(lambda comm: pretended(monkeypatch, 1, comm)[0])
    assert len({tuple(machine.work) for machine in found}) == 1
    assert all(set(machine.link.own) == {"AllGather", "ReduceScatter", "AlltoAll"} for machine in found)


def test_gpus_time_products_as_they_are_and_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The executor that is asked for says which products may be rounded, and nothing else that is timed may be."""
    asked: dict[bool, list[str]] = {False: [], True: []}

    class Executor:
        def run(self, _: Any) -> None: ...

    def executor(graph: Any, *_: Any, tf32: bool, **__: Any) -> Executor:
        asked[tf32] += {f"{node.op.name} {node.inputs[0].type.dtype.name}" for node in graph.nodes}
        return Executor()

    def done(*_: Any) -> None: ...

    hardware: Any = SimpleNamespace(
        choose=done, agree=done, prepare=done, choice=DeviceChoice("gpu", 0), local_rank=0, memory=SharedMemory(),
        executor=executor, release=done,
    )
    sizes = replace(SMALL, rounds=True)
    machine = calibrate(Job(OneRank(), OneRank(), hardware=hardware), "here", sizes=sizes)
    assert list(machine.work[PRODUCTS]) == ["Float32", "TF32"]
    assert [set(rates) for kind, rates in machine.work.items() if kind != PRODUCTS] == [{"Float32", "TF32"}] * 6
    assert {name.partition(" ")[2] for name in asked[True]} == {"Float32"}
    assert set(asked[True]) < set(asked[False])
    assert "Add Float32" not in asked[True]
    assert machine.source == "measured by mspc calibrate on 1 rank"
    put_in(monkeypatch, KNOWN, lambda: CALM)
    machine = calibrate(Job(OneRank(), OneRank()), "here", sizes=SMALL)
    assert list(machine.work[PRODUCTS]) == ["Float32"], "CPUs do not round"


def test_cpus_compute_halves_as_float32() -> None:
    work = {PRODUCTS: {"Float32": Rate.of(2e9), "Float64": Rate.of(1e9)}}
    cpu = replace(H200, work=work, device="CPU", other_products=Rate.of(1e9))
    gpu = replace(cpu, device="GPU")
    assert [cpu.work_rate("attention", dtype).at(1) for dtype in (FLOAT16, BFLOAT16, FLOAT64)] == [2e9, 2e9, 1e9]
    assert [gpu.known_rate("attention", dtype) for dtype in (FLOAT16, BFLOAT16, INT32)] == [None] * 3
    own = replace(cpu, work={PRODUCTS: work[PRODUCTS] | {"Float16": Rate.of(3e9)}})
    assert own.work_rate(PRODUCTS, BFLOAT16).at(1) == 3e9, "the other of the two goes first"
    assert gpu.known_rate("deep_products", FLOAT64) == Rate.of(1e9)


def test_every_kind_is_timed_by_its_own_operators() -> None:
    """The order does not mix up what is timed of which kind."""

    def sizes_of(timed: Sequence[Any]) -> dict[tuple[str, str], int]:
        return {(each.kind, each.rates): sum(map(len, each.groups())) for each in timed}

    every = list(timing_tasks(EVERY_KIND))
    assert sizes_of(by_urgency(every)) == sizes_of(every)
