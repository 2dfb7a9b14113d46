"""This module declares the options of `mspc plan`. It imports its work when it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mspc.commands import options as opts

CONFIGURATION = typer.Argument(metavar="CONFIG", show_default=False, help=(
    "Megatron-LM's model_config.yaml, a row or recipe (FILE.py:NAME) of Megatron-Bridge, torchtitan's TOML or "
    "registry, MaxText's YAML, DeepSpeed's or Hugging Face's JSON, or YAML of accelerate or mindformers."))  # fmt: skip
ARGUMENTS = typer.Option(metavar="FILE", help="Megatron-LM's arguments, one on each line.")
TOKENS = typer.Option(metavar="N", min=0, max=1 << 24, show_default=False, help="Tokens of a sample.")
PROOF = typer.Option("--verify", help="Prove the degrees, and those of --better, with verify --scale.")


def plan(
    config: Annotated[Path | None, CONFIGURATION] = None, megatron_arguments: Annotated[Path | None, ARGUMENTS] = None,
    preset: Annotated[str, typer.Option(metavar="NAME", help="A published model: 'llama3-70b'.")] = "",
    ranks: opts.Ranks = None, machine: opts.MachineName = "", sequence: Annotated[int, TOKENS] = 0,
    better: Annotated[bool, typer.Option("--better", help="List faster settings that fit into the memory.")] = False,
    verify: Annotated[bool, PROOF] = False, json: opts.JsonFile = None,
) -> None:  # fmt: skip
    """Estimate memory and step time of a training configuration of another program; status 2 if it cannot work, with
    every setting that is wrong and the value that works."""
    from mspc.commands.plan import ConfigurationRequest
    from mspc.commands.plan import plan as make_plan

    request = ConfigurationRequest(config, megatron_arguments, preset, ranks, machine, sequence, json, better, verify)
    raise typer.Exit(make_plan(request))
