"""`mspc plan` estimates the memory and the step time of a training configuration, and names its mistakes."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from mspc.analysis.cost.machine import Machine
from mspc.analysis.cost.training.alternatives import FasterRun, best
from mspc.analysis.cost.training.constants import VALUES, assumptions
from mspc.analysis.cost.training.layer_costs import SINGLE
from mspc.analysis.cost.training.model_shape import TrainingRun
from mspc.analysis.cost.training.stage_memory import StageMemory, stage_memory
from mspc.analysis.cost.training.step_time import StepTime, peak_bounds, peak_rate, step_time
from mspc.commands.report.tables import TextTable, print_line, print_table, size_text, write_report
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.readers.configurations.reading import Configuration, read_arguments, read_configuration, read_preset
from mspc.search.calibration.machine_file import machine_of

MAX_ALTERNATIVES = 5
"""Most faster settings that are listed."""
DOUBT = 0.02
"""Share of a machine's memory by which an estimate may exceed it and still fit: half of them miss by 0.8 % or less."""
GROUPS = ("weights", "gradients", "optimizer states", "activations", "loss")
"""Parts of a stage's memory with a column; the others are added up."""
DEGREES = ("tensor", "pipeline", "context", "expert", "data", "expert_tensor", "chunks")
"""Degrees of parallelism, as fields of a run."""


@dataclass(frozen=True)
class ConfigurationRequest:
    """Options of `mspc plan`. One of `file`, `arguments` and `preset` names the configuration."""

    file: Path | None = None
    arguments: Path | None = None
    preset: str = ""
    ranks: int | None = None
    machine: str = ""
    sequence: int = 0
    json: Path | None = None
    better: bool = False
    verify: bool = False


@dataclass(frozen=True)
class Estimate:
    """The estimate of a configuration on a machine."""

    stages: list[StageMemory]
    worst: StageMemory
    """The stage with the most memory."""
    time: StepTime
    tokens: float
    """Tokens per second and rank."""
    rate: float
    """Operations of the model per second and rank."""
    peak: float
    """Operations of matmuls in the run's precision per second by the data sheet (`peak_rate`)."""
    least: dict[str, float]
    """Lower bounds of the step at the rates of the data sheet (`peak_bounds`)."""


def plan(request: ConfigurationRequest) -> int:
    """Print the estimate of a configuration; return the exit status. Raise MspcError with all mistakes in it."""
    named = [request.file, request.arguments, request.preset or None]
    if sum(each is not None for each in named) != 1:
        raise MspcError("name one configuration: a file, --megatron-arguments or --preset")
    if request.verify and request.json == Path("-"):
        raise MspcError("--verify prints its verdict, so --json needs a file")
    machine = machine_of(request.machine)
    found = _read(request, machine)
    machine = machine if request.machine or not found.machine else machine_of(found.machine)
    estimate = estimate_of(found, machine)
    # The degrees of a preset are the fastest already.
    searched = request.better and not request.preset
    others = best(found.run, machine, MAX_ALTERNATIVES, found.settings.core) if searched else []
    faster = [each for each in others if each.seconds < 0.99 * estimate.time.seconds]
    if request.json != Path("-"):
        _show(found, estimate, machine)
        if request.better:
            _show_faster(found, estimate, faster)
    if request.json is not None:
        better = [
            {"settings": changes(found, each.run), "step_seconds": each.seconds, "worst_rank_bytes": each.peak}
            for each in faster
        ]
        content = _content(found, estimate, machine) | ({"better": better} if request.better else {})
        write_report(request.json, "plan", content)
    if request.verify:
        from mspc.commands.prove_plan import degrees, prove  # late: it imports the compiler and the executors

        print()
        runs: dict[tuple[int, ...], TrainingRun] = {}
        for run in (found.run, *(each.run for each in faster)):
            runs.setdefault(degrees(run), run)
        for run in runs.values():
            prove(run)
    return 0


def _read(request: ConfigurationRequest, machine: Machine) -> Configuration:
    if request.arguments is not None:
        return read_arguments(request.arguments, request.ranks, request.sequence)
    if request.preset:
        found = read_preset(request.preset, request.ranks, request.sequence)
        chosen = best(found.run, machine, 1)
        if not chosen:
            note = f"{request.ranks or found.run.ranks} ranks are too few; --ranks with more of them works"
            raise MspcError(f"{request.preset}: no degrees fit into the memory of {machine.name}", notes=[note])
        return replace(found, run=chosen[0].run)
    assert request.file is not None
    return read_configuration(request.file, request.ranks, request.sequence)


def estimate_of(found: Configuration, machine: Machine) -> Estimate:
    """Return the estimate of a configuration on a machine."""
    run = found.run
    time = step_time(run, machine)
    stages = [stage_memory(run, stage) for stage in range(run.pipeline)]
    samples = run.micro_batch * run.micro_batches * run.data
    tokens = samples * run.model.sequence / time.seconds / run.ranks
    rate = time.operations / time.seconds / run.ranks
    worst = max(stages, key=lambda stage: stage.peak)
    peak = (run.parameter == SINGLE and machine.peak.get("vector")) or peak_rate(run, machine)
    return Estimate(stages, worst, time, tokens, rate, peak, peak_bounds(run, machine))


def changes(found: Configuration, run: TrainingRun) -> dict[str, int | str]:
    """Return the settings that make another run of a configuration, by the names of its tool."""
    before, after = (_searched(each) for each in (found.run, run))
    return {found.settings.shown(name): new for name, new in after.items() if new != before[name]}


def _searched(run: TrainingRun) -> dict[str, int | str]:
    """Return the settings of a run that a search may change, by Megatron's names."""
    uneven = not run.stages and len(run.model.layers) % (run.pipeline * run.chunks) > 0
    return {
        "tensor-model-parallel-size": run.tensor, "context-parallel-size": run.context,
        "pipeline-model-parallel-size": run.pipeline, "expert-model-parallel-size": run.expert,
        "micro-batch-size": run.micro_batch, "num-virtual-stages-per-pipeline-rank": run.chunks,
        "account-for-embedding-in-pipeline-split": str(uneven).lower(),
        "use-tp-pp-dp-mapping": str(run.pipeline_inner).lower(),
        "recompute-granularity": run.recomputation.granularity or "none",
    }  # fmt: skip


def _show_faster(found: Configuration, estimate: Estimate, faster: Sequence[FasterRun]) -> None:
    if not faster:
        print_line("no other degrees, micro-batches or recomputation are faster and fit")
        return
    rows = [
        (f"{each.seconds:.4g} s", f"{estimate.time.seconds / each.seconds:.2f}", size_text(each.peak),
         ", ".join(f"{name} {value}" for name, value in changes(found, each.run).items()))
        for each in faster
    ]  # fmt: skip
    print()
    print_table(TextTable("faster settings that fit", ("step", "speed-up", "worst rank", "settings"), rows, (0, 1, 2)))
    print_line("these are estimates; --verify proves at small sizes that their degrees compute the same")


def _show(found: Configuration, estimate: Estimate, machine: Machine) -> None:
    run, time, count = found.run, estimate.time, found.run.micro_batches
    degrees = {name: getattr(run, name) for name in DEGREES[:5]}
    shown = ", ".join(f"{name} {degree}" for name, degree in degrees.items() if degree > 1)
    print_line(f"{found.name}: {found.family}, {run.ranks} ranks ({shown or 'no parallelism'}), {machine.name}")
    print_line(f"{count} micro-batch{'es' * (count > 1)} of {run.micro_batch} x {run.model.sequence} tokens a rank")
    print()
    print_table(memory_table(estimate.stages))
    worst = estimate.worst.peak + VALUES["CONTEXT"]
    limit = machine.capacity
    verdict = ": too much" if worst > limit * (1 + DOUBT) else ": maybe too much" if worst > limit else ""
    fits = f", {worst / limit:.0%} of {size_text(limit)}{verdict}" if limit else ""
    print()
    with_context = f"{size_text(worst)} with the CUDA context{fits}"
    print_line(f"worst rank: {size_text(estimate.worst.peak)} allocated, {with_context}")
    rest = (f"{part} {size_text(n)}" for part, n in estimate.worst.parts.items() if part.split(":")[0] not in GROUPS)
    print_line(f"other of it: {', '.join(rest)}")
    print()
    print_table(time_table(time))
    print()
    print_table(bounds_table(estimate))
    print()
    print_line(
        f"{time.seconds:.4g} s a step, {estimate.tokens:,.0f} tokens/s a rank, {estimate.rate / 1e12:,.4g} TFLOP/s of "
        f"the model a rank, MFU {estimate.rate / estimate.peak:.0%} of {estimate.peak / 1e12:,.0f} TFLOP/s"
    )
    print_line(f"limited by {limiting_part(time)}; {time.kernels:,} kernels of layers a rank and step")
    for note in (*found.notes, f"assumed, not measured: {'; '.join(assumptions(run))}"):
        print_line(f"note: {note}")


def memory_table(stages: Sequence[StageMemory]) -> TextTable:
    """Return the table of memory: a row for each stage, equal ones together."""
    rows: list[tuple[str, ...]] = []
    for cells, equal in itertools.groupby(stages, _memory_cells):
        first, *others = (stage.stage for stage in equal)
        rows.append((f"{first}-{others[-1]}" if others else f"{first}", *cells))
    columns = ("stage", "peak", "weights", "gradients", "states", "activations", "loss", "other")
    return TextTable("memory of a rank in GiB", columns, rows, numbers=tuple(range(1, len(columns))))


def _memory_cells(stage: StageMemory) -> tuple[str, ...]:
    sums = [sum(size for part, size in stage.parts.items() if part.split(":")[0] == group) for group in GROUPS]
    return tuple(f"{size / 2**30:,.2f}" if size else "-" for size in (stage.peak, *sums, stage.peak - sum(sums)))


def time_table(time: StepTime) -> TextTable:
    """Return the table of times: a row for each part of the step, the longest first."""
    rows = [
        (_part_text(name), f"{seconds * 1e3:,.1f} ms", f"{seconds / time.seconds:.1%}")
        for name, seconds in sorted(time.parts.items(), key=lambda part: -part[1])
        if seconds >= 0.001 * time.seconds
    ]
    return TextTable("time of a step", ("part", "time", "share"), rows, numbers=(1, 2))


def bounds_table(estimate: Estimate) -> TextTable:
    """Return the table of lower bounds of a step, one for each resource, the longest first: at the machine's rates, and
    at those of the data sheet."""
    time, least = estimate.time, estimate.least
    rows = [
        (name, f"{seconds * 1e3:,.1f} ms", f"{seconds / time.seconds:.1%}",
         f"{least[name] * 1e3:,.1f} ms" if name in least else "-")
        for name, seconds in sorted(time.bounds.items(), key=lambda bound: -bound[1])
    ]  # fmt: skip
    columns = ("resource", "at the machine's rates", "of the step", "at peak rates")
    return TextTable("no step is shorter than", columns, rows, numbers=(1, 2, 3))


def _part_text(name: str) -> str:
    """Return the name of a part of a step for people."""
    exposed = ("tensor", "expert", "context", "pipeline", "data", "network card")
    return f"exposed communication, {name}" if name in exposed else name


def limiting_part(time: StepTime) -> str:
    """Return the part that limits the step."""
    if time.host_bound:
        return "the host, which starts kernels more slowly than the device runs them"
    return _part_text(max(time.parts, key=lambda name: time.parts[name]))


def _content(found: Configuration, estimate: Estimate, machine: Machine) -> dict[str, Any]:
    run, time, worst = found.run, estimate.time, estimate.worst.peak
    return {
        "configuration": found.name, "family": found.family, "machine": machine.name, "ranks": run.ranks,
        "degrees": {name: getattr(run, name) for name in DEGREES}, "micro_batches": run.micro_batches,
        "memory": {
            "worst_rank_bytes": worst, "last_stage_bytes": estimate.stages[-1].peak, "context_bytes": VALUES["CONTEXT"],
            "capacity_bytes": machine.capacity,
            "fits": not machine.capacity or worst + VALUES["CONTEXT"] <= machine.capacity * (1 + DOUBT),
            "stages": [{"stage": s.stage, "peak_bytes": s.peak, "parts": s.parts} for s in estimate.stages],
        },
        "step_seconds": time.seconds, "parts_seconds": time.parts,
        "lower_bound_seconds": max(estimate.least.values(), default=0.0), "lower_bounds": estimate.least,
        "machine_bound_seconds": max(time.bounds.values()), "machine_bounds": time.bounds,
        "tokens_per_second_and_rank": estimate.tokens,
        "model_flops_per_second_and_rank": estimate.rate,
        "model_flops_utilisation": estimate.rate / estimate.peak, "host_bound": time.host_bound,
        "kernels": time.kernels, "notes": list(found.notes), "assumptions": assumptions(run),
    }  # fmt: skip
