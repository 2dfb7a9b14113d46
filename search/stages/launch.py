"""Searches a launch in stages: the network without stages, and all numbers of stages that are asked for."""

from __future__ import annotations

from dataclasses import replace

from mspc.api.settings import SHARDED
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError
from mspc.plans.files.plan_file import PlanFile
from mspc.plans.files.stage_table import StagePlan
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.plans.table import plans_for
from mspc.search.stages.asked import AskedStages, check_divides
from mspc.search.stages.network import StagedNetwork
from mspc.search.stages.rows import StageRow
from mspc.search.stages.table import StagePlans, StageSearch, Tell
from mspc.search.stages.wrapped import cuts_batch, wrap_network

LARGE = 1000
"""Operators of all micro-batches above which the network without stages is not compiled: there each has copies of all
that is in it."""
ONE_STAGE = "no stages"


def of_one_stage(
    captured: CapturedCall, asked: PlanRequest, numbers: AskedStages
) -> tuple[CapturedCall, PlanRequest]:  # fmt: skip
    """(the launch without stages, what is asked of the ranks of one stage), for one number of stages. Raises
    MspcError."""
    if len(numbers.stages) != 1:
        raise MspcError(
            "--explain tells of the layouts within a stage, and stages of several sizes are asked for",
            notes=["give one number with --stages"],
        )  # fmt: skip
    (stages,) = numbers.stages
    check_divides(stages, asked.ranks)
    if not numbers.fits(stages, asked.ranks):
        raise numbers.no_fit(asked.ranks, str(stages))
    flat = replace(captured, context=replace(captured.context, pipeline_stages=1))
    return flat, replace(asked, ranks=asked.ranks // stages)


def search_in_stages(captured: CapturedCall, asked: PlanRequest, numbers: AskedStages, tell: Tell) -> StagePlans:
    """All rows of a launch, of which `numbers.top` are shown. Raises MspcError where nothing is found, and for numbers
    that are not possible."""
    own = captured.context.pipeline_stages
    flat = replace(captured, context=replace(captured.context, pipeline_stages=1))
    config = asked.config(flat)
    if config.mode not in SHARDED:
        config = replace(config, mode="auto_parallel", dataset_strategy="full_batch")
    network = StagedNetwork(captured, config, asked.free)
    is_cut = cuts_batch(captured)
    if not is_cut and not numbers.micro_batches:
        raise MspcError(
            "the script trains in no micro-batches, so that there is no number of them to search stages for",
            notes=["wrap the network in a PipelineCell, or give --micro-batches to see what that would come to"],
            kind=RuntimeError,
        )  # fmt: skip
    one, notes = None, list[str]()
    if not is_cut:
        one = _one_stage(flat, asked, 1, own, tell) if numbers.wants(1, config.ranks) else None
        wrap_network(captured)
        notes.append("the script has no PipelineCell: rows with stages are of it as if it had one, which a plan needs")
    stages, counts = numbers.numbers(network)
    if is_cut and 1 in stages:
        operators = network.operators(True) * network.micro_batches
        if operators > LARGE:
            notes.append(
                f"{ONE_STAGE}: not compiled, as the {network.micro_batches} micro-batches of one stage are so many "
                f"copies, of {operators} operators together"
            )
        else:
            one = _one_stage(flat, asked, network.micro_batches, own, tell)
    search = StageSearch(network, asked.machine, asked.memory, own if own > 1 else 0, numbers.top)
    if one is not None:
        search.add(*one)
    search.found.refused += notes
    return search.plans(stages, counts, tell)


def _one_stage(
    captured: CapturedCall, asked: PlanRequest, micro_batches: int, own: int, tell: Tell
) -> tuple[StageRow, PlanFile] | None:  # fmt: skip
    """The quickest plan of the network as it stands, on all ranks; None where none fits the memory. own: the script's
    number of stages, which the plan takes back."""
    try:
        plans = plans_for(captured, asked, tell)
    except MspcError:
        if not asked.memory:
            raise
        return None
    plan = plans.plans[0]
    row = StageRow(
        ONE_STAGE, plan.ranks, 1, "-", micro_batches, (), plan.step, 0.0, plan.nbytes, plan.memory, compiled=1,
        note=f"is the plan of {plan.name}", cut_further=plan.cut_further, recompute=plan.recompute,
        degrees=plan.remarks.degrees, on_host=plan.remarks.on_host, offload=tuple(plan.remarks.offload),
        offload_states=plan.remarks.offload_states, missing_rates=plan.remarks.missing_rates,
    )  # fmt: skip
    file = plans.files[plan.name]
    is_said = own > 1  # else there is nothing to take back
    return row, replace(file, stages=StagePlan(1, "1f1b", micro_batches)) if is_said else file
