"""`mspc ops` lists the operators and the ways in which each may be sharded. The module imports its work when it is
called."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mspc.commands import options as opts
from mspc.ir.diagnostics import MspcError, did_you_mean

if TYPE_CHECKING:
    from mspc.ops.op import Op, Sample

DEFAULT_DTYPE = "Float64"


def ops(
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="[NAME]...", help="Only these operators.", show_default=False),
    ] = None,
    json: opts.JsonFile = None,
) -> None:
    """List the operators: their sharding rules, attributes and gradients."""
    from mspc.commands.report.tables import TextTable, print_table, write_report
    from mspc.ops.op import REGISTRY

    for name in names or ():
        if name not in REGISTRY:
            notes = did_you_mean(name, REGISTRY) or ["mspc ops lists them all"]
            raise MspcError(f"there is no operator {name!r}", notes=notes, code="E0113")
    rows = [describe(REGISTRY[name]) for name in sorted(names or REGISTRY)]
    if json is not None:
        write_report(json, "ops", {"operators": rows})
    if json != Path("-"):
        cells = [(r["name"], r["rule"] or "-", r["gradient"], ", ".join(r["attributes"]) or "-") for r in rows]
        title = f"{len(rows)} operator{'s' * (len(rows) != 1)}"
        print_table(TextTable(title, ("operator", "rule", "gradient", "attributes"), cells))


def describe(operator: type[Op]) -> dict[str, Any]:
    """Return an operator's name, rule (of the first sample), gradient, attributes and first line of documentation."""
    from mspc.ops.op import NotDifferentiable

    gradient = operator.bprop
    return {
        "name": operator.__name__,
        "summary": (operator.__doc__ or "").strip().partition("\n")[0],
        "rule": next((rule for sample in operator.samples if (rule := _rule(operator, sample))), ""),
        "gradient": f"no: {gradient.reason}" if isinstance(gradient, NotDifferentiable) else "yes",
        "attributes": [field.name for field in dataclasses.fields(operator)],  # type: ignore[arg-type]  # it is
    }


def _rule(operator: type[Op], sample: Sample) -> str:
    """Return the rule for a sample, with scalars written as (); "" if there is none."""
    from mspc.ir.types import TensorType, dtype_of

    dtypes = sample.dtypes or (DEFAULT_DTYPE,) * len(sample.shapes)
    types = [TensorType(dtype_of(name), shape) for name, shape in zip(dtypes, sample.shapes, strict=True)]
    try:
        sides = str(operator(**sample.fields).rule(*types)).split("->")
    except (MspcError, NotImplementedError):
        return ""
    return " -> ".join(", ".join(part.strip() or "()" for part in side.split(",")) for side in sides)
