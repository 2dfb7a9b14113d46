"""A notebook from start to end, in a kernel of its own: networks in cells, one that fails, one that is written anew."""

from typing import Any

import pytest

from tests.serving import HANG

nbformat = pytest.importorskip("nbformat", reason="notebooks need nbclient and ipykernel, of the extra dev")
nbclient = pytest.importorskip("nbclient", reason="notebooks need nbclient and ipykernel, of the extra dev")
pytest.importorskip("ipykernel", reason="notebooks need nbclient and ipykernel, of the extra dev")

CELLS = {
    "imports": """
import numpy as np
import mspc as ms
from mspc import Tensor, nn, ops
x = Tensor(np.ones((2, 4), np.float32))
""",
    "defined": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 3, weight_init="ones", has_bias=False)
    def construct(self, x):
        return self.dense(x) * 2
net = Net()
net(x)
""",
    "broken": """
class Broken(nn.Cell):
    def construct(self, x):
        return ops.matmul(x, self.other(x))
    def other(self, x):
        return ops.ones((7, 7), ms.float32)
Broken()(x)
""",
    "wrong argument": "x.reshape(7)",
    "after": "net(x).asnumpy().sum()",
    "redefined": "class Net(nn.Cell):\n    def construct(self, x):\n        return x + 40\nNet()(x)",
    "still there": "net(x).asnumpy().sum()",
    "function": "@ms.jit\ndef tripled(x):\n    return x * 3\ntripled(Tensor([1.0, 2.0]))",
    "function again": "@ms.jit\ndef tripled(x):\n    return x * 4\ntripled(Tensor([1.0, 2.0]))",
    "trained": """
data = ms.dataset.NumpySlicesDataset((np.ones((16, 4), np.float32), np.zeros((16, 3), np.float32)), ["x", "y"])
model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.01), metrics={"mse"})
model.train(2, data.batch(1), callbacks=[ms.train.LossMonitor(16)])
""",
    "layout": "ms.Layout((2, 2), ('dp', 'mp'))('dp', ('mp',))",
    "mesh": "ms.Layout((2, 2), ('dp', 'mp'))",
    "parameter": "net.dense.weight",
    "base": "class Base(nn.Cell):\n    def construct(self, x):\n        return self.act(x) * 2",
    "child": "class Child(Base):\n    def act(self, x):\n        return x + 1\nchild = Child()\nchild(x)",
    "broken child": "class Worse(Base):\n    def act(self, x):\n        return x + nothing\nWorse()(x)",
    "base again": "class Base(nn.Cell):\n    pass\nchild(x)",
    "timed": "%%time\nclass Timed(nn.Cell):\n    def construct(self, x):\n        return x\nTimed()(x)",
    "large": "Tensor(np.ones((40, 40), np.float32))",
}  # fmt: skip


@pytest.fixture(scope="module")
def outputs() -> dict[str, list[Any]]:
    """The result of every cell."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in CELLS.values()])
    nbclient.NotebookClient(notebook, timeout=int(HANG), kernel_name="python3", allow_errors=True).execute()
    return {name: cell.outputs for name, cell in zip(CELLS, notebook.cells, strict=True)}


def result(found: list[Any], kind: str = "text/plain") -> str:
    return next(each for each in found if each.output_type == "execute_result").data.get(kind, "")


def error(found: list[Any]) -> Any:
    return next(each for each in found if each.output_type == "error")


def test_networks_of_cells_are_compiled(outputs: dict[str, list[Any]]) -> None:
    assert outputs["imports"] == []
    shown = "<td>8.0</td><td>8.0</td><td>8.0</td>"
    assert result(outputs["defined"], "text/html") == (
        f"<table><caption>Tensor [2, 3] Float32</caption><tbody><tr>{shown}</tr><tr>{shown}</tr></tbody></table>"
    )
    assert "value=[3., 6.]" in result(outputs["function"])
    assert "value=[4., 8.]" in result(outputs["function again"])


def test_an_error_is_the_users_own_and_needs_no_restart(outputs: dict[str, list[Any]]) -> None:
    broken = error(outputs["broken"])
    assert broken.ename == "MspcValueError"
    assert "\n".join(broken.traceback).splitlines() == [
        "MspcValueError: In[3]:3:16: error: MatMul: dimension 0 of input 1 is 7, but dimension 1 of input 0 says 4",
        "            return ops.matmul(x, self.other(x))",
        "                   ^^^^^^^^^^^^^^^^^^^^^^^^^^^^",
        "  note: the shapes are (2, 4), (7, 7)",
        "explain: mspc explain E0302",
    ]
    assert error(outputs["wrong argument"]).evalue.startswith("In[4]:1:1: error: cannot reshape (2, 4) to (7,)")
    assert "48.0" in result(outputs["after"])


def test_a_class_that_is_written_anew_is_another_one(outputs: dict[str, list[Any]]) -> None:
    assert "41." in result(outputs["redefined"])
    assert "48.0" in result(outputs["still there"])


def test_a_base_may_stand_in_another_cell(outputs: dict[str, list[Any]]) -> None:
    assert "value=[[4., 4., 4., 4.]" in result(outputs["child"])
    assert result(outputs["base again"]) == result(outputs["child"])
    assert "\n".join(error(outputs["broken child"]).traceback).splitlines() == [
        "MspcNameError: In[16]:3:20: error: name 'nothing' is not defined",
        "            return x + nothing",
        "                       ^^^^^^^",
        "  called from In[14]:3:16: return self.act(x) * 2",
        "explain: mspc explain E0201",
    ]


def test_what_has_no_source_is_told(outputs: dict[str, list[Any]]) -> None:
    found = error(outputs["timed"])
    assert found.evalue.startswith("error: the source of 'Timed.construct' is not available")
    assert "which IPython drops below %%time: define it in another cell" in found.evalue


def test_training_shows_the_callbacks_lines(outputs: dict[str, list[Any]]) -> None:
    assert "".join(each.text for each in outputs["trained"] if each.get("name") == "stdout").count("loss is") == 2


def test_layouts_are_tables(outputs: dict[str, list[Any]]) -> None:
    table = result(outputs["layout"], "text/html")
    assert "slices over dp=2, mp=2" in table
    assert "<th>dimension 0: dp</th><th>dimension 1: mp</th>" in table
    assert "<tr><td>1</td><td>0 of 2</td><td>1 of 2</td></tr>" in table
    assert "<tr><td>2</td><td>1</td><td>0</td></tr>" in result(outputs["mesh"], "text/html")
    for name in ("parameter", "large"):
        assert result(outputs[name], "text/html") == ""
        assert result(outputs[name])
