"""Products of groups of rows with a matrix for each, as mixtures of experts have them."""

from pathlib import Path

import numpy as np
import pytest

import mspc
from mspc import Tensor
from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.network import ImportedNetwork
from tests.exported_programs import Exported

FALLBACK = {"input": "rows", "weight": "p_matrices", "offs": "ends"}
OWN = {"self": "rows", "mat2": "p_matrices", "offs": "ends"}


def network(kind: str, arguments: dict[str, str], folder: Path) -> ImportedNetwork:
    made = Exported()
    made.stored("matrices", np.random.default_rng(1).normal(size=(3, 4, 2)).astype(np.float32))
    made.user("rows", "float32", (7, 4))
    made.user("ends", "int32", (3,))
    made.node(kind, arguments, {"products": ("float32", (7, 2))})
    made.node("aten.sum.default", {"self": "products"}, {"total": ("float32", ())})
    made.output("products", "products")
    made.output("total", "loss")
    return ImportedNetwork(read_program(made.save(folder / "model.pt2")))


@pytest.mark.parametrize(("kind", "arguments"), [
    ("transformers.grouped_mm_fallback.default", FALLBACK), ("aten._grouped_mm.default", OWN),
])  # fmt: skip
def test_every_group_has_its_matrix(kind: str, arguments: dict[str, str], tmp_path: Path) -> None:
    """The second group is empty."""
    found = network(kind, arguments, tmp_path)
    rows, ends = np.random.default_rng(2).normal(size=(7, 4)).astype(np.float32), np.array([2, 2, 7], np.int32)
    matrices = found.trainable_params()[0].asnumpy()
    expected = np.concatenate([rows[:2] @ matrices[0], rows[2:] @ matrices[2]])
    products, total = found(Tensor(rows), Tensor(ends))
    np.testing.assert_allclose(products.asnumpy(), expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(total.asnumpy(), expected.sum(), rtol=1e-5, atol=1e-5)


def test_gradients_of_matrices_are_those_of_their_rows(tmp_path: Path) -> None:
    network("aten._grouped_mm.default", OWN, tmp_path)
    found = mspc.load_torch(tmp_path / "model.pt2", "loss")
    rows, ends = np.random.default_rng(2).normal(size=(7, 4)).astype(np.float32), np.array([2, 2, 7], np.int32)
    _, [gradient] = mspc.value_and_grad(found, None, found.trainable_params())(Tensor(rows), Tensor(ends))
    sums = np.stack([rows[:2].sum(0), np.zeros(4), rows[2:].sum(0)])
    np.testing.assert_allclose(gradient.asnumpy(), np.repeat(sums[..., None], 2, 2), rtol=1e-5, atol=1e-5)


def test_without_ends_it_is_told(tmp_path: Path) -> None:
    found = network("aten._grouped_mm.default", OWN | {"offs": None}, tmp_path)  # type: ignore[dict-item]
    with pytest.raises(MspcError, match="grouped products: only rows"):
        found(Tensor(np.ones((7, 4), np.float32)), Tensor(np.ones(3, np.int32)))


def test_rows_of_experts_are_added(tmp_path: Path) -> None:
    made = Exported()
    for name, dtype, shape in (("out", "float32", (3, 2)), ("index", "int64", (4, 2)), ("src", "float32", (4, 2))):
        made.user(name, dtype, shape)
    made.node("torchtitan.deterministic_scatter_add.default", {"out": "out", "index": "index", "src": "src"},
              {"sums": ("float32", (3, 2))})  # fmt: skip
    made.output("sums", "sums")
    found = ImportedNetwork(read_program(made.save(tmp_path / "model.pt2")))
    index = np.array([[2, 2], [0, 0], [2, 2], [2, 2]])
    out, src = np.ones((3, 2), np.float32), np.ones((4, 2), np.float32)
    np.testing.assert_array_equal(found(Tensor(out), Tensor(index), Tensor(src)).asnumpy(), [[2, 2], [1, 1], [4, 4]])
