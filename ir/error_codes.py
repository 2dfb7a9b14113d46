"""The codes of errors: each is one kind of mistake, with an explanation and an example, as `mspc explain` prints it.
`error_codes.toml` has their texts.

The first two digits of a code are an area of mspc. A code that ends in 00 is for the errors of its area that have no
code of their own. A code is never used again for another mistake: an entry that is no longer needed is deleted, and its
number is added to `RETIRED`.
"""

from __future__ import annotations

import re
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple


class ErrorCode(NamedTuple):
    """One kind of mistake.

    example: text in which `{{wrong -> right}}` are the differences between a wrong example and its right form. It is
    one of: command lines (`$ mspc ...`, in a folder with a `net.py`), the method `construct` of a network, lines of
    its `__init__` (`self. ...`), a graph (`#IR entry ...`), a plan (`[operators] ...`), or statements of a script.
    Empty for the codes of areas.
    """

    code: str
    title: str
    text: str
    example: str = ""

    @property
    def wrong(self) -> str:
        """The example with the mistake."""
        return _CHOICE.sub(r"\1", self.example)

    @property
    def right(self) -> str:
        """The example without the mistake."""
        return _CHOICE.sub(r"\2", self.example)


_CHOICE = re.compile(r"\{\{(.*?) -> (.*?)\}\}", re.S)

RETIRED: tuple[str, ...] = ()
"""Codes of former versions."""

AREAS = (
    ("commands.search", "E1300"), ("search", "E1300"), ("verify", "E1400"), ("commands.verif", "E1400"),
    ("commands.check", "E1400"), ("commands.budget", "E1400"), ("commands", "E0100"), ("cli", "E0100"),
    ("doctor", "E0100"), ("engine.capture", "E0100"), ("engine.script", "E0100"), ("output", "E0100"),
    ("compiler.frontend.micro_batches", "E0500"), ("compiler.config", "E0400"), ("compiler", "E0200"),
    ("passes.pipelining", "E0500"), ("passes.lib.stage", "E0500"), ("passes.lib.schedule", "E0500"),
    ("passes.base", "E0900"), ("passes", "E0400"), ("sharding", "E0400"), ("plans", "E0400"), ("analysis", "E0400"),
    ("checkpoint", "E0600"), ("mindspore_api.train.checkpointing", "E0600"), ("ir.files", "E0600"),
    ("mindspore_api.train.serialization", "E0600"), ("readers", "E0700"), ("runtime.gpu", "E0850"),
    ("runtime", "E0800"), ("engine", "E0800"), ("mindspore_api.dataset", "E1100"),
    ("mindspore_api.mindrecord", "E1100"), ("mindspore_api.train", "E1200"), ("mindspore_api.parallel", "E0400"),
    ("mindspore_api.train.metrics", "E1201"), ("mindspore_api.parallel.layout", "E0413"),
    ("mindspore_api.communication", "E1009"), ("plans.files.plan_file", "E0412"), ("commands.budget.limits", "E1402"),
    ("mindspore_api", "E1000"), ("ops", "E0300"), ("ir.initial_value", "E1000"), ("ir.builder", "E0300"),
    ("ir", "E0900"),
)  # fmt: skip
"""The code of an error without one, by the module that made it: of the longest of these beginnings of names. A module
with one kind of mistakes has the code of that kind."""


def area_code(module: str) -> str:
    """Return the code of the errors that a module makes without naming a code."""
    name = module.removeprefix("mspc.")
    found = max((start for start, _ in AREAS if name.startswith(start)), key=len, default="")
    return dict(AREAS).get(found, "E0000")


@cache
def mistakes() -> tuple[ErrorCode, ...]:
    """Return all kinds of mistakes, in the order of their codes."""
    entries = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    return tuple(
        ErrorCode(code, entry["title"], " ".join(entry["text"].split()), entry.get("example", ""))
        for code, entry in entries.items()
    )
