"""Options of commands that compile networks of PyTorch. The module imports nothing heavy."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXPORTED = ".pt2"
"""What files of exported programs are called."""
Sizes = Annotated[
    list[str] | None,
    typer.Option(
        "--size", metavar="NAME=N", help="A size of model.pt2 that is open: 'x.0=8', of input x; may be repeated."
    ),
]
LossName = Annotated[
    str,
    typer.Option(
        "--loss", metavar="NAME", show_default=False,
        help="Of model.pt2: cross_entropy or mse with labels as one more input, or a result's name.",
    ),
]
OptimizerText = Annotated[
    str,
    typer.Option(
        "--optimizer", metavar="SPEC", show_default=False,
        help="Train model.pt2: 'adamw:lr=1e-4,weight_decay=0.1', adam or sgd.",
    ),
]
PrecisionName = Annotated[
    str,
    typer.Option(
        "--precision", metavar="TYPE", show_default=False, help="Of products in model.pt2: bfloat16, beside Float32."
    ),
]
Accumulated = Annotated[
    int, typer.Option("--accumulate", metavar="N", help="Gradients of N batches of model.pt2 are added up in a step.")
]
Loaded = Annotated[
    Path | None, typer.Option("--load", metavar="CKPT", help="Weights of model.pt2: safetensors, or any checkpoint.")
]
FromTorch = Annotated[
    bool, typer.Option("--torch", help="TARGET is 'model.py:make', which gives a module of PyTorch and its inputs.")
]
LayerStyles = Annotated[
    str,
    typer.Option(
        "--plan", metavar="FILE|own", show_default=False,
        help="How layers of model.pt2 are sharded: styles, placements, or what the model itself says.",
    ),
]
