"""Layouts with names, `AutoParallel`, `shard`.

Settings of scripts for files of strategies, and for optimizers that replicas share.
"""

from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.commands.run import run_script
from mspc.communication import init
from mspc.mindspore_api.context import freeze
from mspc.parallel import AutoParallel, Layout
from tests.texts import IMPORTS

layout = Layout((2, 2, 2), ("dp", "sp", "mp"))


def test_first_axis_of_a_tuple_cuts_coarsest():
    cut = layout("mp", ("sp", "dp")).to_layout()
    assert [cut.slice_index(rank) for rank in range(8)] == [
        (0, 0), (1, 0), (0, 2), (1, 2), (0, 1), (1, 1), (0, 3), (1, 3),
    ]  # fmt: skip


def test_unknown_axes_come_with_the_known_ones():
    with pytest.raises(ValueError, match="unknown axis") as caught:
        layout("tp")
    assert caught.value.notes == ("the axes are 'dp', 'sp', 'mp'; \"None\" replicates a dimension",)


def test_auto_parallel_brings_its_own_settings():
    init()
    ms.set_auto_parallel_context(parallel_mode="data_parallel", gradients_mean=True)
    net = AutoParallel(nn.ReLU())
    frozen = freeze(net)
    assert (frozen.parallel_mode, frozen.search_mode, frozen.gradients_mean) == ("semi_auto_parallel", "", False)
    net.dataset_strategy("full_batch")
    net.hsdp(2, 0)
    net.comm_fusion({"allreduce": {"mode": "auto", "config": None}})
    net.enable_gradients_mean()
    frozen = freeze(net)
    assert (frozen.dataset_strategy, frozen.optimizer_shard_size, frozen.optimizer_threshold) == ("full_batch", 2, 0)
    assert frozen.enable_parallel_optimizer
    assert frozen.gradients_mean
    assert freeze(AutoParallel(nn.ReLU(), "sharding_propagation")).search_mode == "sharding_propagation"
    assert freeze().parallel_mode == "data_parallel"


def test_auto_parallel_needs_init_and_a_known_mode():
    with pytest.raises(RuntimeError, match=r"AutoParallel\(\) was called before init\(\)"):
        AutoParallel(nn.ReLU())
    init()
    with pytest.raises(ValueError, match="parallel_mode 'data_parallel' is not one of semi_auto, "):
        AutoParallel(nn.ReLU(), "data_parallel")
    with pytest.raises(TypeError, match="network must be a Cell or a function, not int"):
        AutoParallel(3)


LAYOUT = Layout((2, 2), ("dp", "mp"))


@pytest.mark.parametrize(
    ("plan", "error", "message"),
    [
        ([], TypeError, r"Dense\.shard: parameter_plan must be a dict, not \[\]"),
        ({"weight": None}, TypeError,
         "parameter_plan maps names to tuples of integers or Layouts, not 'weight' to None"),
        ({3: (1, 1)}, TypeError, r"parameter_plan maps names to tuples of integers or Layouts, not 3 to \(1, 1\)"),
        ({"weight": (0, 1)}, TypeError, r"parameter_plan maps names to .*, not 'weight' to \(0, 1\)"),
        ({"w": (1, 1)}, ValueError, "parameter_plan names 'w', which is no parameter of Dense"),
        ({"weight": (1, 1, 1)}, ValueError, r"the strategy \(1, 1, 1\) of parameter 'weight' has 3 entries for 2 dim"),
        ({"weight": (4, 1)}, ValueError, "dimension 0 of parameter 'weight' is 6, which 4 does not divide"),
        ({"bias": (LAYOUT(("dp", "mp")),)}, ValueError, "dimension 0 of parameter 'bias' is 6, which 4 does not"),
    ],
)
def test_plans_that_do_not_fit(plan, error, message):
    with pytest.raises(error, match=message):
        nn.Dense(4, 6).shard(((1, 1),), parameter_plan=plan)


def test_an_interleaved_axis_is_none_of_ranks():
    layout = Layout((2, 4, 2), ("dp", "mp", "interleaved_parallel"))
    assert layout.rank_list == list(range(8))
    found = layout(("dp", "interleaved_parallel"), "mp")
    assert (found.device_matrix, found.axes, found.interleaved) == ((2, 4), ((0,), (1,)), 2)
    assert layout("dp", "interleaved_parallel").strategy == (2, 1)
    sides = [found, layout("dp", "interleaved_parallel"), layout("dp", "mp")]
    assert [entry.interleaved_at for entry in sides] == [0, 1, -1]
    assert layout("dp", ("None", "mp")).axes == layout("dp", "mp").axes
    with pytest.raises(ValueError, match="Layout: axis 'interleaved_parallel' is used twice"):
        layout("interleaved_parallel", "interleaved_parallel")
    with pytest.raises(ValueError, match="Layout: 'interleaved_parallel' must be the last of alias_name"):
        Layout((2, 2), ("interleaved_parallel", "dp"))
    with pytest.raises(ValueError, match="Layout: 'interleaved_parallel' is no axis of ranks; name one beside it"):
        Layout((2,), ("interleaved_parallel",))
    for named in (found, layout("dp", "mp")):
        with pytest.raises(ValueError, match="dataset_strategy takes no Layout with an axis 'interleaved_parallel'"):
            ms.set_auto_parallel_context(dataset_strategy=(named,))


def test_shard_of_functions():
    dense = nn.Dense(4, 6)
    for fn in (dense, dense.construct):
        sharded = ms.shard(fn, ((2, 4),), parameter_plan={"self.weight": (2, 1)})
        assert sharded.in_strategy == ((2, 4),)
        ((parameter, strategy),) = sharded.parameter_plan
        assert parameter is dense.weight
        assert strategy == (2, 1)
    with pytest.raises(ValueError, match="shard: a parameter_plan needs a Cell or its method; a function holds no"):
        ms.shard(ops.relu, ((2, 4),), parameter_plan={"w": (2, 1)})
    with pytest.raises(TypeError, match="shard takes a Cell or a function, not int"):
        ms.shard(3, ((1,),))


def test_a_layout_as_a_dict() -> None:
    layout = ms.Layout((2, 2), ("a", "b"))("a", "None")
    assert layout.to_dict() == {
        "device_matrix": (2, 2), "tensor_map": (1, -1), "interleaved_parallel": False, "alias_name": ("a", "b"),
        "rank_list": [0, 1, 2, 3],
    }  # fmt: skip


def parameters(count: int) -> list[Parameter]:
    return [Parameter(Tensor([1.0, 2.0], ms.float32), f"w{i}") for i in range(count)]


@pytest.mark.parametrize(
    ("mode", "device", "optimizer", "message"),
    [
        ("stand_alone", "Ascend", nn.Lamb, "but there is nothing to share in the mode stand_alone"),
        ("hybrid_parallel", "Ascend", nn.Adam, "but there is nothing to share in the mode hybrid_parallel"),
        ("data_parallel", "CPU", nn.Lamb, "which data_parallel has on Ascend alone, and device_target is CPU"),
        ("data_parallel", "Ascend", nn.Adam, "which data_parallel has for AdamWeightDecay and Lamb alone"),
        ("data_parallel", "Ascend", nn.Lamb, "but 4 ranks have only 3 parameters to share"),
    ],
)
def test_an_optimizer_says_where_replicas_cannot_share_it(mode: str, device: str, optimizer: Any, message: str) -> None:
    ms.set_context(device_target=device)
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=4, enable_parallel_optimizer=True)
    with pytest.raises(RuntimeError) as refused:
        optimizer(parameters(3), learning_rate=0.1)
    assert f"{optimizer.__name__}: enable_parallel_optimizer is on, {message}" in str(refused.value)


@pytest.mark.parametrize(("mode", "count"), [("data_parallel", 4), ("semi_auto_parallel", 1), ("auto_parallel", 1)])
def test_an_optimizer_is_made_where_replicas_can_share_it(mode: str, count: int) -> None:
    ms.set_context(device_target="Ascend")
    ms.set_auto_parallel_context(parallel_mode=mode, device_num=4, enable_parallel_optimizer=True)
    assert len(nn.Lamb(parameters(count), learning_rate=0.1).parameters) == count


def test_a_micro_batch_is_a_part_of_every_input() -> None:
    part = ms.nn.wrap.cell_wrapper._MicroBatch(2)
    x, y = part(1, Tensor([1, 2, 3, 4]), ops.ones((6, 2), ms.float32))
    assert x.asnumpy().tolist() == [3, 4]
    assert y.shape == (3, 2)


SCRIPT = IMPORTS + """
from mindspore.communication import init

ms.set_context(mode=ms.PYNATIVE_MODE)
init()
ms.set_auto_parallel_context({settings})

def product(x, y):
    return ops.matmul(ops.exp(x / 64.0), y)

def total(x, y):
    return product(x, y).sum()

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.fn = {net}

    def construct(self, x, y):
        return self.fn(x, y)

wrapped = (lambda fn: ms.shard(fn, ((2, 1), (1, 2)))) if {cuts} else (lambda fn: fn)
x, y = (Tensor(np.arange(begin, begin + 64).reshape(8, 8), ms.float32) for begin in (0, 7))
results = [wrapped(product)(x, y), wrapped(total)(x, y), ms.grad(wrapped(total), (0, 1))(x, y)]
results += [ms.value_and_grad(wrapped(total))(x, y), ms.jit(wrapped(product))(x, y)]

def told(result):
    if isinstance(result, tuple):
        return [told(each) for each in result]
    return [list(result.shape), float(np.abs(result.asnumpy()).sum(dtype=np.float64).round(1))]

results += [Net()(x, y)] if {holds} else []
print(told(tuple(results)))
"""
MODES = ('parallel_mode="auto_parallel", search_mode="sharding_propagation"', 'parallel_mode="semi_auto_parallel"')


def printed(script: Path, capsys: pytest.CaptureFixture[str], settings: str, ranks: int, net: str = "") -> str:
    script.write_text(SCRIPT.format(settings=settings, net=net or "product", cuts=ranks > 1, holds=bool(net)))
    run_script(script, ranks, simulate=True)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == ranks
    assert len(set(lines)) == 1
    return lines[0]


@pytest.mark.parametrize("settings", MODES)
def test_values_and_shapes_are_those_of_one_device(
    script: Path, capsys: pytest.CaptureFixture[str], settings: str
) -> None:
    one = printed(script, capsys, "", 1)
    assert one.startswith("[[[8, 8], ")
    assert printed(script, capsys, settings, 4) == one


def test_a_network_that_holds_one_is_fed_as_its_settings_say(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = 'parallel_mode="semi_auto_parallel", dataset_strategy="full_batch"'
    found = printed(script, capsys, whole, 4, "ms.shard(product, ((2, 1), (1, 2)))")
    assert found == printed(script, capsys, "", 1, "product")


def test_what_the_script_says_of_its_data_counts(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said = 'parallel_mode="semi_auto_parallel", dataset_strategy=((2, 1), (1, 1))'
    assert printed(script, capsys, said, 4) != printed(script, capsys, MODES[1], 4)
