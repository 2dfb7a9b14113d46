"""Cells: what they collect and how parameters are named."""

from __future__ import annotations

import copy
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops


def weight(name=None):
    return Parameter(Tensor([1.0]), name)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.weight = weight("w")
        self.other = weight()
        self.matmul = ops.MatMul()
        self.dense = nn.Dense(2, 2)


class Holder(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.net = net


def names(cell):
    return [p.name for p in cell.get_parameters()]


def test_a_shared_parameter_counts_once_and_keeps_its_first_path():
    class Tied(nn.Cell):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(4, 2)
            self.head = nn.Dense(2, 4, has_bias=False)
            self.head.weight = self.embed.embedding_table

    assert names(Tied()) == ["embed.embedding_table"]
    assert names(Holder(Tied())) == ["net.embed.embedding_table"]


def test_assigning_again_forgets_what_was_there():
    net = Net()
    net.dense = nn.ReLU()
    net.weight = weight("v")
    net.other = None
    assert names(net) == ["v"]
    del net.weight
    assert names(net) == []
    assert not hasattr(net, "weight")


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy])
def test_a_copied_parameter_keeps_what_is_said_of_it(way):
    one = ms.Parameter(np.ones(2, np.float32), "w", requires_grad=False, layerwise_parallel=True)
    twin = way(one)
    assert repr(twin) == repr(one)
    assert twin.layerwise_parallel
    twin.set_data(np.zeros(2, np.float32))
    assert one.asnumpy().tolist() == [1, 1]


def test_plain_lists_of_cells_are_collected():
    class Plain(nn.Cell):
        def __init__(self):
            super().__init__()
            self.layers = [nn.Dense(2, 2, has_bias=False) for _ in range(2)]

    assert names(Plain()) == ["layers.0.weight", "layers.1.weight"]


def test_looking_around():
    outer = Holder(Net())
    assert list(outer.name_cells()) == ["net"]
    assert [type(c).__name__ for c in outer.net.cells()] == ["Dense"]
    assert [name for name, _ in outer.cells_and_names()] == ["", "net", "net.dense"]
    assert [name for name, _ in outer.parameters_and_names()][:2] == ["net.weight", "net.other"]
    assert list(outer.net.parameters_dict(recurse=False)) == ["net.weight", "net.other"]
    outer.net.weight.requires_grad = False
    assert [p.name for p in outer.untrainable_params()] == ["net.weight"]
    assert len(outer.trainable_params()) == 3
    assert list(filter(lambda p: p.requires_grad, outer.get_parameters())) == outer.trainable_params()


def test_flags():
    net = Holder(Net())
    net.recompute()
    net.to_float(ms.float16)
    assert net.net.get_flags() == {"recompute": True, "to_float": ms.float16}
    assert net.shard(((2, 4),)).in_strategy == ((2, 4),)
    with pytest.raises(TypeError, match=r"Holder\.shard: in_strategy"):
        net.shard("x")


def test_missing_super_init_is_named():
    class Wrong(nn.Cell):
        def __init__(self):
            self.w = weight("w")

    class Late(nn.Cell):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError, match=r"Wrong: call super\(\).__init__\(\) before setting attribute 'w'"):
        Wrong()
    with pytest.raises(RuntimeError, match=r"Late does not call super\(\).__init__\(\)"):
        Holder(Late())


def test_children_inserted_by_name():
    net = nn.Cell()
    net.insert_child_to_cell("a", nn.Dense(2, 2, has_bias=False))
    net.insert_param_to_cell("p", weight())
    assert names(net) == ["p", "a.weight"]
    with pytest.raises(ValueError, match="'a' cannot name a child: it is taken, empty or contains a dot"):
        net.insert_child_to_cell("a", nn.ReLU())
    with pytest.raises(TypeError, match="insert_child_to_cell takes a Cell, not int"):
        net.insert_child_to_cell("b", 3)
    with pytest.raises(ValueError, match=r"'a\.b' cannot name a parameter"):
        net.insert_param_to_cell("a.b", weight())


def test_containers_behave_like_lists():
    cells = nn.CellList([nn.ReLU(), nn.Tanh()])
    cells.append(nn.Sigmoid())
    cells.insert(1, nn.GELU())
    assert [type(c).__name__ for c in cells] == ["ReLU", "GELU", "Tanh", "Sigmoid"]
    assert (len(cells), type(cells[-1]).__name__, len(cells[1:3])) == (4, "Sigmoid", 2)
    del cells[0]
    assert list(cells.name_cells()) == ["0", "1", "2"]
    with pytest.raises(IndexError, match="CellList has 3 cells; there is no number 3"):
        cells[3]
    with pytest.raises(TypeError, match="CellList holds Cells, not int"):
        cells.append(1)
    net = nn.SequentialCell(nn.Dense(2, 3), nn.ReLU())
    assert names(net) == ["0.weight", "0.bias"]
    by_name = nn.CellDict({"a": nn.Dense(2, 2, has_bias=False)})
    assert ("a" in by_name, list(by_name.keys()), names(by_name)) == (True, ["a"], ["a.weight"])


def test_parts_of_a_container_leave_its_names():
    net = nn.SequentialCell(nn.Dense(2, 2, has_bias=False), nn.Dense(2, 2, has_bias=False), nn.ReLU())
    tail = net[1:]
    assert type(tail) is nn.SequentialCell
    assert (names(net), names(tail)) == (["0.weight", "1.weight"], ["1.weight"])
    tail.append(nn.Dense(2, 2, has_bias=False))
    assert names(tail) == ["1.weight", "3.weight"]
    assert len(net) == 3

    class Block(nn.SequentialCell):
        def __init__(self, size):
            super().__init__(nn.Dense(size, size, has_bias=False), nn.ReLU())
            self.size = size

    assert [type(c).__name__ for c in Block(2)[:1]] == ["Dense"]
    holder = nn.CellList([net[:1], net[1:]])
    assert names(holder) == ["0.0.weight", "1.1.weight"]


def test_names_of_cells_stay_when_others_change():
    net = nn.SequentialCell(OrderedDict(conv=nn.Dense(2, 2, has_bias=False), act=nn.ReLU()))
    net[1] = nn.Tanh()
    net.insert(0, nn.Sigmoid())
    net.append(nn.Dense(2, 3, has_bias=False))
    assert list(net.name_cells()) == ["0", "conv", "act", "3"]
    del net[1]
    assert list(net.name_cells()) == ["0", "act", "2"]
    assert [type(c).__name__ for c in net] == ["Sigmoid", "Tanh", "Dense"]
    assert names(net) == ["2.weight"]
    for wrong in (lambda: net.insert(0, 1), lambda: net.__setitem__(0, 1)):
        with pytest.raises(TypeError, match="SequentialCell holds Cells, not int"):
            wrong()
    for far in (lambda: net.__delitem__(3), lambda: net.__setitem__(3, nn.ReLU())):
        with pytest.raises(IndexError, match="SequentialCell has 3 cells; there is no number 3"):
            far()
    del net[1:]
    assert list(net.name_cells()) == ["0"]


def test_repr_shows_the_tree():
    assert repr(nn.SequentialCell(nn.Dense(2, 3))) == (
        "SequentialCell(\n  (0): Dense(input_channels=2, output_channels=3, has_bias=True)\n)"
    )


def test_wrappers_check_their_parts():
    with pytest.raises(TypeError, match="TrainOneStepCell: network must be a Cell, not int"):
        nn.TrainOneStepCell(3, nn.SGD([weight("w")]))
    with pytest.raises(TypeError, match="TrainOneStepCell: optimizer must be a Cell, not float"):
        nn.TrainOneStepCell(nn.ReLU(), 0.1)
    with pytest.raises(ValueError, match="TrainOneStepCell: sens must not be 0, with which every gradient is 0"):
        nn.TrainOneStepCell(nn.ReLU(), nn.SGD([weight("w")]), sens=0)
    with pytest.raises(AttributeError, match=r"nn has no 'Dens'; did you mean Dense"):
        nn.Dens  # noqa: B018  # the access is what is tested


def test_what_changes_nothing_is_said_once(capsys: pytest.CaptureFixture[str]) -> None:
    net = nn.Dense(2, 2)
    for _ in range(2):
        net.set_grad()
    said = capsys.readouterr().err
    assert said.count("Cell.set_grad(requires_grad=True) changes nothing here: the training cell decides") == 1
    with pytest.raises(TypeError, match=r"requires_grad"):
        net.set_grad("yes")


class Own(nn.Cell):
    def __init__(self, auto_prefix: bool = True) -> None:
        super().__init__(auto_prefix)
        self.w = Parameter(Tensor(np.ones(2, np.float32)), "a.given.name")


def test_cells_added_to_a_list_are_called_as_mindspore_calls_them() -> None:
    """MindSpore 2.10 gives these names: the second cell's begin as the first one's, up to its last own number."""
    plain, nested = nn.CellList(), nn.CellList()
    for _ in range(3):
        plain.append(nn.Dense(2, 2, has_bias=False))
        nested.append(nn.SequentialCell(nn.ReLU(), nn.Dense(2, 2, has_bias=False)))
    assert [p.name for p in plain.get_parameters()] == ["0.weight", "1.weight", "2.weight"]
    assert [p.name for p in nested.get_parameters()] == ["0.1.weight", "1.1.weight", "2.1.weight"]
    first = nn.CellList([nn.SequentialCell(nn.Dense(2, 2, has_bias=False))])
    first.append(nn.SequentialCell(nn.ReLU(), nn.Dense(2, 2, has_bias=False)))
    first.append(nn.SequentialCell(nn.ReLU(), nn.Dense(2, 2, has_bias=False)))
    assert [p.name for p in first.get_parameters()] == ["0.0.weight", "0.1.1.weight", "0.2.1.weight"]
    pairs = nn.SequentialCell()
    for _ in range(2):
        pairs.append(nn.SequentialCell([nn.SequentialCell([nn.Dense(2, 2, has_bias=False)])]))
    assert [p.name for p in pairs.get_parameters()] == ["0.0.0.weight", "0.0.1.0.0.weight"]


def test_a_batch_norm_of_volumes_holds_its_parameters_in_a_cell_as_in_mindspore() -> None:
    found = nn.SequentialCell(nn.BatchNorm3d(4))
    names = ("moving_mean", "moving_variance", "gamma", "beta")
    assert [p.name for p in found.get_parameters()] == [f"0.bn2d.{name}" for name in names]


class Converts(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Dense(2, 3)

    def construct(self, x: Any) -> Any:
        return self.dense(Tensor(x))


class Wraps(Converts):
    def construct(self, x: Any) -> Any:
        return self.dense(x)


class Doubles(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x * 2


@pytest.mark.parametrize(("cell", "eager"), [(nn.ReLU, False), (Wraps, False), (Converts, True), (Doubles, True)])
def test_numpy_arrays_are_refused_as_in_mindspore(cell: Any, eager: bool) -> None:
    rows = np.ones((1, 2), np.float32)
    message = rf"{cell.__name__}: an argument is a NumPy array of shape \(1, 2\), not a Tensor"
    for graph_mode in (False, True):
        ms.set_context(mode=ms.GRAPH_MODE if graph_mode else ms.PYNATIVE_MODE)
        if eager and not graph_mode:
            assert cell()(rows).shape
            continue
        for call in (lambda: cell()(rows), lambda: cell()(x=rows)):
            with pytest.raises(TypeError, match=message):
                call()


@pytest.mark.parametrize("kind", [np.int32, np.bool_])
def test_integers_are_not_multiplied_by_matrices_of_floats(kind: Any) -> None:
    rows = Tensor(np.ones((1, 2), kind))
    weight = Tensor(np.ones((2, 2), np.float32))
    with pytest.raises(TypeError, match=f"two tensors of floats or of integers, not {rows.dtype} and Float32"):
        rows @ weight
    for call in (lambda: nn.Dense(2, 3)(rows), lambda: ops.matmul(rows, weight)):
        with pytest.raises(TypeError, match=r"MatMul.*: input 0 is \w+ and input 1 is Float32"):
            call()
    assert ops.matmul(rows, rows.T).dtype == rows.dtype
    assert ops.matmul(rows.astype(ms.float16), weight).dtype == ms.float32
