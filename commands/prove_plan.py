"""Proof of a plan's degrees: `verify --scale` of a model with the sizes of the configuration, at small sizes."""

from __future__ import annotations

import math
import shutil
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from mspc.analysis.cost.training.model_shape import AttentionShape, TrainingRun
from mspc.commands.compile import CompileOptions
from mspc.commands.report.scale import report_scale
from mspc.commands.report.tables import print_line
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import of_script
from mspc.runtime.available_memory import explain_memory_errors

KINDS = {"bert": "encoder", "t5": "both"}
"""Arguments of the script for families of models that are not decoders."""
SCRIPT = Path(__file__).with_name("planned_llama.py.txt")
"""A script of users, which the package's own code is not: it is copied out before it is captured."""


def not_proved(run: TrainingRun) -> str:
    """Return the parts of a run that the script of proofs lacks, or ""."""
    layers, family = run.model.layers, run.model.family
    mixers = [mixer for layer in layers for mixer in layer.mixers]
    found = {
        "an encoder in stages": run.model.encoders and run.pipeline > 1,
        f"a {family} model": family not in ("gpt", *KINDS),
        "layers without attention": not all(isinstance(mixer, AttentionShape) for mixer in mixers),
        "latent attention": any(isinstance(mixer, AttentionShape) and mixer.key_rank for mixer in mixers),
        "context parallelism": run.context > 1,
    }
    return ", ".join(name for name, there in found.items() if there)


def prove(run: TrainingRun) -> None:
    """Prove that a step of all ranks computes what one device computes, and print the verdict. Two data-parallel ranks
    stand for all, or as many as share the experts, one layer for those of a stage, and stages have one chunk. Raise
    ExecutionError if a value differs, MspcError if the program cannot be compiled or made small."""
    begin = time.perf_counter()
    missing = not_proved(run)
    data = math.lcm(min(run.data, 2) * run.tensor, run.expert * run.expert_tensor) // run.tensor
    small = replace(run, ranks=data * run.tensor * run.pipeline)
    degrees = f"tensor {run.tensor}, pipeline {run.pipeline}, data {run.data}"
    degrees += f", expert {run.expert}" * (run.expert > 1)
    if missing:
        print_line(f"not proved: {degrees}: the configuration has {missing}")
        return
    feeds = [layer.feed for layer in run.model.layers if layer.feed is not None]
    a, f = run.model.layers[0].mixers[0], next((feed for feed in feeds if feed.experts), feeds[0])
    assert isinstance(a, AttentionShape)
    groups = a.groups if a.groups % run.tensor == 0 else run.tensor
    sizes = (run.pipeline, run.model.hidden, a.heads, groups, a.queries, f.width, run.model.vocabulary, data,
             run.tensor, run.pipeline, run.pipeline, int(run.sharding != "none" and data > 1), f.experts, f.choices,
             f.shared, run.expert, run.expert_tensor, KINDS.get(run.model.family, "decoder"))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        script = shutil.copy(SCRIPT, Path(folder) / SCRIPT.stem)
        given = of_script(str(script), CompileOptions(ranks=small.ranks, script_arguments=tuple(map(str, sizes))))
        with explain_memory_errors("what ranks hold at small sizes"):
            found = given.proved(0)
    print_line(f"a step with {degrees} beside one of one device:")
    report_scale(found, None, Loudness(quiet=True), 0, time.perf_counter() - begin, given.notes)
