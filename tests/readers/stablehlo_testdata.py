"""Runs StableHLO programs with stored inputs and results, as openxla/stablehlo has them in stablehlo/testdata:

    python -m tests.readers.stablehlo_testdata FOLDER [--jobs N] [--list wrong,refused]

A program is right if its results are the stored ones, wrong if not, refused if mspc says that it cannot compute it, and
unknown if it has an operation that mspc does not list. A traceback counts as wrong.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from mspc import Tensor
from mspc.readers.stablehlo.kinds.all_kinds import check_kinds
from mspc.readers.stablehlo.module import HloFunction, HloModule, HloOperation, SymbolReference, constant_array
from mspc.readers.stablehlo.network import StableHloNetwork
from mspc.readers.stablehlo.text_reader import read_module
from tests.graphs import MspcError, TensorType

ORDER = ("right", "wrong", "refused", "unknown")
ULPS = {"expect_eq": 0, "expect_close": 256, "expect_almost_eq": 256}
"""Units in the last place, of the greater of 1 and the stored result, by which results may differ."""
SUMS = re.compile("conv|dot|cum|reduce|einsum")
"""Files about operations that add up many products."""


def expectations(module: HloModule) -> tuple[HloModule, list[str], list[str], list[tuple[str, str, str]]]:
    """Return the module whose main function takes the inputs as arguments and returns the checked values; the names of
    the functions with the inputs; and (kind of check, checked value, stored value)."""
    main = module.main
    made = HloFunction("main", main.place)
    known: dict[str, str] = {}
    checks: list[tuple[str, str, str]] = []
    for operation in main.body.operations:
        callee = next((each.name for each in operation.entries if isinstance(each, SymbolReference)), "")
        if operation.name.endswith("call") and callee in ("inputs", "expected"):
            known.update((name, callee) for name in operation.results)
            if callee == "inputs":
                made.body.arguments += operation.results
                made.body.types += operation.types
        elif callee.startswith("check."):
            first, second = operation.operands
            checks.append((callee.removeprefix("check."), first, second))
        elif operation.name not in ("return", "func.return"):
            made.body.operations.append(operation)
    last = HloOperation("return", main.place)
    last.operands = [first for _, first, _ in checks]
    made.body.operations.append(last)
    made.argument_attributes = [{} for _ in made.body.arguments]
    made.origins = [None] * len(made.body.arguments)
    made.result_attributes = [{} for _ in checks]
    kept = {name: each for name, each in module.functions.items() if name not in ("main", "inputs", "expected")}
    results = [name for name, callee in known.items() if callee == "expected"]
    return replace(module, functions={"main": made, **kept}), list(made.body.arguments), results, checks


def stored(module: HloModule, function: str) -> list[Any]:
    """Return the arrays that a function of constants returns."""
    if function not in module.functions:
        return []
    values: dict[str, Any] = {}
    for operation in module.functions[function].body.operations:
        if operation.name.endswith("return"):
            return [values[name] for name in operation.operands]
        type = operation.types[0]
        assert isinstance(type, TensorType)
        if operation.name.endswith("broadcast_in_dim"):
            values[operation.results[0]] = np.broadcast_to(values[operation.operands[0]], type.shape)
        else:
            values[operation.results[0]] = np.broadcast_to(
                constant_array(module, operation.entries[0], type), type.shape)  # fmt: skip
    return []


def differs(kind: str, found: Any, expected: Any, is_sum: bool) -> str:
    """Return how a result differs from the stored one, "" if it does not. is_sum: elements are sums of many products,
    so that the unit is that of the largest result."""
    if found.shape != expected.shape or found.dtype != expected.dtype:
        return f"{found.dtype}{found.shape}, not {expected.dtype}{expected.shape}"
    if expected.dtype.kind in "biu":
        different = found != expected
        return f"{different.sum()} of {found.size} elements differ" if different.any() else ""
    import ml_dtypes

    half = expected.real if expected.dtype.kind == "c" else expected
    epsilon = float(ml_dtypes.finfo(half.dtype).eps)
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    worst = 0.0
    for x, y in ((a.real, b.real), (a.imag, b.imag)):
        same = (x == y) | (np.isnan(x) & np.isnan(y))
        if (np.isfinite(x) != np.isfinite(y)).any():
            return "infinities or NaN differ"
        with np.errstate(all="ignore"):
            off = np.abs(x - y) / np.maximum(np.abs(b).max(initial=0.0) if is_sum else np.abs(b), 1.0)
        worst = max(worst, float(np.where(same, 0, off).max(initial=0.0)))
    return f"they differ by {worst / epsilon:.3g} units" if worst > ULPS[kind] * epsilon else ""


def judged(path: Path) -> tuple[str, str]:
    """Return (the verdict on a program, why)."""
    try:
        module = read_module(path)
        program, _, _, checks = expectations(module)
        try:
            check_kinds(program)
        except MspcError as error:
            return "unknown", error.message
        inputs = [np.array(each) for each in stored(module, "inputs")]
        expected = stored(module, "expected")
        found = StableHloNetwork(program)(*map(Tensor, inputs))
        found = found if isinstance(found, tuple | list) else (found,)
        for (kind, _, _), value, right in zip(checks, found, expected, strict=True):
            if reason := differs(kind, value.asnumpy(), right, bool(SUMS.search(path.name))):
                return "wrong", reason
    except MspcError as error:
        return "refused", error.message
    except Exception as error:  # a traceback is an error of mspc
        return "wrong", f"{type(error).__name__}: {error}"
    return "right", ""


def kind_in(path: Path) -> str:
    """Return the operation that a file is about, by its name."""
    return re.split(r"_(?:u?int|b?float|complex|bool)\d*|_\d", path.stem)[0]


def report(paths: Sequence[Path], jobs: int, listed: Sequence[str]) -> int:
    """Print the counts by kind. Return the number of wrong programs."""
    with ProcessPoolExecutor(jobs) as pool:
        found = list(pool.map(partial(judged), paths, chunksize=16))
    rows: dict[str, Counter[str]] = defaultdict(Counter)
    for path, (verdict, _) in zip(paths, found, strict=True):
        rows[kind_in(path)][verdict] += 1
    total = Counter(verdict for verdict, _ in found)
    for name, counts in [*sorted(rows.items()), ("all", total)]:
        print(f"{name:40}" + "".join(f"{counts[verdict]:6} {verdict}" for verdict in ORDER if counts[verdict]))
    for path, (verdict, reason) in zip(paths, found, strict=True):
        if verdict in listed:
            print(f"{verdict}: {path.name}: {reason}")
    known = sum(total[verdict] for verdict in ORDER[:3])
    print(f"{total['right']} of {known} programs with known kinds are right, {total['right'] / max(1, known):.1%}")
    return total["wrong"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--list", default="wrong", help="verdicts whose programs are listed")
    parser.add_argument("--only", default="*", help="pattern of file names")
    given = parser.parse_args()
    paths = sorted(given.folder.glob(f"{given.only}.mlir"))
    sys.exit(1 if report(paths, given.jobs, given.list.split(",")) else 0)


if __name__ == "__main__":
    main()
