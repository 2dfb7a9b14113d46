"""Calls of scripts, on the ranks that run them: functions of collectives in networks and outside, messages with their
gradients, borders, slices of a network by hand. A rank that finds all as it should be prints "rank N is right".

With the argument `every` it also runs mint_program.py, and every.py on MPI.
"""

import itertools
import sys

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import comm_func, create_group, get_group_size, get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="hybrid_parallel")
rank, size = get_rank(), get_group_size()
create_group("turned", list(range(size))[::-1])
own = size - 1 - rank  # this rank's number in it
everyone = [np.arange(2 * size, dtype=np.float32) + 10 * r for r in range(size)]
turned = everyone[::-1]
x = Tensor(everyone[rank])


def equal(found, expected, what):
    np.testing.assert_array_equal(found.asnumpy(), expected, what)


def part(array, i):
    return array[2 * i : 2 * i + 2]


def functions(x):
    """Every function, in groups of both orders."""
    gathered, handle = comm_func.all_gather_into_tensor(x, "turned", True)
    handle.wait()
    comm_func.barrier()
    return (
        comm_func.all_reduce(x)[0],
        gathered,
        comm_func.reduce_scatter_tensor(x, "max", "turned")[0],
        comm_func.reduce(x, 1, group="turned"),
        comm_func.broadcast(x, 1, "turned"),
        comm_func.all_to_all_single_with_output_shape(x, x, group="turned")[0],
        *comm_func.all_to_all_with_output_shape([(2,)] * size, [x[2 * i : 2 * i + 2] for i in range(size)])[0],
    )


def expected_of_functions():
    nothing = np.zeros(1, np.float32)
    return (
        sum(everyone),
        np.concatenate(turned),
        part(everyone[-1], own),
        sum(everyone) if rank == 1 else nothing,
        everyone[1],
        np.concatenate([part(each, own) for each in turned]),
        *(part(each, rank) for each in everyone),
    )


class Functions(nn.Cell):
    def construct(self, x):
        return functions(x)


for where, found in (("outside", functions(x)), ("in a network", Functions()(x))):
    for number, (got, wanted) in enumerate(zip(found, expected_of_functions(), strict=True)):
        equal(got, wanted, f"result {number} {where}")

# Two ranks compute one loss: the first sends what it has computed, and its weight gets the gradient that comes back.
other = rank + 1 if rank % 2 == 0 else rank - 1
first, last = rank % 2 == 0, rank % 2 == 1


class Sending(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(np.full(3, 2.0, np.float32), "w")
        self.send = ops.Send(sr_tag=4, dest_rank=other)

    def construct(self, x):
        return self.send(x * self.w)


class Receiving(nn.Cell):
    def __init__(self):
        super().__init__()
        self.v = Parameter(np.full(3, 5.0, np.float32), "v")
        self.receive = ops.Receive(sr_tag=4, src_rank=other, shape=[3], dtype=ms.float32)

    def construct(self, x):
        arrived = self.receive()
        return (arrived * arrived * self.v).sum()


class Alone(nn.Cell):
    """For the last of an odd number of ranks, which meets the others as it compiles."""

    def __init__(self):
        super().__init__()
        self.w = Parameter(np.ones(3, np.float32), "w")
        create_group("alone", [rank])
        self.all_reduce = ops.AllReduce(group="alone")

    def construct(self, x):
        return self.all_reduce(x * self.w)


data = np.array([1.0, 2.0, 3.0], np.float32)
net = Alone() if other >= size else Sending() if first else Receiving()
grads = ms.grad(net, None, net.trainable_params())(Tensor(data))
hidden = 2 * data  # what is sent, w * x
equal(grads[0], data if other >= size else 2 * hidden * 5 * data if first else hidden**2, "gradient of a message")

# Both ranks of a pair send before they receive.
large = np.arange(100_000, dtype=np.float32)


class Swapped(nn.Cell):
    def construct(self, x):
        comm_func.isend(x, other, tag=7)
        return comm_func.recv(x, other, tag=7)


swap = Swapped() if other < size else Alone()
given = Tensor(large + rank if other < size else data)
found = swap(given)
if other < size:
    equal(found, large + other, "messages that cross in a network")
    comm_func.isend(given, other).wait()
    equal(comm_func.irecv(given, other)[0], large + other, "messages that cross outside")

# Borders of a row of ranks, in a network and outside.
ids = [-1] * 8
ids[2], ids[6] = (rank + 1 if rank + 1 < size else -1), rank - 1
borders = ops.NeighborExchangeV2(ids, [0, 0, 1, 1], ids, [0, 0, 1, 1], "NCHW")
strip = np.arange(4 * size, dtype=np.float32).reshape(1, 1, 1, -1)
mine = Tensor(strip[..., 4 * rank : 4 * rank + 4])


class Borders(nn.Cell):
    def __init__(self):
        super().__init__()
        self.borders = borders

    def construct(self, x):
        return self.borders(x)


for found in (borders(mine), Borders()(mine)):
    equal(found, strip[..., max(0, 4 * rank - 1) : 4 * rank + 5], "borders")

# Borders of other lengths, types and sizes, and what their gradient brings back.
unequal = ops.NeighborExchangeV2(ids, [0, 0, 1, 2], ids, [0, 0, 2, 1], "NCHW")


def covered(r):
    return slice(max(0, 4 * r - 2), min(4 * size, 4 * r + 4 + 1))


def weighed(x, weights):
    return (unequal(x) * weights).sum()


types, sizes = (ms.float32, ms.float16, ms.bfloat16, ms.int32), ((1, 1, 1), (2, 3, 5), (0, 2, 3))
for dtype, shape in itertools.product(types, sizes):
    drawn = np.random.default_rng(7)
    strip = drawn.integers(-4, 5, (*shape, 4 * size)).astype(np.float32)
    widths = [len(range(4 * size)[covered(r)]) for r in range(size)]
    weights = [drawn.integers(-2, 3, (*shape, width)).astype(np.float32) for width in widths]
    mine = Tensor(strip[..., 4 * rank : 4 * rank + 4]).astype(dtype)
    equal(unequal(mine).astype(ms.float32), strip[..., covered(rank)], f"borders of {dtype}")
    if dtype != ms.int32:
        whole = np.zeros_like(strip)
        for r, weight in enumerate(weights):
            whole[..., covered(r)] += weight
        grad = ms.grad(weighed)(mine, Tensor(weights[rank]).astype(dtype))
        assert grad.dtype == dtype
        equal(grad.astype(ms.float32), whole[..., 4 * rank : 4 * rank + 4], f"gradient of borders of {dtype}")

# A product whose weight is sharded by hand, beside the replicated one: the loss and all gradients are equal.
rng = np.random.default_rng(3)
inputs, first_weight, second_weight = (rng.integers(-3, 4, shape) for shape in ((4, 6), (6, 2 * size), (2 * size, 5)))
inputs, first_weight, second_weight = (a.astype(np.float32) for a in (inputs, first_weight, second_weight))


class Sliced(nn.Cell):
    """Columns of the first weight and rows of the second on each rank; their products are added up."""

    def __init__(self):
        super().__init__()
        cut = slice(2 * rank, 2 * rank + 2)
        self.first = Parameter(first_weight[:, cut], "first", layerwise_parallel=True)
        self.second = Parameter(second_weight[cut], "second", layerwise_parallel=True)
        self.all_reduce = ops.AllReduce()

    def construct(self, x):
        return self.all_reduce(ops.matmul(ops.relu(ops.matmul(x, self.first)), self.second)).sum() / size


sliced = Sliced()
loss, (first_grad, second_grad) = ms.value_and_grad(sliced, None, sliced.trainable_params())(Tensor(inputs))
active = np.maximum(inputs @ first_weight, 0)
ones = np.ones((4, 5), np.float32)
np.testing.assert_allclose(loss.asnumpy() * size, (active @ second_weight).sum(), rtol=1e-6)
whole_first = inputs.T @ ((ones @ second_weight.T) * (active > 0))
equal(first_grad, whole_first[:, 2 * rank : 2 * rank + 2], "gradient of a slice of columns")
equal(second_grad, (active.T @ ones)[2 * rank : 2 * rank + 2], "gradient of a slice of rows")

if "every" in sys.argv:
    import runpy
    from pathlib import Path

    from mspc.runtime.comm.mpi import MpiComm
    from tests.ops.collective.every import check_all
    from tests.ops.collective.test_collectives import check

    assert check_all(MpiComm(channel=5)) > 200
    assert check(MpiComm(channel=6)) >= 16
    runpy.run_path(str(Path(__file__).with_name("mint_program.py")))
print(f"rank {rank} is right", flush=True)
