"""Ranks and groups."""

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc import communication as comm
from mspc.communication import comm_func
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api import state
from mspc.mindspore_api.state import Session
from mspc.mint import distributed as dist
from tests.compiled_scripts import Config, compile_call
from tests.errors import error_of


@pytest.fixture
def eight() -> Session:
    session = Session.of_rank(5, 8)
    state.swap(session)
    comm.init("nccl")
    return session


def test_ranks_and_groups(eight):
    assert (comm.get_rank(), comm.get_group_size(), comm.get_local_rank(), comm.get_local_rank_size()) == (5, 8, 5, 8)
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


def test_a_rank_outside_a_group_is_named(eight):
    comm.create_group("low", [0, 1])
    with pytest.raises(ValueError, match="get_rank: rank 5 is not in group 'low', which has ranks 0, 1"):
        comm.get_rank("low")


def test_rank_and_size_come_from_mpirun(monkeypatch):
    for name, value in {"RANK": 3, "SIZE": 4, "LOCAL_RANK": 1, "LOCAL_SIZE": 2}.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", str(value))
    found = Session.from_environment()
    assert (found.rank, found.size, found.local_rank, found.local_size, found.launched) == (3, 4, 1, 2, False)


def tensor(*shape: int) -> Tensor:
    return Tensor(np.ones(shape, np.float32))


def net(op: object) -> nn.Cell:
    """A network that calls one collective."""

    class Calling(nn.Cell):
        def construct(self, x):
            return op(x)  # type: ignore[operator]  # a primitive

    return Calling()


WRONG = [
    (lambda: ops.AllReduce(group="none"), ValueError,
     "AllReduce: there is no group 'none'; known are hccl_world_group, "),
    (lambda: comm_func.all_reduce(tensor(2), group="none"), ValueError, "AllReduce: there is no group 'none'; known "),
    (lambda: ops.AllReduce(group="low")(tensor(2)), ValueError,
     "AllReduce: rank 5 is not in group 'low', which has ranks 3, 0"),
    (lambda: net(ops.AllReduce(group="low"))(tensor(2)), ValueError,
     "AllReduce: rank 5 is not in group 'low', which has ranks 3, 0"),
    (lambda: ops.Broadcast(1, "high")((tensor(2),)), ValueError,
     "Broadcast: root_rank 1 is not in group 'high', which has ranks 7, 5, 6"),
    (lambda: net(ops.CollectiveScatter(9))(tensor(8)), ValueError,
     "CollectiveScatter: src_rank 9 is not in group 'hccl_world_group', which has ranks 0, 1, 2, 3, 4, 5, 6, 7"),
    (lambda: net(ops.CollectiveGather(1, "high"))(tensor(2)), ValueError,
     "CollectiveGather: dest_rank 1 is not in group 'high', which has ranks 7, 5, 6"),
    (lambda: net(ops.Reduce(3, group="high"))(tensor(2)), ValueError,
     "Reduce: dest_rank 3 is no number in group 'high', which has 3 ranks, counted from 0"),
    (lambda: net(ops.Send(0, 1, "high"))(tensor(2)), ValueError,
     "Send: dest_rank 1 is not in group 'high', which has ranks 7, 5, 6"),
    (lambda: ops.Receive(0, -1, [2], ms.float32)(), ValueError, "Receive: src_rank -1 is not in group "),
    (lambda: net(ops.NeighborExchange([8], [6], ((2,),), ((2,),), ms.float32))(tensor(2)), ValueError,
     "NeighborExchange: send_rank_ids 8 is not in group "),
    (lambda: net(ops.ReduceScatter())(tensor(12)), ValueError,
     "ReduceScatter: dimension 0 is 12, which does not divide by 8 ranks"),
    (lambda: net(ops.CollectiveScatter(group="high", src_rank=5))(tensor(4, 3)), ValueError,
     "CollectiveScatter: dimension 0 is 4, which does not divide by 3 ranks"),
    (lambda: net(ops.AlltoAll(4, 0, 0))(tensor(8)), ValueError, "AlltoAll: split_count is 4, the group has 8 ranks"),
    (lambda: net(ops.AllReduce("mean"))(tensor(2)), ValueError, "AllReduce: op is 'mean'"),
    (lambda: comm_func.broadcast(tensor(2), 9), ValueError, "broadcast: src 9 is not in group 'hccl_world_group', "),
    (lambda: comm_func.reduce(tensor(2), 1, group="high"), ValueError, "reduce: dst 1 is not in group 'high', which "),
    (lambda: comm_func.reduce(tensor(2), "a"), TypeError, "comm_func.reduce(): dst must be an int, not 'a'"),
    (lambda: comm_func.all_reduce(2.0), TypeError, "comm_func.all_reduce(): tensor must be a tensor, not 2.0"),
    (lambda: comm_func.all_to_all_single_with_output_shape((12,), tensor(8)), ValueError,
     "all_to_all_single_with_output_shape: the first dimension of output is 12, which does not divide by 8 ranks"),
    (lambda: comm_func.all_to_all_single_with_output_shape((8,), tensor(8), None, [1, 7], "high"), ValueError,
     "input_split_sizes must be 3 numbers from 0 on, one for each rank, not [1, 7]"),
    (lambda: dist.all_gather([tensor(2)], tensor(2)), ValueError,
     "all_gather(): tensor_list must have one tensor for each of 8 ranks, not 1"),
    (lambda: dist.send(tensor(2), 5), ValueError, "send: the destination is rank 5, which is this rank itself"),
    (lambda: net(dist.all_reduce)(tensor(2)), TypeError,
     "mint.distributed.all_reduce() puts its result into a tensor, which a compiled function cannot"),
    (lambda: comm.create_group("low", [0, 3]), ValueError,
     "create_group: there is a group 'low' already, of ranks 3, 0"),
    (lambda: comm.create_group("nccl_world_group", [0]), ValueError,
     "create_group: 'nccl_world_group' is the group of all ranks; choose another name"),
    (lambda: comm.get_world_rank_from_group_rank("low", 2), ValueError,
     "get_world_rank_from_group_rank: group 'low' has 2 ranks; there is no number 2"),
    (lambda: comm.get_world_rank_from_group_rank("low", "0"), TypeError, "group_rank_id must be an integer, not '0'"),
    (lambda: comm.get_group_rank_from_world_rank(7, "low"), ValueError,
     "get_group_rank_from_world_rank: rank 7 is not in group 'low', which has ranks 3, 0"),
    (lambda: comm.get_local_rank("low"), ValueError,
     "get_local_rank: rank 5 is not in group 'low', which has ranks 3, 0"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), WRONG)
def test_what_collectives_refuse(eight, call, kind, message):
    comm.init("mccl")
    comm.create_group("low", [3, 0])
    comm.create_group("high", [7, 5, 6])
    with pytest.raises(kind) as refused:
        call()
    assert message in refused.value.message


@pytest.mark.parametrize("op", [ops.AllReduce(), ops.AllGather(), ops.Barrier(), ops.Reduce(0), ops.Send(0, 1)])
def test_collectives_want_init_first(op):
    for call in (op, net(op)):
        with pytest.raises(RuntimeError) as refused:
            call(tensor(2))
        assert refused.value.message == f"{op.name} was called before init()"
        assert refused.value.notes == ("call mindspore.communication.init() first",)


@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
def test_compilers_that_place_collectives_take_none(eight, mode):
    error = error_of(compile_call, net(ops.AllReduce()), (TensorType(FLOAT32, (8, 2)),), Config(mode=mode, ranks=8))
    assert error.message == "AllReduce moves data between ranks by hand and cannot be sharded"
    assert error.notes[0] == "remove it in semi_auto_parallel mode: mspc inserts the collectives there"
    assert "ops.clip_by_global_norm" in error.notes[1]


@pytest.mark.parametrize("op", ["sum", "max"])
def test_zeros_of_all_ranks_are_zeros_in_every_mode(eight, op):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.reduce = ops.AllReduce(op)

        def construct(self, x):
            status = ops.depend(ops.zeros((8,)), x)
            return x, self.reduce(ops.ReduceSum()(status, (0,)))

    compiled = compile_call(Net(), (TensorType(FLOAT32, (8, 2)),), Config(mode="semi_auto_parallel", ranks=8))
    assert all(node.op.over_mesh for node in compiled.graph.nodes if node.op.name == "AllReduce")


def test_ranks_of_this_host(eight):
    session = state.swap(Session(rank=5, size=8, local_rank=1, local_size=4, launched=True, initialized=True))
    comm.create_group("mixed", [6, 0, 5, 3])
    assert (comm.get_local_rank(), comm.get_local_rank_size()) == (1, 4)  # 4 to 7 run here
    assert (comm.get_local_rank("mixed"), comm.get_local_rank_size("mixed")) == (1, 2)
    state.swap(session)
