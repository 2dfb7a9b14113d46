"""Other settings of a training run: degrees and micro-batches that divide its sizes, judged by the same estimate."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.training.constants import VALUES
from mspc.analysis.cost.training.model_shape import AttentionShape, Recomputation, TrainingRun
from mspc.analysis.cost.training.stage_memory import stage_memory
from mspc.analysis.cost.training.step_time import step_time
from mspc.ir.late_dataclass import dataclass

MICRO_BATCHES = TENSOR = (1, 2, 4, 8)
EXPERTS = (1, 2, 4, 8, 16, 32, 64)
MAX_STAGES = 16


@dataclass(frozen=True, slots=True)
class FasterRun:
    """A run with its estimated step in seconds and the bytes of its worst rank, the CUDA context included."""

    run: TrainingRun
    seconds: float
    peak: int


def alternatives(run: TrainingRun) -> Iterator[TrainingRun]:
    """Yield the runs of the same model and global batch with other degrees, micro-batches and recomputation."""
    attention = [m for layer in run.model.layers for m in layer.mixers if isinstance(m, AttentionShape)]
    heads = attention[0].heads if attention else run.model.hidden
    groups = attention[0].groups if attention else heads
    count = len(run.model.layers)
    experts = max((layer.feed.experts for layer in run.model.layers if layer.feed is not None), default=0)
    stages = [run.pipeline] if run.stages or run.model.encoders else range(1, MAX_STAGES + 1)
    recomputations = {run.recomputation, Recomputation(), Recomputation("full")}
    contexts = sorted({1, run.context})
    degrees = [n for n in EXPERTS if experts % n == 0 and n <= run.ranks] if experts else [run.expert]
    for tensor, pipeline, context in itertools.product(TENSOR, stages, contexts):
        if heads % tensor or groups % tensor or run.ranks % (tensor * pipeline * context) or pipeline > count:
            continue
        for chunks, micro, expert in itertools.product(_chunks(run, pipeline, count), MICRO_BATCHES, degrees):
            changed = replace(
                run, tensor=tensor, pipeline=pipeline, context=context, chunks=chunks, micro_batch=micro, expert=expert,
                sequence_parallel=tensor > 1, expert_tensor=1 if experts else tensor, group=0, divided=0,
            )  # fmt: skip
            if _divides(changed):
                yield from (replace(changed, recomputation=how) for how in sorted(recomputations, key=repr))


def _chunks(run: TrainingRun, pipeline: int, count: int) -> list[int]:
    if run.stages:
        return [run.chunks]
    if count % pipeline:
        return [1, 2, 4]
    each = count // pipeline
    return [1] if pipeline == 1 else [n for n in range(1, each + 1) if each % n == 0]


def _divides(run: TrainingRun) -> bool:
    least = run.micro_batch * run.data
    if run.global_batch % least or run.ranks % (run.expert * run.expert_tensor * run.pipeline):
        return False
    return run.chunks == 1 or run.micro_batches % run.pipeline == 0


def best(run: TrainingRun, machine: Machine, most: int, mapped: bool = False) -> list[FasterRun]:
    """Return the fastest alternatives that fit into the machine's memory, the fastest first; any that fits is taken if
    the machine's memory is not known. mapped: stages may be inner or outer."""
    timed = [(step_time(other, machine).seconds, repr(other.recomputation), other) for other in alternatives(run)]
    found: list[FasterRun] = []
    for seconds, _, other in sorted(timed, key=lambda each: each[:2]):
        peak = max(stage_memory(other, stage).peak for stage in range(other.pipeline)) + VALUES["CONTEXT"]
        if not machine.capacity or peak <= machine.capacity:
            found.append(FasterRun(other, seconds, peak))
        if len(found) == most:
            break
    for each in [each for each in found if mapped and each.run.pipeline > 1]:
        other = replace(each.run, pipeline_inner=not each.run.pipeline_inner)
        found.append(FasterRun(other, step_time(other, machine).seconds, each.peak))
    return sorted(found, key=lambda each: each.seconds)[:most]
