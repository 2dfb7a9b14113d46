"""Samples of PyTorch's own operator database, compared with PyTorch by the command of the documentation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")


from docs.site import operator_database, samples_on_ranks
from mspc.readers.pytorch.kinds import library
from tests.shares import is_taken

KINDS = {
    kind.name for theme in (library.DECOMPOSITIONS, library.STATISTICS, library.PIECES, library.SPECIAL)
    for rows in theme for kind in rows
}.union(f"aten.{name}" for name in (
    "mH.default", "atleast_1d.Sequence", "atleast_2d.Sequence", "atleast_3d.Sequence", "hsplit.array", "vsplit.array",
    "dsplit.array", "flipud.default", "linalg_diagonal.default", "scatter.reduce",
    "max_pool1d_with_indices.default", "adaptive_max_pool3d.default", "fractional_max_pool2d.default",
    "fractional_max_pool3d.default", "alpha_dropout.default", "feature_alpha_dropout.default", "rrelu.default",
    "linalg_solve_ex.default", "resolve_conj.default", "resolve_neg.default",
))  # fmt: skip
ONLY = (
    "_unsafe_masked", "_chunk_cat", "block_diag", "cartesian_prod", "combinations", "corrcoef", "count_nonzero", "cov",
    "cumulative_trapezoid", "fft.hfft", "fft.ihfft", "float_power", "frexp", "geqrf", "gradient", "histogram", "igamma",
    "isneginf", "isposinf", "isreal", "linalg.", "linspace", "logaddexp2", "logdet", "logspace", "lu", "matrix_exp",
    "mode", "nanmedian", "nanquantile", "nextafter", "nn.functional.embedding", "nonzero_static", "ormqr", "pinverse",
    "qr", "quantile", "_segment_reduce", "special.", "std_mean", "sum_to_size", "svd", "trapezoid", "trapz",
    "triangular_solve", "var_mean", "argmax", "cumsum", "nn.functional.max_pool1d", "nn.functional.fractional",
    "atleast_", "hsplit", "vsplit", "dsplit", "flipud", "scatter", "nn.functional.adaptive_max",
    "nn.functional.alpha", "nn.functional.feature_alpha", "nn.functional.rrelu", "resolve_",
    "unique", "where", "nonzero",
)  # fmt: skip
"""Operators of these kinds, of numbers with dimensions, and of images without a batch."""
IN_KIND_SAMPLES = {
    f"aten.{name}.default"
    for name in ("embedding_renorm_", "orgqr", "nonzero_numpy", "gcd", "lcm", "_unique", "unique_dim_consecutive")
}
"""Kinds that no Float32 sample of the database calls; tests/kind_samples.py has samples of them."""


def test_samples_of_pytorchs_operators() -> None:
    names = [name for place, name in enumerate(ONLY) if is_taken(place, 3)]
    parts = operator_database.parts_of("float32", names, 40, 1)
    outcomes = [each for _, found, _ in operator_database.done_parts(parts, 1) for each in found]
    assert len(outcomes) > 40
    called = {kind for each in outcomes for kind in each.kinds}
    called |= IN_KIND_SAMPLES
    missing = {name.rpartition(".")[0] for name in KINDS - called} - {name.rpartition(".")[0] for name in called}
    assert missing == set() or len(names) < len(ONLY)
    wrong = [each for each in outcomes if each.values != "right" or each.gradients not in ("", "right")]
    assert [f"{each.name}: {each.values} {each.gradients} {each.reason}" for each in wrong] == []


@pytest.mark.parametrize("ranks", [2, 4])
def test_samples_on_ranks_equal_one_rank(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn, slices = samples_on_ranks.random_strategy, set[int]()

    def noted(*given: Any) -> Any:
        found = drawn(*given)
        slices.update(n for operand in found or () for n in operand)
        return found

    monkeypatch.setattr(samples_on_ranks, "random_strategy", noted)
    only = ("index_add", "nn.functional.layer_norm", "nn.functional.conv2d", "matmul", "sort", "cumsum")
    parts = operator_database.parts_of("float32", only, 30, ranks)
    outcomes = [each for _, found, _ in operator_database.done_parts(parts, 1) for each in found]
    assert len(outcomes) > 5
    assert slices == {n for n in range(1, ranks + 1) if ranks % n == 0}
    wrong = [each for each in outcomes if each.values != "right" or each.gradients not in ("", "right")]
    assert [f"{each.name}: {each.values} {each.gradients} {each.reason}" for each in wrong] == []


def test_commands_of_the_page() -> None:
    page = Path(operator_database.__file__).parents[2] / "docs" / "reference" / "pytorch-operators.md"
    command = f"python -m {operator_database.__name__} "
    commands = [line.removeprefix(command) for line in page.read_text().splitlines() if line.startswith(command)]
    assert len(commands) == 3
    assert operator_database.TABLE in page.read_text()
    for line in commands:
        options = operator_database.options_of(line.split())
        assert (options.jobs, str(options.results)) == (16, "results")


def test_a_run_continues_its_results(tmp_path: Path) -> None:
    options = {"dtype": "int64", "ranks": 1}
    done, begun, missing = operator_database.parts_of("int64", ["sum", "cumsum", "trace"], 1, 1)[:3]
    outcome = operator_database.SampleOutcome("sum", "int64", "right", "", "")
    file = operator_database.ResultFile(tmp_path / "int64.jsonl", options)
    file.add(done, [outcome], None)
    file.add(begun, [outcome, outcome], 8)
    again = operator_database.ResultFile(tmp_path / "int64.jsonl", options)
    assert again.missing([done, begun, missing]) == [begun._replace(start=8), missing]
    found = operator_database.read_results(tmp_path)
    assert {title: [each.values for each in own] for title, own in found.items()} == {"int64": ["right"] * 3}
    with pytest.raises(operator_database.MspcError, match="not of"):
        operator_database.ResultFile(tmp_path / "int64.jsonl", {"dtype": "int64", "ranks": 2})
