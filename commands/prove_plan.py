"""Proof of a plan's degrees: `verify --scale` of a model with the sizes of the configuration, at small sizes."""

from __future__ import annotations

import json
import math
import shutil
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from mspc.analysis.cost.training.model_shape import MambaShape, ModelLayer, TrainingRun
from mspc.analysis.cost.training.stage_memory import stage_layers
from mspc.commands.compile import CompileOptions
from mspc.commands.report.scale import report_scale
from mspc.commands.report.tables import print_line
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import of_script
from mspc.runtime.available_memory import explain_memory_errors

SCRIPT = Path(__file__).with_name("planned_model.py.txt")
"""A script of users, which the package's own code is not: it is copied out before it is captured."""


def not_proved(run: TrainingRun) -> str:
    """Return the parts of a run that the script of proofs lacks, or ""."""
    model = run.model
    found = {
        "an encoder in stages": model.encoders and run.pipeline > 1,
        f"a {model.family} model": model.family == "llava",
        "Mamba layers with context parallelism": run.context > 1
        and any(isinstance(mixer, MambaShape) for layer in model.layers for mixer in layer.mixers),
    }
    return ", ".join(name for name, there in found.items() if there)


def degrees(run: TrainingRun) -> tuple[int, ...]:
    """Return the degrees of a run that change the program that is proved."""
    return run.tensor, run.pipeline, run.context, run.expert, run.expert_tensor


def _kind(layer: ModelLayer) -> tuple[object, ...]:
    """Return the kind of a layer: layers of one kind differ in sizes only."""
    return *map(type, layer.mixers), layer.feed and layer.feed.experts > 0


def prove(run: TrainingRun) -> None:
    """Prove that a step of all ranks computes what one device computes, and print the verdict. Two data-parallel ranks
    stand for all, or as many as share the experts, one layer of each kind for those of a stage, and stages have one
    chunk. Raise ExecutionError if a value differs, MspcError if the program cannot be compiled or made small."""
    begin = time.perf_counter()
    missing, block = not_proved(run), run.tensor * run.context
    data = math.lcm(min(run.data, 2) * block, run.expert * run.expert_tensor) // block
    shown = f"tensor {run.tensor}, pipeline {run.pipeline}, data {run.data}"
    shown += f", context {run.context}" * (run.context > 1) + f", expert {run.expert}" * (run.expert > 1)
    if missing:
        print_line(f"not proved: {shown}: the configuration has {missing}")
        return
    model, stages = run.model, [[i for chunk in stage for i in chunk] for stage in stage_layers(run)]
    kinds = [{_kind(model.layers[i]): model.layers[i] for i in stage if i >= model.encoders} for stage in stages]
    description = {
        "width": model.hidden, "rows": model.vocabulary, "data": data, "context": run.context, "tensor": run.tensor,
        "expert": run.expert, "expert_tensor": run.expert_tensor, "divided": run.sharding != "none" and data > 1,
        "encoder": asdict(model.layers[0]) if model.encoders else None,
        "stages": [[asdict(layer) for layer in stage.values()] for stage in kinds],
    }  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        script = shutil.copy(SCRIPT, Path(folder) / SCRIPT.stem)
        options = CompileOptions(ranks=data * block * run.pipeline, script_arguments=(json.dumps(description),))
        given = of_script(str(script), options)
        with explain_memory_errors("what ranks hold at small sizes"):
            found = given.proved(0)
    print_line(f"a step with {shown} beside one of one device:")
    report_scale(found, None, Loudness(quiet=True), 0, time.perf_counter() - begin, given.notes)
