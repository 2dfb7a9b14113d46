"""Proof of a plan's degrees: `verify --scale` of a model with the sizes of the configuration, at small sizes."""

from __future__ import annotations

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

SCRIPT = Path(__file__).with_name("planned_llama.py.txt")
"""A script of users, which the package's own code is not: it is copied out before it is captured."""


def not_proved(run: TrainingRun) -> str:
    """Return the parts of a run that the script of proofs lacks, or ""."""
    layers = run.model.layers
    mixers = [mixer for layer in layers for mixer in layer.mixers]
    found = {
        "experts": any(layer.feed is not None and layer.feed.experts for layer in layers),
        "an encoder": run.model.encoders or run.model.family != "gpt",
        "layers without attention": not all(isinstance(mixer, AttentionShape) for mixer in mixers),
        "latent attention": any(isinstance(mixer, AttentionShape) and mixer.key_rank for mixer in mixers),
        "context parallelism": run.context > 1,
    }
    return ", ".join(name for name, there in found.items() if there)


def prove(run: TrainingRun) -> None:
    """Prove that a step of all ranks computes what one device computes, and print the verdict. Two data-parallel ranks
    stand for all, one layer for those of a stage, and stages have one chunk.

    Raises:
        ExecutionError: a value differs. MspcError: the program cannot be compiled or made small.
    """
    begin = time.perf_counter()
    missing = not_proved(run)
    degrees = f"tensor {run.tensor}, pipeline {run.pipeline}, data {run.data}"
    if missing:
        print_line(f"not proved: {degrees}: the configuration has {missing}")
        return
    small = replace(run, ranks=min(run.data, 2) * run.tensor * run.pipeline)
    a, f = run.model.layers[0].mixers[0], run.model.layers[0].feed
    assert isinstance(a, AttentionShape)
    assert f is not None
    groups = a.groups if a.groups % run.tensor == 0 else run.tensor
    sizes = (run.pipeline, run.model.hidden, a.heads, groups, a.queries, f.width, run.model.vocabulary, small.data,
             run.tensor, run.pipeline, run.pipeline, int(run.sharding != "none" and small.data > 1))  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        script = shutil.copy(SCRIPT, Path(folder) / SCRIPT.stem)
        given = of_script(str(script), CompileOptions(ranks=small.ranks, script_arguments=tuple(map(str, sizes))))
        with explain_memory_errors("what ranks hold at small sizes"):
            found = given.proved(0)
    print_line(f"a step with {degrees} beside one of one device:")
    report_scale(found, None, Loudness(quiet=True), 0, time.perf_counter() - begin, given.notes)
