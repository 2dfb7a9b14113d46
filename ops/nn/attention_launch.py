"""Attention runs on a GPU through the device's fused kernel where it has one for the operands, or one of mspc's own for
TF32 and halves, else by products of matrices around kernels for the softmax and its gradient.

Heads of the query that share a head of key and value lie one after the other, so that they are rows of one matrix:
[batch, heads, queries, depth] is also [batch, key heads, group * queries, depth].
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mspc.ops.cuda.attention import LOWEST, Attention, AttentionKernels, Room
from mspc.ops.cuda.flash_backward import flash_backward
from mspc.ops.cuda.flash_forward import flash_forward
from mspc.ops.cuda.flash_shift import flash_shift
from mspc.ops.device import Array, Device, Launch, in_order
from mspc.ops.nn.attention_kernel import Shape


def launch_forward(device: Device, attention: Attention, result: Array, ones: Array, zero: Array) -> Launch | None:
    """Fill result (by head), the statistics, and the placeholders `ones` and `zero`."""
    kernels = AttentionKernels(device, attention)
    constants = kernels.launch("attention_constants", ones.size, ones, np.int64(ones.size), zero)
    fused = _fused(device, attention, kernels, result, None) or flash_forward(device, attention, result)
    if fused is not None:
        return in_order(constants, fused)
    shape = attention.shape
    room = Room(device)
    order = [room.by_head(x) for x in attention.operands]
    target = room.by_head(result)
    s = room.take(_score_shape(shape), kernels.wide)
    p = s if kernels.wide == kernels.narrow else room.take(s.shape, kernels.narrow)
    room.make()
    q, k, v = (kernels.ordered(one, room) for one in order)
    out, back = kernels.ordered(target, room), kernels.back(target, room)
    launches: list[Launch | None] = [constants, *q[1], *k[1], *v[1]]
    launches.append(device.matmul(_rows(q[0], shape), k[0], room.at(s), False, True))
    launches.append(kernels.rows("attention_softmax", room.at(s), room.at(p), attention.statistics))
    launches.append(device.matmul(room.at(p), v[0], _rows(out[0], shape), False, False))
    return in_order(*launches, *back)


def launch_backward(
    device: Device, attention: Attention, result: Array, grads: Sequence[Array], all_keys: bool = True
) -> Launch | None:
    """Fill the gradients of query, key and value (by head); `result` is attention_out by head, and all_keys says
    whether these are all that it is made of."""
    kernels = AttentionKernels(device, attention)
    fused = _fused(device, attention, kernels, result, grads) or flash_backward(device, attention, result, grads)
    if fused is not None or not all_keys:  # products of matrices take rows' sums over the keys that are there
        return fused
    return _plain_backward(device, attention, kernels, grads, None)


def launch_shift_gradient(device: Device, attention: Attention, result: Array, out: Array) -> Launch | None:
    """Fill the gradient of the shift; `result` is attention_out by head."""
    fused = flash_shift(device, attention, result, out)
    if fused is not None:
        return fused
    kernels = AttentionKernels(device, attention)
    return _plain_backward(device, attention, kernels, (), out)


def _plain_backward(
    device: Device,
    attention: Attention,
    kernels: AttentionKernels,
    grads: Sequence[Array],
    shift_gradient: Array | None,
) -> Launch | None:
    shape = attention.shape
    room = Room(device)
    order = [room.by_head(x) for x in attention.operands]
    targets = [room.by_head(x) for x in grads]
    s = room.take(_score_shape(shape), kernels.wide)
    d = room.take(s.shape, kernels.wide)
    same = kernels.wide == kernels.narrow
    p = s if same else room.take(s.shape, kernels.narrow)
    g = d if same or shift_gradient is not None else room.take(s.shape, kernels.narrow)
    room.make()
    q, k, v, dout = (kernels.ordered(one, room) for one in order)
    launches: list[Launch | None] = [*q[1], *k[1], *v[1], *dout[1]]
    launches.append(device.matmul(_rows(q[0], shape), k[0], room.at(s), False, True))
    launches.append(device.matmul(_rows(dout[0], shape), v[0], room.at(d), False, True))
    factor = 1.0 if shift_gradient is not None else attention.scores.scale
    launches.append(
        kernels.rows("attention_softmax_gradient", room.at(s), room.at(d), room.at(p), room.at(g),
                     attention.statistics, factor=factor)
    )  # fmt: skip
    if shift_gradient is not None:
        return in_order(*launches, kernels.sum(room.at(g), shift_gradient))
    dq, dk, dv = (kernels.ordered(one, room)[0] for one in targets)
    launches.append(device.matmul(room.at(g), k[0], _rows(dq, shape), False, False))
    launches.append(device.matmul(room.at(g), _rows(q[0], shape), dk, True, False))
    launches.append(device.matmul(room.at(p), _rows(dout[0], shape), dv, True, False))
    for one in targets:
        launches += kernels.back(one, room)
    return in_order(*launches)


def _fused(
    device: Device, attention: Attention, kernels: AttentionKernels, result: Array, grads: Sequence[Array] | None
) -> Launch | None:
    """The device's own kernel, or None where it has none for this."""
    shape, scores = attention.shape, attention.scores
    q, k, v = attention.operands[:3]
    # It would take the sum of both addends, a number for every query and key of the batch.
    if q.dtype.name not in LOWEST or scores.draws is not None or scores.key_shift is not None:
        return None
    causal = ""
    if scores.high is not None or scores.low is not None:
        if scores.low is not None or scores.high not in (0, shape.keys - shape.queries):
            return None
        causal = "top" if scores.high == 0 else "bottom"
    addend, prepare = None, None
    if scores.shift is not None or scores.mask is not None:
        addend, prepare = kernels.addend()
    gradients = None if grads is None else (attention.operands[3], *grads)
    fused = device.attention(
        q, k, v, result, attention.statistics, scale=scores.scale, causal=causal, addend=addend, gradients=gradients
    )
    if fused is None or prepare is None:
        return fused
    return in_order(prepare, fused)


def _score_shape(shape: Shape) -> tuple[int, ...]:
    return shape.batch, shape.key_heads, shape.group * shape.queries, shape.keys


def _rows(array: Array, shape: Shape) -> Array:
    """Heads that share a head of key and value as rows of one matrix."""
    return array.reshape(shape.batch, shape.key_heads, shape.group * shape.queries, array.shape[-1])
