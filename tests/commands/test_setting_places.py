"""A value that a setting may have, but not with these ranks, inputs or files, is refused at the call that set it."""

from __future__ import annotations

import linecache
from itertools import product
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state
from mspc.mindspore_api.context import freeze, set_auto_parallel_context
from mspc.mindspore_api.setting_kind import Setting, with_entries
from mspc.mindspore_api.settings import CONTEXT, PARALLEL
from mspc.runtime.device_choice import DeviceRequest, Probe, choose_device

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
    with pytest.raises(MspcError) as raised:
        compile_target("net.py", CompileOptions(only_ranks=(4,)))
    assert str(raised.value) == (
        "error: there is no rank 4; ranks are 0 to 0\n"
        "  note: --ranks says how many ranks there are, as in --ranks 4; --rank names those that are written"
    )
    with pytest.raises(MspcError) as raised:
        compile_target("net.py", CompileOptions(ranks=4, only_ranks=(4,)))
    assert str(raised.value) == "error: there is no rank 4; ranks are 0 to 3"
