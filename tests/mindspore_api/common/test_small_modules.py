"""Names of MindSpore that say something of a compile or a run and make nothing: `Symbol`, `JitConfig`, `log`,
`GlobalComm`, facts attached to operators."""

from __future__ import annotations

import pytest

import mspc as ms
from mspc import log, nn, ops
from mspc.mindspore_api.communication.group import GlobalComm, require_init
from mspc.mindspore_api.ops.own_operators import _get_cache_prim
from mspc.mindspore_api.state import Session


def test_a_cell_takes_the_configuration_of_a_compile() -> None:
    cell = nn.Cell()
    cell.set_jit_config(ms.JitConfig(jit_level="O1", exc_mode="no_sink"))
    with pytest.raises(TypeError, match="set_jit_config takes a JitConfig, not str"):
        cell.set_jit_config("O1")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match="jit_level"):
        ms.JitConfig(jit_level="O9")
    with pytest.raises(ValueError, match="JitConfig has no key 'level'"):
        ms.JitConfig(level=1)


def test_messages_from_the_level_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    log.info("hidden")
    log.warning("%d of %s", 1, "two")
    log.error("100 %")
    monkeypatch.setenv("GLOG_v", "4")
    log.error("hidden")
    log.critical("shown")
    assert capsys.readouterr().err == "[WARNING] 1 of two\n[ERROR] 100 %\n[CRITICAL] shown\n"
    monkeypatch.setenv("GLOG_v", "0")
    log.debug("shown")
    assert capsys.readouterr().err == "[DEBUG] shown\n"
    monkeypatch.setenv("GLOG_v", "loud")
    assert log.get_level() == "2"


def test_what_global_comm_says_is_the_session(session: Session) -> None:
    assert GlobalComm.INITED is False
    with pytest.raises(RuntimeError, match=r"work\(\) was called before init\(\)"):
        require_init("work")
    GlobalComm.INITED = True
    assert session.initialized
    assert require_init("work") is session
    with pytest.raises(TypeError, match=r"GlobalComm.INITED must be True or False, not 1"):
        GlobalComm.INITED = 1  # type: ignore[assignment]  # that is the test


def test_operators_that_are_kept_are_made_anew() -> None:
    first, second = _get_cache_prim(ops.ReLU)(), _get_cache_prim(ops.ReLU)()
    assert isinstance(first, ops.ReLU)
    assert first is not second


def test_facts_of_an_operator_are_plain_values() -> None:
    relu = ops.ReLU().add_prim_attr("layout", {"dev_matrix": (2, 2), "maps": [[1, 0], []]})
    assert relu.attrs == {"layout": (("dev_matrix", (2, 2)), ("maps", ((1, 0), ())))}
    with pytest.raises(TypeError, match=r"ReLU.add_prim_attr: cell must be plain values, not Cell"):
        relu.add_prim_attr("cell", nn.Cell())
    with pytest.raises(TypeError, match=r"add_prim_attr: (the )?name must be a string, not 3"):
        relu.add_prim_attr(3, "x")  # type: ignore[arg-type]  # that is the test


def test_shapes_in_lists_within_a_tuple_are_shapes() -> None:
    exchange = ops.NeighborExchange([0], [1, 2], ([32, 32], [32, 64]), ([32, 16],), ms.float32)
    assert exchange.recv_shapes == ((32, 32), (32, 64))
