"""`mspc ops` lists the operators and the ways in which each may be sharded."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from mspc.commands.report.tables import TextTable, check_json, print_table, write_report
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.op import REGISTRY, NotDifferentiable, Op, Sample

DEFAULT_DTYPE = "Float64"


def list_operators(names: tuple[str, ...], json: Path | None) -> None:
    """Print the operators (all, or those named), and write them as JSON on request.

    Raises:
        MspcError: a name is no operator.
    """
    check_json(json)
    for name in names:
        if name not in REGISTRY:
            notes = did_you_mean(name, REGISTRY) or ["mspc ops lists them all"]
            raise MspcError(f"there is no operator {name!r}", notes=notes)
    rows = [describe(REGISTRY[name]) for name in sorted(names or REGISTRY)]
    if json is not None:
        write_report(json, "ops", {"operators": rows})
    if json != Path("-"):
        cells = [
            (r["name"], r["rule"] or "-", r["gradient"], ", ".join(r["attributes"]) or "-") for r in rows
        ]
        print_table(TextTable(f"{len(rows)} operators", ("operator", "rule", "gradient", "attributes"), cells))


def describe(operator: type[Op]) -> dict[str, Any]:
    """Return an operator's name, rule (of the first sample), gradient, attributes and first line of documentation."""
    gradient = operator.bprop
    return {
        "name": operator.__name__,
        "summary": (operator.__doc__ or "").strip().partition("\n")[0],
        "rule": next((rule for sample in operator.samples if (rule := _rule(operator, sample))), ""),
        "gradient": f"no: {gradient.reason}" if isinstance(gradient, NotDifferentiable) else "yes",
        "attributes": [field.name for field in dataclasses.fields(operator)],  # type: ignore[arg-type]  # it is
    }


def _rule(operator: type[Op], sample: Sample) -> str:
    dtypes = sample.dtypes or (DEFAULT_DTYPE,) * len(sample.shapes)
    types = [TensorType(dtype_of(name), shape) for name, shape in zip(dtypes, sample.shapes, strict=True)]
    try:
        left, _, right = str(operator(**sample.fields).rule(*types)).partition("->")
    except (MspcError, NotImplementedError):
        return ""
    return f"{_side(left)} -> {_side(right)}"


def _side(text: str) -> str:
    """Return one side of a rule, with scalars written as ()."""
    return ", ".join(part.strip() or "()" for part in text.split(","))
