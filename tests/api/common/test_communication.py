"""Ranks and groups."""

from __future__ import annotations

import re

import pytest

from mspc import communication as comm
from mspc import ops
from mspc.api import state
from mspc.api.state import Session


@pytest.fixture
def eight() -> Session:
    session = Session.of_rank(5, 8)
    state.swap(session)
    comm.init("nccl")
    return session


def test_ranks_and_groups(eight):
    assert (comm.get_rank(), comm.get_group_size(), comm.get_local_rank(), comm.get_local_rank_size()) == (
        5,
        8,
        5,
        8,
    )
    comm.create_group("odd", [7, 1, 5, 3])  # a group has the order in which it is written
    assert comm.get_process_group_ranks("odd") == [7, 1, 5, 3]
    assert (comm.get_rank("odd"), comm.get_group_size("odd"), comm.get_comm_name("odd")) == (2, 4, "odd")
    assert (comm.get_local_rank("odd"), comm.get_local_rank_size("odd")) == (2, 4)
    assert [comm.get_world_rank_from_group_rank("odd", i) for i in range(4)] == [7, 1, 5, 3]
    assert [comm.get_group_rank_from_world_rank(r, "odd") for r in (7, 1, 5, 3)] == [0, 1, 2, 3]
    comm.destroy_group("odd")
    with pytest.raises(ValueError, match="there is no group 'odd'"):
        comm.get_rank("odd")


@pytest.mark.parametrize(
    "function",
    [comm.get_rank, comm.get_group_size, comm.get_local_rank, comm.get_local_rank_size, comm.release],
)
def test_calls_before_init_are_runtime_errors(function):
    with pytest.raises(RuntimeError) as caught:
        function()
    assert caught.value.message == f"{function.__name__}() was called before init()"


def test_release_ends_it(eight):
    comm.release()
    with pytest.raises(RuntimeError, match="before init"):
        comm.get_rank()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: comm.init("mpi"), "init: backend_name 'mpi' is not 'hccl', 'nccl' or 'mccl'"),
        (
            lambda: comm.create_group("g", [0, 0]),
            "create_group: rank_ids [0, 0] must be different ranks, at least one",
        ),
        (lambda: comm.create_group("g", [8]), "create_group: 8 is no rank of a job of 8"),
        (
            lambda: comm.destroy_group("nccl_world_group"),
            "destroy_group: the group of all ranks cannot be destroyed",
        ),
        (lambda: comm.get_group_size("x"), "there is no group 'x'; known are "),
    ],
)
def test_wrong_arguments_are_named(eight, call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


def test_a_rank_outside_a_group_is_named(eight):
    comm.create_group("low", [0, 1])
    with pytest.raises(ValueError, match="get_rank: rank 5 is not in group 'low', which has ranks 0, 1"):
        comm.get_rank("low")


def test_collectives_know_the_ranks_of_their_group(eight):
    comm.create_group("odd", [1, 3, 5, 7])
    assert ops.AllReduce().rank_list == tuple(range(8))
    assert ops.AllGather("odd").rank_list == (1, 3, 5, 7)
    assert ops.AllReduce(ops.ReduceOp.MAX, "odd").op.op == "max"
    with pytest.raises(ValueError, match="there is no group 'even'"):
        ops.AllReduce(group="even")


def test_rank_and_size_come_from_mpirun(monkeypatch):
    for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    found = Session.from_environment()
    assert (found.rank, found.size, found.local_rank, found.local_size, found.launched) == (3, 4, 1, 2, False)
