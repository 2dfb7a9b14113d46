"""Mistakes in a script or a network: clear messages at the user's line, status 2, nothing written."""

import linecache
import os
from itertools import product
from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state
from mspc.mindspore_api.context import freeze, set_auto_parallel_context
from mspc.mindspore_api.setting_kind import Setting, with_entries
from mspc.mindspore_api.settings import CONTEXT, PARALLEL
from mspc.runtime.device_choice import DeviceRequest, Probe, choose_device
from tests.compiled_scripts import CompileOptions, compile_target, run_script
from tests.errors import error_of, message_of
from tests.serving import SERVED, run_process

NETWORK = """\
import numpy as np
import mindspore as ms
from mindspore import nn, ops, Tensor, Parameter

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, dataset_strategy="full_batch")


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones((12, 16), np.float32), "w")
        self.first = ops.MatMul()<MATMUL>
        self.act = ops.ReLU()<RELU>

    def construct(self, x):
        y = self.first(x, self.w)
        <LINE>
        return self.act(y)


net = Net()
net(Tensor(np.ones((8, <COLUMNS>)), ms.float32))
"""
DEFAULTS = {"MATMUL": "", "RELU": "", "LINE": "y = y + 1.0", "COLUMNS": "12"}
AT_MATMUL = "        y = self.first(x, self.w)\n" + " " * 16 + "^" * 21 + "\n"
AT_RELU = "        return self.act(y)\n" + " " * 19 + "^" * 11 + "\n"

MISTAKES: dict[str, tuple[dict[str, str], str]] = {
    "a strategy does not divide a dimension": (
        {"MATMUL": ".shard(((1, 8), (8, 1)))"},
        "net.py:16:13: error: MatMul 'first': dimension 1 of input 0 is 12, which 8 does not divide\n"
        f"    {AT_MATMUL}"
        "  note: shard it into 1, 2, 3, 4, 6 or 12 slices\n",
    ),
    "a strategy has an entry too many": (
        {"MATMUL": ".shard(((2, 4), (4, 1), (1, 1)))"},
        "net.py:16:13: error: MatMul 'first': the strategy has 3 entries, but the operator has 2 "
        "tensor inputs\n"
        f"    {AT_MATMUL}"
        "  note: give one tuple per input, for example ((1, 1), (1, 1))\n",
    ),
    "an entry of a strategy is too short": (
        {"RELU": ".shard(((8,),))"},
        "net.py:18:16: error: ReLU 'act': the strategy of input 0 is (8,), which has 1 numbers "
        "for 2 dimensions, "
        "whose shape is (8, 16)\n"
        f"    {AT_RELU}"
        "  note: give one number per dimension, for example (1, 1)\n",
    ),
    "a strategy needs more ranks than there are": (
        {"MATMUL": ".shard(((8, 4), (4, 1)))"},
        "net.py:16:13: error: MatMul 'first': the strategy ((8, 4), (4, 1)) needs 32 ranks, but there are 8\n"
        f"    {AT_MATMUL}"
        "  note: the product of its numbers must divide 8\n"
        "  note: all strategies of the network divide 32 ranks, and multiples of 32\n",
    ),
    "a strategy does not divide the ranks": (
        {"MATMUL": ".shard(((1, 3), (3, 1)))"},
        "net.py:16:13: error: MatMul 'first': the strategy ((1, 3), (3, 1)) uses 3 ranks, which "
        "does not divide 8\n"
        f"    {AT_MATMUL}"
        "  note: the product of its numbers must divide 8\n"
        "  note: all strategies of the network divide 3 ranks, and multiples of 3\n",
    ),
    "a strategy disagrees on the inner dimension": (
        {"MATMUL": ".shard(((2, 4), (2, 1)))"},
        "net.py:16:13: error: MatMul 'first': dimension 0 of input 1 is sharded into 2 slices, "
        "but dimension 1 of input 0 into 4, and both are the same dimension of the operator\n"
        f"    {AT_MATMUL}"
        "  note: shard both into 4, or both into 2\n",
    ),
    "shapes do not fit": (
        {"COLUMNS": "13"},
        "net.py:16:13: error: MatMul 'first': dimension 0 of input 1 is 12, but dimension 1 of "
        "input 0 says 13\n"
        f"    {AT_MATMUL}"
        "  note: the shapes are (8, 13), (12, 16)\n",
    ),
    "a statement is not supported": (
        {"LINE": "with open('x') as f: pass"},
        "net.py:17:14: error: open() is not supported inside a compiled function\n"
        "            with open('x') as f: pass\n"
        "                 ^^^^^^^^^\n",
    ),
    "a name is not defined": (
        {"LINE": "y = y + unknown"},
        "net.py:17:17: error: name 'unknown' is not defined\n"
        "            y = y + unknown\n"
        "                    ^^^^^^^\n",
    ),
    "two independent mistakes": (
        {"MATMUL": ".shard(((1, 8), (8, 1)))", "RELU": ".shard(((3, 1),))"},
        "net.py:16:13: error: MatMul 'first': dimension 1 of input 0 is 12, which 8 does not divide\n"
        f"    {AT_MATMUL}"
        "  note: shard it into 1, 2, 3, 4, 6 or 12 slices\n"
        "net.py:18:16: error: ReLU 'act': dimension 0 of input 0 is 8, which 3 does not divide\n"
        f"    {AT_RELU}"
        "  note: shard it into 1, 2, 4 or 8 slices\n"
        "2 errors\n",
    ),
}


def refused(folder: Path, *arguments: str) -> str:
    """The message of a compile that must fail, write nothing and show no traceback."""
    before = sorted(folder.iterdir())
    variables = {k: v for k, v in os.environ.items() if not k.startswith("OMPI_")}
    done = run_process(*SERVED, "compile", *arguments, cwd=folder, env=variables)
    assert (done.returncode, done.stdout) == (2, "")
    assert sorted(folder.iterdir()) == before
    return message_of(done.stderr)


@pytest.mark.parametrize("name", sorted(MISTAKES))
def test_network_is_refused(tmp_path: Path, name: str) -> None:
    changes, message = MISTAKES[name]
    text = NETWORK
    for key, value in (DEFAULTS | changes).items():
        text = text.replace(f"<{key}>", value)
    (tmp_path / "net.py").write_text(text)
    assert refused(tmp_path, "net.py", "--save-graphs") == message


def test_error_of_the_script_shows_its_own_lines(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text("def read():\n    return {}['key']\n\nread()\n")
    assert refused(tmp_path, "net.py") == (
        "Traceback (most recent call last):\n"
        '  File "net.py", line 4, in <module>\n'
        "    read()\n"
        '  File "net.py", line 2, in read\n'
        "    return {}['key']\n"
        "           ~~^^^^^^^\n"
        "KeyError: 'key'\n"
    )


NAMED = """\
from mindspore import nn


class Net(nn.Cell):
    def __init__(self, width, bias=False):
        super().__init__()
        self.factor = 2.0 * width

    def construct(self, x):
        return x * self.factor
"""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ("net.py:Net(3)",),
            "error: the network Net needs its inputs\n"
            "  note: give one --input per argument: --input 'float32[16,32]'\n",
        ),
        (
            ("net.py:Nett(3)", "--input", "float32[4]"),
            "error: net.py defines no 'Nett'\n  note: it defines Net\n",
        ),
        (
            ("net.py:Net()", "--input", "float32[4]"),
            "error: cannot build Net: missing a required argument: 'width'\n",
        ),
        (
            ("net.py:Net(open('x'))", "--input", "float32[4]"),
            "error: cannot read \"Net(open('x'))\" as a network\n"
            "  note: write a class and literal arguments: 'net.py:Net(32, 16, bias=True)'\n",
        ),
        (
            ("net.py:Net(3)", "--input", "float3[4]"),
            "error: 'float3[4]': unknown element type 'float3'\n"
            "  note: did you mean 'float32', 'float64' or 'float16'?\n"
            "  note: known are bool, int8, int16, int32, int64, uint8, uint16, uint32, uint64, "
            "float8e4m3, float8e5m2, float16, bfloat16, "
            "float32, float64, complex64, complex128\n",
        ),
        (
            ("net.py:Net(3)", "--input", "4x4"),
            "error: cannot read '4x4' as an input\n"
            "  note: write an element type and a shape: float32[16,32]\n",
        ),
        (
            ("net.py:Net(3)", "--input", "float32[4]", "--input", "float32[4]"),
            "error: construct() takes 1 argument (x), not 2\n",
        ),
        (
            ("net.py", "--input", "float32[4]"),
            "error: --input is for a named network, and net.py is a script\n"
            "  note: write 'net.py:Net()' to name one\n",
        ),
        (
            ("net.py:Net(3)", "--input", "float32[4]", "--rank", "1"),
            "error: there is no rank 1; ranks are 0 to 0\n"
            "  note: --ranks says how many ranks there are; --rank names those that are written\n",
        ),
        (("other.py:Net(3)", "--input", "float32[4]"), "error: there is no script 'other.py'\n"),
    ],
)
def test_named_network_is_refused(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    (tmp_path / "net.py").write_text(NAMED)
    assert refused(tmp_path, *arguments) == message


LARGE = """\
from mindspore import Parameter, nn, ops
from mindspore.common.initializer import initializer


class Net(nn.Cell):
    def __init__(self, *shape):
        super().__init__()
        self.w = Parameter(initializer("ones", shape), "w")

    def construct(self, x):
        return ops.expand_dims(x, 1) * ops.expand_dims(x, 0) + ops.reduce_sum(self.w)
"""


@pytest.mark.parametrize(
    ("shape", "size", "begin"),
    [
        ("1", 10**30, "error: 'float32[1000000"),
        ("1", int("9" * 4000), "error: 'float32[9999999"),
        ("1", 10**11, "net.py:11:16: error: Mul: <Tensor[Float32], (100000000000, 100000000000)> "),
        ("10**9, 10**9, 10", 1, "error: parameter 'w': <Tensor[Float32], (1000000000, 1000000000, 10)> "),
    ],
    ids=["a size", "digits", "an operator", "a parameter"],
)
def test_what_no_memory_holds_is_not_written(tmp_path: Path, shape: str, size: int, begin: str) -> None:
    (tmp_path / "net.py").write_text(LARGE.replace("*shape):", "):").replace("shape)", f"({shape},))"))
    said = refused(tmp_path, "net.py:Net()", "--input", f"float32[{size}]")
    assert said.startswith(begin)
    assert "has more elements than any memory holds\n" in said


SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import init
from mindspore.parallel.auto_parallel import AutoParallel

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel")
{before}
class Net(nn.Cell):
    def construct(self, x):
        return ops.relu(x)

net = Net()
{after}
net(Tensor(np.ones((8, 4), np.float32)))
"""
BEFORE = 10
"""The line of what is set before the network is made."""
AFTER = BEFORE + 7
"""The line of a method of `AutoParallel`, which one that makes it stands before."""
METHODS = {
    "dataset_strategy(((3, 1),))": "dataset_strategy",
    "hsdp(shard_size=16)": "optimizer_weight_shard_size",
    "load_param_strategy_file('broken.ckpt')": "broken.ckpt",
    "load_operator_strategy_file('broken.ckpt')": "broken.ckpt",
    "save_param_strategy_file('file/out.ckpt')": "file",
    "save_operator_strategy_file('file/out.json')": "file",
    "set_group_ckpt_save_file('file/out.ckpt')": "file",
}
"""Calls of an AutoParallel, and what the error names."""
VALUES: tuple[object, ...] = (
    3, 16, "broken.ckpt", "file/out.ckpt", "full_batch", "data_parallel", ((3, 1),), ((2, 1), (2, 1)), ((2,),), True
)
"""Some of them are legal for a setting, and of these some wrong here."""
NEEDED = {"optimizer_weight_shard_size": "enable_parallel_optimizer=True, "}
"""Settings that are needed for another setting to count."""
WRONG_HERE = {
    "dataset_strategy", "full_batch", "optimizer_weight_shard_size", "strategy_ckpt_load_file", "load_file",
    "operator_load_file", "strategy_ckpt_save_file", "save_file", "operator_save_file", "group_ckpt_save_file",
    "save_graphs_path", "pipeline_stages",
}  # fmt: skip
"""Settings of which a legal value is wrong here. (`device_num` and the device are nothing to a compile by --ranks.)"""


@pytest.fixture
def folder(own_folder: Path) -> Path:
    Path("broken.ckpt").write_bytes(b"\xff\xff\xff")
    Path("file").write_text("")
    return own_folder


def refusal(before: str = "", after: str = "", runs: bool = False) -> MspcError | None:
    """The error of a script that 4 ranks compile, or run, if any."""
    script = Path("net.py")
    script.write_text(SCRIPT.format(before=before, after=after))
    linecache.clearcache()
    try:
        if runs:
            run_script(script, 4, simulate=True)
        else:
            compile_target("net.py", CompileOptions(ranks=4))
    except MspcError as error:
        return error
    return None


def calls_of(function: str, name: str, setting: Setting) -> list[str]:
    """A call of a function for every value that a setting may have."""
    key, _, entry = name.partition("[")
    found: list[str] = []
    for value in VALUES:
        try:
            setting.check(name, value)
        except MspcError:
            continue
        given = repr({entry.strip("']"): value}) if entry else repr(value)
        others = NEEDED.get(setting.name, "")
        found.append(f"ms.{function}({others}{key}={given})")
    return found


def test_wrong_values_of_all_settings_are_told_at_their_calls(folder: Path) -> None:
    wrong: set[str] = set()
    tables = (("set_context", CONTEXT), ("set_auto_parallel_context", PARALLEL))
    for function, table in tables:
        for name, setting in with_entries(table):
            heeded = setting.changes and not setting.entries and name != "device_target"
            for call in calls_of(function, name, setting) if heeded else []:
                full = call.replace("full_batch=True", "parallel_mode='data_parallel', full_batch=True")
                error = refusal(full)
                if error is None:
                    continue
                wrong.add(setting.name)
                assert error.location is not None, f"{call}: {error}"
                where = (error.location.file, error.location.line, error.location.column, error.location.end_column)
                assert where == ("net.py", BEFORE, 1, len(full) + 1), f"{call}: {error}"
                assert str(error).split("\n")[1:3] == [f"    {full}", f"    {'^' * len(full)}"]
    assert wrong == WRONG_HERE


@pytest.mark.parametrize(("call", "runs"), [*product(METHODS, (False, True))])
def test_wrong_values_of_methods_are_told_at_their_calls(call: str, runs: bool, folder: Path) -> None:
    error = refusal(after=f"net = AutoParallel(net)\nnet.{call}", runs=runs)
    assert error is not None
    assert METHODS[call] in error.message
    assert str(error).split("\n")[0].startswith(f"net.py:{AFTER}:1: error: ")
    assert str(error).split("\n")[1] == f"    net.{call}"


def test_a_call_over_several_lines_is_told_at_its_first(folder: Path) -> None:
    call = "ms.set_auto_parallel_context(\n    enable_alltoall=False,\n    dataset_strategy=((3, 1),),\n)"
    assert str(refusal(call)) == (
        f"net.py:{BEFORE}:1: error: dataset_strategy of input 0 is (3, 1), whose product does not divide 4 ranks\n"
        "    ms.set_auto_parallel_context(\n    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^"
    )


def test_the_last_call_counts_and_a_reset_forgets(folder: Path) -> None:
    first, last = "ms.set_auto_parallel_context(full_batch=True)", "ms.context.set_auto_parallel_context"
    error = refusal(first, f"{last}(dataset_strategy=((3, 1),))")
    assert error is not None
    assert str(error).startswith("net.py:16:1: error: dataset_strategy")
    set_auto_parallel_context(dataset_strategy="full_batch")
    assert freeze().place_of("dataset_strategy") is not None
    assert freeze().place_of("full_batch") == freeze().place_of("dataset_strategy")
    reset = "ms.reset_auto_parallel_context()\nms.set_auto_parallel_context(parallel_mode='semi_auto_parallel')"
    assert refusal(f"{first}\n{reset}") is None


def test_settings_of_the_context_are_not_blamed_for_those_of_a_network(folder: Path) -> None:
    error = refusal("ms.set_auto_parallel_context(dataset_strategy=((3, 1),))", "net = AutoParallel(net)")
    assert error is None, "AutoParallel has data of its own"


class NoGpu(Probe):
    """A machine without a GPU."""

    def gpus(self) -> tuple[int, str]:
        return 0, "no GPU is visible here"


def test_a_device_that_is_not_there_is_told_at_its_call() -> None:
    from mspc.mindspore_api.context import set_context
    from mspc.mindspore_api.runtime import asked_device

    set_context(device_target="GPU")
    with pytest.raises(MspcError, match="asks for a GPU") as raised:
        choose_device("auto", 0, 1, DeviceRequest(**asked_device()), NoGpu())
    assert raised.value.location == state.current().set_at["device_target"]
    assert raised.value.location.text.strip() == 'set_context(device_target="GPU")'
    with pytest.raises(MspcError, match="--device gpu asks") as raised:
        choose_device("gpu", 0, 1, DeviceRequest(**asked_device()), NoGpu())
    assert raised.value.location is None


def test_a_rank_that_may_mean_a_number_of_ranks(folder: Path) -> None:
    Path("net.py").write_text(SCRIPT.format(before="", after=""))
    assert str(error_of(compile_target, "net.py", CompileOptions(only_ranks=(4,)))) == (
        "error: there is no rank 4; ranks are 0 to 0\n"
        "  note: --ranks says how many ranks there are, as in --ranks 4; --rank names those that are written"
    )
    error = error_of(compile_target, "net.py", CompileOptions(ranks=4, only_ranks=(4,)))
    assert str(error) == "error: there is no rank 4; ranks are 0 to 3"
