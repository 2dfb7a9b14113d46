"""Private modules of MindSpore that public code imports."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mspc as ms
from mspc import Tensor, context, nn
from mspc.mindspore_api import _checkparam as checks
from mspc.mindspore_api.common import api
from mspc.mindspore_api.parallel import queries
from mspc.mindspore_api.state import Session


def test_checks_give_back_what_they_are_given() -> None:
    assert checks.check_positive_int(3, "n") == checks.check_number("n", 3, 2, checks.GT) == 3
    assert checks.check_positive_float(0.5) == checks.check_float_range(0.5, 0, 1, checks.INC_NEITHER) == 0.5
    assert checks.check_value_type("x", None, [int, type(None)]) is None
    assert checks.check_subclass("x", bool, [int]) is bool
    assert (checks.twice(3), checks.triple([1, 2, 3])) == ((3, 3), (1, 2, 3))

    @checks.args_type_check(name=str)
    def named(name: Any, size: Any = 0) -> Any:
        return name, size

    assert named("a", 2) == ("a", 2)
    with pytest.raises(TypeError, match="For 'named', the 'name' must be of type 'str', but got 1"):
        named(1)


def test_a_script_asks_how_it_runs() -> None:
    assert (queries._get_parallel_mode(), queries._get_device_num()) == ("stand_alone", 1)
    assert not queries._is_in_auto_parallel_mode()
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
    assert (queries._get_device_num(), queries._get_pipeline_stages()) == (8, 1)
    assert queries._is_in_auto_parallel_mode()
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    assert queries._get_parallel_mode() == "data_parallel"


def test_what_stands_for_a_library() -> None:
    from mspc._c_expression import MSContext
    from mspc._extends import cell_attr_register

    assert MSContext.get_instance().is_pkg_support_device("CPU")

    class Net(nn.Cell):
        @cell_attr_register(attrs=["size"])
        def __init__(self, size: int) -> None:
            super().__init__()
            self.size = size

        @cell_attr_register
        def construct(self, x: Any) -> Any:
            return x * self.size

    assert Net(3)(Tensor([2.0])).asnumpy().tolist() == [6.0]
    assert api._executor is api._cell_graph_executor


def test_whether_ranks_are_known(session: Session) -> None:
    from mspc.mindspore_api.communication import _is_initialized

    assert not _is_initialized()
    session.initialized = True
    assert _is_initialized()


def test_kinds_of_types_and_folders(tmp_path: Path) -> None:
    from mspc._c_expression import typing
    from mspc._c_expression.typing import BFloat
    from mspc.train._utils import _make_directory

    assert isinstance(ms.float16, typing.Float)
    assert isinstance(ms.bfloat16, BFloat)
    assert isinstance(ms.bfloat16, typing.Number)
    assert not isinstance(ms.bfloat16, typing.Float)
    assert not isinstance(ms.float32, BFloat)
    assert isinstance(ms.int8, typing.Number)
    assert not isinstance(ms.int8, typing.Float)
    assert _make_directory(str(tmp_path / "a" / "b")) == str((tmp_path / "a" / "b").resolve())
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(TypeError):
        _make_directory("")


def test_private_names_that_packages_import(capsys: pytest.CaptureFixture[str]) -> None:
    from mspc import Parameter, log
    from mspc.common.initializer import Initializer, _register, initializer
    from mspc.log import _LogActionOnce
    from mspc.ops.auto_generate import Chunk
    from mspc.train.amp import _auto_black_list
    from mspc.train.serialization import _load_dismatch_prefix_params

    @_LogActionOnce(logger=log, key="test_private_names")
    def warned() -> int:
        log.warning("once")
        return 3

    assert [warned(), warned()] == [3, 3]
    assert capsys.readouterr().err == "[WARNING] once\n"

    @_register("twos")
    class Two(Initializer):
        def _initialize(self, arr: Any) -> None:
            arr[...] = 2

    assert [initializer(name, (2,)).asnumpy().tolist() for name in ("two", "twos")] == [[2.0, 2.0]] * 2
    assert [part.shape for part in Chunk()(Tensor([[1.0], [2.0], [3.0]]), 2)] == [(2, 1), (1, 1)]
    cell = nn.SequentialCell(nn.Dense(2, 2), nn.BatchNorm1d(2))
    missing = ["0.weight", "0.bias", "1.gamma"]
    given = {f"old.{name}": Parameter(Tensor([[3.0, 3.0]] * 2 if "w" in name else [1.0, 1.0])) for name in missing[:2]}
    _load_dismatch_prefix_params(cell, given, missing, False)
    assert missing == ["1.gamma"]
    assert cell[0].weight.asnumpy().tolist() == [[3.0, 3.0], [3.0, 3.0]]
    assert _auto_black_list(cell, [nn.BatchNorm1d], ms.float16)(Tensor([[1.0, 2.0]])).dtype == ms.float16
