"""Samples of PyTorch's own operator database, compared with PyTorch by the command of the documentation."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")


from mspc.readers.pytorch.kinds import library
from mspc.verify.pytorch import operator_database

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
)  # fmt: skip
"""Operators of these kinds, of numbers with dimensions, and of images without a batch."""


def test_samples_of_pytorchs_operators() -> None:
    outcomes = list(operator_database.all_outcomes(["float32"], ONLY, 40, 1))
    assert len(outcomes) > 100
    called = {kind for each in outcomes for kind in each.kinds}
    called |= {"aten.embedding_renorm_.default", "aten.orgqr.default"}  # tests/kind_samples.py
    assert {name.rpartition(".")[0] for name in KINDS - called} <= {name.rpartition(".")[0] for name in called}
    wrong = [each for each in outcomes if each.values != "right" or each.gradients not in ("", "right")]
    assert [f"{each.name}: {each.values} {each.gradients} {each.reason}" for each in wrong] == []
