"""Kernels in Triton, as one writes them by hand, beside those that mspc makes (`benchmarks.gpu.triton_kernels`)."""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl

WARPS = [triton.Config({}, num_warps=warps) for warps in (2, 4, 8)]
TILES = [
    triton.Config({"ROWS": rows, "COLUMNS": columns}, num_warps=warps, num_stages=stages)
    for rows, columns, warps in ((64, 64, 4), (128, 64, 4), (128, 64, 8), (128, 128, 8), (64, 32, 4))
    for stages in (2, 3)
]


@triton.autotune(WARPS, key=["RATE"])
@triton.jit
def add_norm_kernel(x, residual, gamma, beta, out, seed, epsilon, RATE: tl.constexpr, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    at = tl.program_id(0) * WIDTH + columns
    value = tl.load(x + at).to(tl.float32)
    if RATE > 0:
        value = tl.where(tl.rand(seed, at) >= RATE, value / (1 - RATE), 0.0)
    total = value + tl.load(residual + at).to(tl.float32)
    apart = total - tl.sum(total, 0) / WIDTH
    variance = tl.sum(apart * apart, 0) / WIDTH
    result = apart * tl.rsqrt(variance + epsilon) * tl.load(gamma + columns) + tl.load(beta + columns)
    tl.store(out + at, result.to(out.dtype.element_ty))


def add_norm(x: Any, residual: Any, gamma: Any, beta: Any, out: Any, rate: float) -> None:
    rows, width = x.shape
    add_norm_kernel[(rows,)](x, residual, gamma, beta, out, 1, 1e-5, RATE=rate, WIDTH=width)


@triton.autotune(WARPS, key=[])
@triton.jit
def rms_norm_gradients_kernel(x, slope, rstd, gamma, x_grad, partial, rows, WIDTH: tl.constexpr):
    columns = tl.arange(0, WIDTH)
    weight = tl.load(gamma + columns)
    total = tl.zeros((WIDTH,), tl.float32)
    for row in range(tl.program_id(0), rows, tl.num_programs(0)):
        at = row * WIDTH + columns
        root = tl.load(rstd + row)
        normal = tl.load(x + at).to(tl.float32) * root
        dy = tl.load(slope + at).to(tl.float32)
        total += dy * normal
        scaled = dy * weight
        mean = tl.sum(scaled * normal, 0) / WIDTH
        tl.store(x_grad + at, ((scaled - normal * mean) * root).to(x_grad.dtype.element_ty))
    tl.store(partial + tl.program_id(0) * WIDTH + columns, total)


@triton.jit
def sum_kernel(partial, out, count, WIDTH: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    columns = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for first in range(0, count, ROWS):
        rows = first + tl.arange(0, ROWS)
        total += tl.load(partial + rows[:, None] * WIDTH + columns[None, :], mask=rows[:, None] < count, other=0.0)
    tl.store(out + columns, tl.sum(total, 0))


def rms_norm_gradients(
    x: Any, slope: Any, rstd: Any, gamma: Any, x_grad: Any, gamma_grad: Any, partial: Any
) -> None:
    rows, width = x.shape
    count = partial.shape[0]
    rms_norm_gradients_kernel[(count,)](x, slope, rstd, gamma, x_grad, partial, rows, WIDTH=width)
    sum_kernel[(triton.cdiv(width, 32),)](partial, gamma_grad, count, WIDTH=width, ROWS=64, COLUMNS=32)


@triton.jit
def look(sums, top, total, query, k, v, first, rows, head, factor, seed, RATE: tl.constexpr,
         LENGTH: tl.constexpr, DEPTH: tl.constexpr, COLUMNS: tl.constexpr, BORDER: tl.constexpr):  # fmt: skip
    columns = first + tl.arange(0, COLUMNS)
    at = head * LENGTH * DEPTH + columns[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    scores = tl.dot(query, tl.trans(tl.load(k + at))) * factor
    if BORDER:
        scores = tl.where(columns[None, :] <= rows[:, None], scores, float("-inf"))
    most = tl.maximum(top, tl.max(scores, 1))
    powers = tl.exp2(scores - most[:, None])
    fade = tl.exp2(top - most)
    total = total * fade + tl.sum(powers, 1)
    if RATE > 0:
        places = (head * LENGTH + rows[:, None]) * LENGTH + columns[None, :]
        powers = tl.where(tl.rand(seed, places) >= RATE, powers / (1 - RATE), 0.0)
    sums = sums * fade[:, None]
    return tl.dot(powers.to(v.dtype.element_ty), tl.load(v + at), sums), most, total


@triton.autotune(TILES, key=["RATE"])
@triton.jit
def attention_kernel(q, k, v, out, scale, seed, RATE: tl.constexpr, LENGTH: tl.constexpr, DEPTH: tl.constexpr,
                     ROWS: tl.constexpr, COLUMNS: tl.constexpr):  # fmt: skip
    # Late queries see most keys: they begin first.
    begin = (tl.num_programs(0) - 1 - tl.program_id(0)) * ROWS
    head = tl.program_id(1)
    rows = begin + tl.arange(0, ROWS)
    at = head * LENGTH * DEPTH + rows[:, None] * DEPTH + tl.arange(0, DEPTH)[None, :]
    query = tl.load(q + at)
    sums = tl.zeros((ROWS, DEPTH), tl.float32)
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    factor = scale * 1.4426950408889634
    for first in range(0, begin // COLUMNS * COLUMNS, COLUMNS):
        sums, top, total = look(sums, top, total, query, k, v, first, rows, head, factor, seed, RATE, LENGTH, DEPTH,
                                COLUMNS, False)  # fmt: skip
    for first in range(begin // COLUMNS * COLUMNS, begin + ROWS, COLUMNS):
        sums, top, total = look(sums, top, total, query, k, v, first, rows, head, factor, seed, RATE, LENGTH, DEPTH,
                                COLUMNS, True)  # fmt: skip
    tl.store(out + at, (sums / total[:, None]).to(out.dtype.element_ty))


def attention(q: Any, k: Any, v: Any, out: Any, rate: float) -> None:
    batch, heads, length, depth = q.shape

    def grid(meta: Any) -> tuple[int, int]:
        return triton.cdiv(length, meta["ROWS"]), batch * heads

    attention_kernel[grid](q, k, v, out, depth**-0.5, 1, RATE=rate, LENGTH=length, DEPTH=depth)


def microseconds(work: Any, repeats: int = 20) -> float:
    """What one call takes, in a CUDA graph of many."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()  # what is tried out is tried out here
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        for _ in range(repeats):
            work()
    graph.replay()
    begun, ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begun.record()
    graph.replay()
    ended.record()
    torch.cuda.synchronize()
    return begun.elapsed_time(ended) / repeats * 1000
