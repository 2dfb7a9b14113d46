"""The commands of `mspc` have a row each here, and in this folder a file each, which is loaded when the command is
called.

A file has a function called as the command is (with `_` behind it where Python has the word), whose parameters are the
options, or `app`: commands below the command. `mspc --help` is made of the rows alone.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import field
from types import ModuleType
from typing import Any

from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True)
class Verb:
    """A command. help: its line in `mspc --help`. home: the module that has it, its own file here without it.
    settings: of the parser."""

    name: str
    help: str
    home: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def module(self) -> ModuleType:
        """Return the module that has the command."""
        return importlib.import_module(self.home or f"mspc.commands.verbs.{self.name.replace('-', '_')}")


VERBS = (
    Verb("compile", "Compile for all ranks; run nothing."),
    Verb("search", "Find the best way to shard a network; run nothing."),
    Verb("plan", "Estimate a configuration of another program."),
    Verb("calibrate", "Measure this machine, for mspc search."),
    Verb("capture", "Write the step that a script of PyTorch runs on each rank."),
    Verb("run", "Train a script, or run a compile, on all ranks."),
    Verb("launch", "Start a script on many ranks, of several hosts too.", "mspc.commands.launch",
         {"allow_interspersed_args": False}),
    Verb("diff", "Compare two compiles, dumps or plans."),
    Verb("check", "Hold a compile to a budget."),
    Verb("verify", "Compare steps on N ranks with one device."),
    Verb("view", "Write a page that shows a compile and why it is so."),
    Verb("opt", "Read a text graph, run passes, print it."),
    Verb("ops", "List the operators and their rules."),
    Verb("passes", "List the passes of a compile in order."),
    Verb("doctor", "List the names of a script that mspc lacks or ignores."),
    Verb("demo", "Write a small project, and explain its compile step by step."),
    Verb("explain", "Explain the code of an error, with an example."),
    Verb("explain-hang", "Name the rank that made a PyTorch job hang."),
    Verb("ckpt", "Look at checkpoints, compare, merge, transform and check them."),
)  # fmt: skip
"""All of them, in the order in which they are shown."""
