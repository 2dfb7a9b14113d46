"""`mint.distributed` on the ranks that run it. A rank that finds all as it should be prints "rank N is right"."""

import numpy as np

import mspc.mint.distributed as dist
from mspc import Tensor
from mspc.communication import create_group

dist.init_process_group()
rank, size = dist.get_rank(), dist.get_world_size()
create_group("backwards", list(range(size))[::-1])
own = size - 1 - rank  # this rank's number in it
everyone = [np.arange(2 * size, dtype=np.float32) + 10 * r for r in range(size)]
turned, total = everyone[::-1], sum(everyone)


def of(array):
    return Tensor(np.asarray(array, np.float32))


def mine():
    return of(everyone[rank])


def empty(*shape):
    return of(np.full(shape, -1.0))


def equal(found, expected):
    np.testing.assert_array_equal(found.asnumpy(), np.asarray(expected, np.float32))


def part(array, i):
    return array[2 * i : 2 * i + 2]


def combined():
    x = mine()
    assert dist.all_reduce(x, group="backwards") is None
    equal(x, total)
    x = mine()
    dist.all_reduce(x, "avg", async_op=True).wait()
    equal(x, total / size)
    x = mine()
    dist.reduce(x, 1)
    equal(x, total if rank == 1 else everyone[rank])
    out = empty(2)
    dist.reduce_scatter_tensor(out, mine(), "max", "backwards")
    equal(out, part(everyone[-1], own))


def gathered():
    many = [empty(2 * size) for _ in range(size)]
    dist.all_gather(many, mine(), "backwards")
    for found, expected in zip(many, turned, strict=True):
        equal(found, expected)
    out = empty(2 * size * size)
    dist.all_gather_into_tensor(out, mine(), "backwards")
    equal(out, np.concatenate(turned))


def spread():
    x = mine()
    dist.broadcast(x, 1, "backwards")
    equal(x, everyone[1])


def exchanged():
    out = empty(2 * size)
    dist.all_to_all_single(out, mine(), group="backwards")
    equal(out, np.concatenate([part(each, own) for each in turned]))
    many = [empty(2) for _ in range(size)]
    dist.all_to_all(many, [of(part(everyone[rank], i)) for i in range(size)], "backwards")
    for found, each in zip(many, turned, strict=True):
        equal(found, part(each, own))


def messages():
    for send, receive in ((dist.send, dist.recv), (dist.isend, dist.irecv)):
        if rank == 0:
            handle = send(mine(), 1, tag=4)
        if rank == 1:
            x = empty(2 * size)
            handle = receive(x, 0, tag=4)
            equal(x, everyone[0])
        if rank < 2 and send is dist.isend:
            handle.wait()
    dist.barrier("backwards")


def groups():
    name = dist.new_group([1, 0])
    assert dist.get_process_group_ranks(name) == [0, 1]
    assert (dist.get_rank(name), dist.get_world_size(name)) == ((rank, 2) if rank < 2 else (-1, -1))


for check in (combined, gathered, spread, exchanged, messages, groups):
    check()
print(f"rank {rank} is right", flush=True)
