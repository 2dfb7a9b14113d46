"""Private modules of MindSpore that public code imports."""

from __future__ import annotations

from typing import Any

from mspc import Tensor, context
from mspc.mindspore_api.parallel import queries
from mspc.mindspore_api.state import Session


def test_a_script_asks_how_it_runs() -> None:
    assert (queries._get_parallel_mode(), queries._get_device_num()) == ("stand_alone", 1)
    assert not queries._is_in_auto_parallel_mode()
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
    assert (queries._get_device_num(), queries._get_pipeline_stages()) == (8, 1)
    assert queries._is_in_auto_parallel_mode()
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    assert queries._get_parallel_mode() == "data_parallel"


def test_whether_ranks_are_known(session: Session) -> None:
    from mspc.mindspore_api.communication import _is_initialized

    assert not _is_initialized()
    session.initialized = True
    assert _is_initialized()


def test_private_names_that_packages_import() -> None:
    from mspc.common.initializer import Initializer, _register, initializer
    from mspc.ops.auto_generate import Chunk

    @_register("twos")
    class Two(Initializer):
        def _initialize(self, arr: Any) -> None:
            arr[...] = 2

    assert [initializer(name, (2,)).asnumpy().tolist() for name in ("two", "twos")] == [[2.0, 2.0]] * 2
    assert [part.shape for part in Chunk()(Tensor([[1.0], [2.0], [3.0]]), 2)] == [(2, 1), (1, 1)]
