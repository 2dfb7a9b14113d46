"""Forms of the functions that stand for XLA's own operations: each is that operation, with its region if it has one."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from mspc.ops.math.xla_elementwise import ELEMENTWISE, Program, run_program
from mspc.output.stablehlo.array_module import ArrayModule
from mspc.output.stablehlo.arrays import HloArray

Types = Sequence[tuple[Any, tuple[int, ...]]]
_GATHER = (
    "offset_dims", "collapsed_slice_dims", "operand_batching_dims", "start_indices_batching_dims", "start_index_map",
    "index_vector_dim",
)  # fmt: skip
_SCATTER = (
    "update_window_dims", "inserted_window_dims", "input_batching_dims", "scatter_indices_batching_dims",
    "scatter_dims_to_operand_dims", "index_vector_dim",
)  # fmt: skip


def _region(xp: ArrayModule, program: Program, dtypes: Sequence[Any]) -> list[str]:
    """Return the lines of a region of numbers of these element types."""
    with xp.region(*((dtype, ()) for dtype in dtypes)) as (lines, values):
        functions = {**ELEMENTWISE, "compare": partial(_compared, xp)}
        xp.emit("return", run_program(program, [HloArray(xp, value) for value in values], functions))
    return lines


def _compared(xp: ArrayModule, a: Any, b: Any, direction: str, kind: str = "") -> Any:
    """Return whether numbers are in an order; the total order of floats is XLA's own."""
    if kind != "TOTALORDER":
        return ELEMENTWISE["compare"](a, b, direction, kind)
    return HloArray(xp, xp.emit("compare", (a, b), (bool, ()), compare_type=f"#stablehlo<comparison_type {kind}>",
                                comparison_direction=f"#stablehlo<comparison_direction {direction}>"))  # fmt: skip


def _dimensions(kind: str, names: Sequence[str], where: Sequence[Any]) -> str:
    listed = (f"{name} = {each if isinstance(each, int) else [*each]}" for name, each in zip(names, where, strict=True))
    return f"#stablehlo.{kind}<{', '.join(listed)}>"


def _reducing(name: str) -> Callable[..., Any]:
    """Return the form of an operation that combines elements, or compares those of two places, by a program."""

    def form(xp: ArrayModule, types: Types, *given: Any) -> Any:
        *arrays, where, program = given
        own = [x.dtype for x in arrays]
        dtypes = [each for x in own for each in (x, x)] if name == "sort" else own
        settings = {
            "reduce": lambda: {"dimensions": where}, "sort": lambda: {"dimension": where, "is_stable": True},
            "reduce_window": lambda: _window(where),
        }[name]()  # fmt: skip
        return xp.emit(name, arrays, *types, regions=[_region(xp, program, dtypes)], **settings)

    return form


def _window(window: Any) -> dict[str, Any]:
    sizes, strides, base, apart, pads = window
    return {"window_dimensions": sizes, "window_strides": strides, "base_dilations": base, "window_dilations": apart,
            "padding": np.array(pads, np.int64).reshape(-1, 2)}  # fmt: skip


def _selected(xp: ArrayModule, types: Types, x: Any, source: Any, init: Any, window: Any, *programs: Program) -> Any:
    settings = {name: each for name, each in _window(window).items() if "dilations" not in name}
    regions = [_region(xp, program, (x.dtype, x.dtype)) for program in programs]
    return xp.emit("select_and_scatter", (x, source, init), *types, regions=regions, **settings)


def _gathered(xp: ArrayModule, types: Types, x: Any, indices: Any, where: Any, sizes: Sequence[int]) -> Any:
    numbers = _dimensions("gather", _GATHER, where)
    return xp.emit("gather", (x, indices), *types, dimension_numbers=numbers, slice_sizes=sizes)


def _scattered(xp: ArrayModule, types: Types, *given: Any) -> Any:
    *arrays, where, program = given
    regions = [_region(xp, program, [dtype for dtype, _ in (*types, *types)])]
    numbers = _dimensions("scatter", _SCATTER, where)
    return xp.emit("scatter", arrays, *types, regions=regions, scatter_dimension_numbers=numbers)


def _solved(xp: ArrayModule, types: Types, a: Any, b: Any, left: bool, lower: bool, unit: bool, transposed: str) -> Any:
    return xp.emit("triangular_solve", (a, b), *types, left_side=left, lower=lower, unit_diagonal=unit,
                   transpose_a=f"#stablehlo<transpose {transposed}>")  # fmt: skip


def _transformed(xp: ArrayModule, types: Types, x: Any, kind: str, lengths: Sequence[int], *_: str) -> Any:
    return xp.emit("fft", (x,), *types, fft_type=f"#stablehlo<fft_type {kind}>", fft_length=lengths)


def _elementwise(name: str) -> Callable[..., Any]:
    def form(xp: ArrayModule, types: Types, *arrays: HloArray) -> Any:
        return xp.emit(name, [xp.repeated(each.content, types[0][1]) for each in arrays], *types)

    return form


_BY_NUMPY = (
    "compare", "convert", "reduce_precision", "next_after", "bitcast_convert", "acos", "acosh", "asin", "asinh", "atan",
    "atanh", "cosh", "sinh",
)  # fmt: skip
"""Elementwise operations that have settings, or are not StableHLO's own."""

FORMS: Mapping[str, Callable[..., Any]] = {
    **{name: _elementwise(name) for name in ELEMENTWISE if name not in _BY_NUMPY},
    "gather": _gathered, "scatter": _scattered, "select_and_scatter": _selected, "triangular_solve": _solved,
    "fft": _transformed, **{name: _reducing(name) for name in ("reduce", "reduce_window", "sort")},
    "bitcast_convert": lambda xp, types, x, _: xp.emit("bitcast_convert", (x,), *types),
    "top_k": lambda xp, types, x, k: xp.emit("chlo.top_k", (x,), *types, k=k),
    "pad": lambda xp, types, x, value, low, high, inside: xp.emit(
        "pad", (x, value), *types, edge_padding_low=low, edge_padding_high=high, interior_padding=inside),
}  # fmt: skip
"""Forms by the names of XLA's operations; called with result types, operands and settings. Others are computed as
functions of arrays."""
