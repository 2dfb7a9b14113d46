"""An operand of a kernel that is the sum of what several ranks hold, each in its own memory: the kernel loads it from
all of them, and adds up.

The first block tells the peers that this rank's part is ready, and every block waits for theirs. The last block to end
tells them that all is read, and waits until they have read this rank's, so that whatever follows may overwrite it. The
order of additions is that of the group's ranks, halves are added in Float32 and rounded, so that all ranks get the same
bits, those that a reduction of its own would give.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.ops.cuda.source import constants
from mspc.ops.device import RankSum

FROM_PEER = r"""
template <class P> __device__ __forceinline__ P from_peer(const P* from) {
#ifdef __CUDA_ARCH__
    // The memory of another GPU must not come from a cache of this one.
    union { unsigned int words[sizeof(P) > 4 ? sizeof(P) / 4 : 1]; unsigned short half; P pack; } v;
    if constexpr (sizeof(P) == 16)
        asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
            : "=r"(v.words[0]), "=r"(v.words[1]), "=r"(v.words[2]), "=r"(v.words[3]) : "l"(from) : "memory");
    else if constexpr (sizeof(P) == 8)
        asm volatile("ld.relaxed.sys.global.v2.u32 {%0, %1}, [%2];"
            : "=r"(v.words[0]), "=r"(v.words[1]) : "l"(from) : "memory");
    else if constexpr (sizeof(P) == 4)
        asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(v.words[0]) : "l"(from) : "memory");
    else
        asm volatile("ld.relaxed.sys.global.u16 %0, [%1];" : "=h"(v.half) : "l"(from) : "memory");
    return v.pack;
#else
    return *from;
#endif
}
"""
"""A load from the memory of another GPU, of 16, 8, 4 or 2 bytes."""
RANK_SUMS = r"""
// A pack of the sum: the parts of all ranks, in their order, from element `at` of each on.
template <class T, int V, class C> __device__ __forceinline__ Pack<T, V> summed_pack(const u64* parts, long long at) {
    Pack<T, V> found[RANKS];
    #pragma unroll
    for (int rank = 0; rank < RANKS; ++rank) {
        const Pack<T, V>* from = (const Pack<T, V>*)((const T*)parts[rank] + at);
        found[rank] = rank == OWN ? *from : from_peer(from);
    }
    #pragma unroll
    for (int lane = 0; lane < V; ++lane) {
        C sum = wide(found[0].at[lane]);
        #pragma unroll
        for (int rank = 1; rank < RANKS; ++rank) sum = Sum::of(sum, (C)wide(found[rank].at[lane]));
        found[0].at[lane] = narrow<T>(sum);
    }
    return found[0];
}
__device__ __forceinline__ void tell_ranks(const u64* signs, int number, unsigned int call) {
    __threadfence_system();
    #pragma unroll
    for (int rank = 0; rank < RANKS; ++rank)
        if (rank != OWN) ((volatile unsigned int*)signs[rank])[number * RANKS + OWN] = call;
}
// A fence of a thread in every block would take as long as the loads.
__device__ __forceinline__ unsigned int heard_at(const unsigned int* sign) {
#ifdef __CUDA_ARCH__
    unsigned int found;
    asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(found) : "l"(sign) : "memory");
    return found;
#else
    return *(const volatile unsigned int*)sign;
#endif
}
__device__ __forceinline__ void hear_ranks(const u64* signs, int number, unsigned int call) {
    const unsigned int* heard = (const unsigned int*)signs[OWN] + number * RANKS;
    #pragma unroll
    for (int rank = 0; rank < RANKS; ++rank)
        if (rank != OWN) while ((int)(heard_at(heard + rank) - call) < 0) {}
}
"""

_BEGIN = r"""
const u64 parts[RANKS] = {PARTS}, signs[RANKS] = {SIGNS};
const unsigned int call = ((volatile unsigned int*)sum_state)[0] + 1;
if (threadIdx.x == 0) {
    if (blockIdx.x == 0) {
        if (sum_place) *sum_place = sum_mark | sum_step[0] << STEP_SHIFT;
        tell_ranks(signs, 0, call);
    }
    hear_ranks(signs, 0, call);
}
__syncthreads();
"""

_END = r"""
__syncthreads();
if (threadIdx.x == 0 && atomicAdd(sum_state + 1, 1u) == gridDim.x - 1) {
    tell_ranks(signs, 1, call);
    hear_ranks(signs, 1, call);
    sum_state[1] = 0;
    __threadfence_system();
    ((volatile unsigned int*)sum_state)[0] = call;
}
"""


PLACE = "volatile long long* sum_place, const long long sum_mark"
"""The kernel's last parameters."""


def definitions(summed: RankSum) -> str:
    """C++ ahead of the kernel."""
    sizes = constants(RANKS=len(summed.addresses), OWN=summed.own, STEP_SHIFT=summed.shift)
    return sizes + FROM_PEER + RANK_SUMS


def parameters(summed: RankSum) -> list[tuple[str, Any]]:
    """What the kernel takes ahead of PLACE, and the arguments."""
    numbers = [(f"s{i}", address) for i, address in enumerate(summed.addresses)]
    numbers += [(f"g{i}", address) for i, address in enumerate(summed.signs)]
    found: list[tuple[str, Any]] = [(f"const u64 {name}", np.uint64(number)) for name, number in numbers]
    return [*found, ("unsigned int* sum_state", summed.state), ("const long long* sum_step", summed.step)]


def place(summed: RankSum) -> list[Any]:
    """The arguments for PLACE, of the launch that is being made."""
    where, mark = summed.mark()
    return [np.uint64(where), np.int64(mark)]


def begin(summed: RankSum) -> list[str]:
    """The kernel's first statements."""
    names = {letter: ", ".join(f"{letter}{i}" for i in range(len(summed.addresses))) for letter in "sg"}
    return _BEGIN.replace("PARTS", names["s"]).replace("SIGNS", names["g"]).split("\n")[1:-1]


def end() -> list[str]:
    """The kernel's last statements."""
    return list[str](_END.split("\n")[1:-1])
