"""Cells: what they collect and how parameters are named."""

import copy
import tracemalloc
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training import Training, floats

import mspc as ms
from mspc import Parameter, Symbol, Tensor, nn, ops
from mspc.mindspore_api.common.initializers import initial_value
from tests.graphs import FLOAT32, INT32, MspcError


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


class DeclaredNet(nn.Cell):
    def construct(self, x: Any, y: Any = None) -> Any:
        return x.sum() if y is None else (x * y).sum()


class Several(nn.Cell):
    def construct(self, *inputs: Any) -> Any:
        return inputs[0].sum() + inputs[1].sum()


def ones(*shape: int, dtype: Any = np.float32) -> Tensor:
    return Tensor(np.ones(shape, dtype))


def unknown(*shape: Any) -> Tensor:
    return Tensor(shape=shape, dtype=ms.float32)


def test_a_tensor_of_unknown_sizes_has_no_values() -> None:
    tensor = Tensor(shape=[None, -1, Symbol(divisor=2), 16], dtype=ms.float16)
    assert tensor.shape == (-1, -1, -1, 16)
    assert tensor.ndim == 4
    assert tensor.dtype == ms.float16
    assert repr(tensor) == "Tensor(shape=[-1, -1, -1, 16], dtype=Float16, value=)"
    with pytest.raises(ValueError, match=r"shape \(-1, 2\) has no values: it declares inputs in set_inputs"):
        unknown(None, 2).asnumpy()


def test_every_shape_that_fits_is_computed() -> None:
    net = DeclaredNet()
    net.set_inputs(unknown(None, 16), unknown(None, None))
    assert [float(net(ones(n, 16)).asnumpy()) for n in (2, 3, 2, 1)] == [32, 48, 32, 16]
    assert float(net(ones(4, 16), ones(4, 16)).asnumpy()) == 64
    assert net.get_inputs()[0].shape == (-1, 16)


@pytest.mark.parametrize(
    ("declared", "given", "message"),
    [
        (unknown(None, 16), ones(2, 17), r"shape \(2, 17\), but set_inputs declared \(\?, 16\): dimension "
                                         r"1 must be 16, not 17"),
        (unknown(None), ones(2, 2), r"input 'x' has shape \(2, 2\), but set_inputs declared 1 dimensions: \(\?,\)"),
        (ones(2, 3), ones(4, 3), r"dimension 0 must be 2, not 4"),
        (unknown(Symbol(max=8, min=2)), ones(9), r"dimension 0 must be from 2 to 8, not 9"),
        (unknown(Symbol(min=2)), ones(1), r"dimension 0 must be at least 2, not 1"),
        (unknown(Symbol(divisor=4)), ones(6), r"dimension 0 must be a multiple of 4, not 6"),
        (unknown(Symbol(divisor=4, remainder=1)), ones(8), r"dimension 0 must be a multiple of 4 and 1 more, not 8"),
        (unknown(*2 * [Symbol(unique=True)]), ones(3, 4), r"dimension 1 must be 3, as at the other uses of the symbol"),
    ],
)  # fmt: skip
def test_a_call_that_is_not_as_declared(declared: Tensor, given: Tensor, message: str) -> None:
    net = DeclaredNet()
    net.set_inputs(declared)
    with pytest.raises(ValueError, match=f"Net: .*{message}"):
        net(given)


def test_symbols_allow_what_fits() -> None:
    net = DeclaredNet()
    size = Symbol(divisor=4, remainder=1, unique=True)
    net.set_inputs(unknown(size, size), y=unknown(1, size))
    assert float(net(ones(5, 5), ones(1, 5)).asnumpy()) == 25
    with pytest.raises(ValueError, match=r"input 'y' has shape \(1, 9\)"):
        net(ones(5, 5), ones(1, 9))


def test_element_types_names_and_several_inputs() -> None:
    net = DeclaredNet()
    net.set_inputs(x=unknown(None))
    with pytest.raises(TypeError, match="Net: input 'x' has element type Float16, but set_inputs declared Float32"):
        net(ones(2, dtype=np.float16))
    with pytest.raises(TypeError, match=r"Cell.set_inputs: construct\(\): too many positional arguments"):
        net.set_inputs(unknown(None), None, 5)
    with pytest.raises(TypeError, match=r"Cell.set_inputs: construct\(\): got an unexpected keyword argument 'z'"):
        net.set_inputs(z=unknown(None))
    several = Several()
    several.set_inputs(unknown(None), unknown(2))
    assert float(several(ones(3), ones(2)).asnumpy()) == 5
    with pytest.raises(ValueError, match=r"Several: input 'inputs\[1\]' has shape \(3,\)"):
        several(ones(3), ones(3))


ROWS, COLUMNS, BOTH = (0, 4), (8, 0), (8, 4)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "reshape": (lambda net, x: ops.reshape(x, (4, 0)), [ROWS]),
    "reshape that keeps the batch": (lambda net, x: ops.reshape(x, (8, 0)), [(8, 0, 4)]),
    "reshape with what is left": (lambda net, x: ops.reshape(x, (2, -1)), [ROWS]),
    "flatten": (lambda net, x: ops.flatten(x), [(8, 0, 4)]),
    "dimensions of one": (lambda net, x: ops.squeeze(ops.expand_dims(x, 1), 1), [ROWS]),
    "transpose": (lambda net, x: ops.transpose(x, (1, 0)), [ROWS]),
    "sums": (lambda net, x: ops.reduce_sum(x, 0), [ROWS]),
    "means": (lambda net, x: ops.reduce_mean(x, 1), [COLUMNS]),
    "mean of everything": (lambda net, x: ops.reduce_mean(x), [ROWS]),
    "variance": (lambda net, x: x.var(), [COLUMNS]),
    "mean squared error": (lambda net, x: ops.mse_loss(x, x * 2), [ROWS]),
    "softmax": (lambda net, x: ops.softmax(x) + ops.log_softmax(x), [COLUMNS]),
    "rows side by side": (lambda net, x, y: ops.concat((x, y), 0), [ROWS, BOTH]),
    "columns side by side": (lambda net, x, y: ops.concat((x, y), 1), [COLUMNS, BOTH]),
    "stack": (lambda net, x: ops.stack((x, x)), [ROWS]),
    "tile": (lambda net, x: ops.tile(x, (2, 1)), [ROWS]),
    "padding": (lambda net, x: ops.Pad(((1, 1), (0, 0)))(x), [ROWS]),
    "product over nothing": (lambda net, x, y: ops.matmul(x, y), [COLUMNS, ROWS]),
    "product of nothing": (lambda net, x: ops.matmul(x, net.w) + net.b, [ROWS]),
    "changes of layout": (
        lambda net, x: ops.Tanh().shard(((1, 1),))(ops.ReLU().shard(((1, 2),))(ops.Sin().shard(((2, 1),))(x))),
        [ROWS],
    ),
}


class EmptyNet(nn.Cell):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.w, self.b = Parameter(Tensor(floats(1, 4, 4)), "w"), Parameter(Tensor(floats(2, 4)), "b")
        self.form = form

    def construct(self, *inputs: Any) -> Any:
        return self.form(self, *inputs)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_one_device(name: str, mode: str) -> None:
    form, shapes = CASES[name]
    data = [floats(3 + i, *shape) for i, shape in enumerate(shapes)]
    found: list[list[np.ndarray]] = []
    for ranks in (1, 2):
        net = EmptyNet(form)
        cell = nn.ForwardValueAndGrad(net, [net.w, net.b], get_all=True, get_by_list=True)
        value, (inputs, weights) = Training(cell, shapes, ranks, mode if ranks > 1 else "stand_alone").run([data])[0]
        found.append([np.asarray(array) for array in (value, *inputs, *weights)])
    assert [array.shape for array in found[1][1:]] == [*shapes, (4, 4), (4,)]
    for one, many in zip(*found, strict=True):
        np.testing.assert_allclose(many, one, 1e-5, 1e-5)


def test_layouts_on_meshes_of_several_axes() -> None:
    """No rank lacks an element of nothing, whatever the layouts are: shapes change all the same."""

    def form(net: Any, x: Any) -> Any:
        y = ops.Abs().shard(((1, 2),))(x)
        return ops.Maximum().shard(((4, 1), (4, 1)))(y, ops.Neg().shard(((1, 4),))(y))

    assert Training(EmptyNet(form), [ROWS], 4, "semi_auto_parallel").run([(floats(3, *ROWS),)])[0].shape == ROWS


def test_dropout_works_in_training_only():
    x = Tensor(np.ones((64, 64)), ms.float32)
    dropout = nn.Dropout(p=0.25)
    assert dropout.construct(x) is x
    dropout.set_train()
    out = dropout.construct(x).asnumpy()
    assert set(np.unique(out)) == {0, np.float32(1 / 0.75)}
    assert (out == 0).mean() == pytest.approx(0.25, abs=0.03)
    other = nn.Dropout(p=0.25).set_train().construct(x).asnumpy()
    assert (out != other).any()
    assert nn.Dropout(0.9).p == pytest.approx(0.1)


def test_no_init_parameters_draws_the_same_numbers():
    def draw(lazily):
        ms.set_seed(5)
        if lazily:
            with nn.utils.no_init_parameters():
                return nn.Dense(4, 2).weight
        return nn.Dense(4, 2).weight

    late = draw(True)
    assert late.has_init
    assert np.array_equal(late.asnumpy(), draw(False).asnumpy())


SHAPES = ((), (5,), (600000,), (700, 900), (3, 600000), (2, 3, 200, 1000), (2, 2, 530000), (4, 0, 3))


@pytest.mark.parametrize("init", ["normal", "uniform", "truncatednormal", "xavier_uniform", "he_normal", "ones"])
@pytest.mark.parametrize("shape", SHAPES)
def test_slices_hold_the_numbers_of_the_whole(init, shape):
    if len(shape) < 2 and init in ("xavier_uniform", "he_normal"):
        return
    if 0 in shape and init == "he_normal":
        return
    value = initial_value(init, shape, ms.float32)
    whole = value.fill()
    assert whole.shape == shape
    rng = np.random.default_rng(0)
    for _ in range(4):
        first = [int(rng.integers(0, n + 1)) for n in shape]
        cut = tuple(slice(i, int(rng.integers(i, n + 1))) for i, n in zip(first, shape, strict=True))
        np.testing.assert_array_equal(value.fill(cut), whole[cut])
    assert value.restyled(ms.float16).fill().dtype == np.float16


@pytest.mark.parametrize(
    ("init", "shape", "cut"),
    [
        ("normal", (8192, 2048), (slice(1024, 2048), slice(None))),
        ("truncatednormal", (8192, 2048), (slice(None), slice(128, 384))),
        ("he_uniform", (1, 1 << 24), (slice(None), slice(1 << 21))),
    ],
)
def test_a_slice_is_drawn_without_the_whole(init, shape, cut):
    """The global tensor is 64 MB, a slice 8 MB, a block 2 MB."""
    value = initial_value(init, shape, ms.float32)
    tracemalloc.start()
    mine = value.fill(cut)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert mine.nbytes == 8 << 20
    assert peak < mine.nbytes + (12 << 20)


LOGITS = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
LOSSES: list[Callable[[Any, Any], Any]] = [
    lambda x, y: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")(x, y),
    lambda x, y: ops.SparseSoftmaxCrossEntropyWithLogits()(x, y),
    lambda x, y: nn.CrossEntropyLoss()(x, y),
    lambda x, y: nn.NLLLoss()(x, y),
    lambda x, y: ops.cross_entropy(x, y),
    lambda x, y: ops.nll_loss(x, y),
]


@pytest.mark.parametrize("label", [3, 7, -1])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_label_that_is_no_class(loss: Callable[[Any, Any], Any], label: int) -> None:
    with pytest.raises(MspcError, match=rf"label {label} is not from 0 to 2"):
        loss(LOGITS, Tensor(np.array([1, label], np.int32)))


@pytest.mark.parametrize("cut", [(2, 1), (1, 2)])
def test_on_ranks_classes_are_those_of_all(cut: tuple[int, int]) -> None:
    """A label beside the classes of a rank's own slice is no mistake."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.double = ops.Mul().shard((cut, ()))

        def construct(self, x: Any, y: Any) -> Any:
            return ops.cross_entropy(self.double(x, 2.0), y)

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    training = Training(Net(), [(4, 4), (4,)], 2, "semi_auto_parallel", [FLOAT32, INT32])
    (found,) = training.run([[x, np.array([0, 3, 1, 2], np.int32)]])
    expected = ops.cross_entropy(Tensor(x * 2), Tensor(np.array([0, 3, 1, 2], np.int32)))
    np.testing.assert_allclose(np.asarray(found), expected.asnumpy(), rtol=1e-6)
    with pytest.raises(MspcError, match=r"label 4 is not from 0 to 3"):
        training.run([[x, np.array([0, 3, 1, 4], np.int32)]])


@pytest.mark.parametrize(("operator", "shape"), [(ops.Dropout2D, (16, 32, 3, 2)), (ops.Dropout3D, (16, 32, 2, 3, 2))])
def test_channels_are_dropped_as_a_whole(operator: Any, shape: tuple[int, ...]) -> None:
    out, mask = (t.asnumpy() for t in operator(0.75)(Tensor(np.full(shape, 3.0, np.float32))))
    assert out.shape == mask.shape == shape
    assert mask.dtype == np.bool_
    channels = mask.reshape(16, 32, -1)
    assert (channels == channels[:, :, :1]).all()
    assert 0.65 < channels[:, :, 0].mean() < 0.85
    np.testing.assert_array_equal(out, np.where(mask, np.float32(4.0), np.float32(0.0)))
