"""Tensor cores and copies without a GPU: C++ in place of the PTX of `mspc.ops.cuda.flash.INSTRUCTIONS` and of
`mspc.ops.cuda.half_fragments.INSTRUCTIONS`.

Fragments are those of the PTX ISA's section on mma.m16n8k8 with .tf32, where groupID is a lane's number / 4 and
threadID_in_group its rest: A's a0 to a3 lie in row groupID (a0, a2) or groupID + 8 (a1, a3) and in column
threadID_in_group (a0, a1) or threadID_in_group + 4 (a2, a3); B's b0 and b1 in row threadID_in_group or
threadID_in_group + 4 and column groupID; C's c0 to c3 in row groupID (c0, c1) or groupID + 8 (c2, c3) and column
threadID_in_group * 2 + (i & 1). Those of mma.m16n8k16 with halves hold two neighbouring elements in a register, the
first in its low half: A's registers lie in row groupID (0, 2) or groupID + 8 (1, 3) and from column threadID_in_group
* 2 (0, 1) or threadID_in_group * 2 + 8 (2, 3) on; B's from row threadID_in_group * 2 or that + 8 on in column groupID.
ldmatrix gives lane 4 r + c of row r of each matrix elements 2 c and 2 c + 1; transposed, those of column r in rows 2 c
and 2 c + 1.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ops.cuda.flash import INSTRUCTIONS
from mspc.ops.cuda.half_fragments import INSTRUCTIONS as HALF_INSTRUCTIONS
from tests.ops.cuda.cuda_emulator import Emulator

STAND_INS = r"""
namespace tensor_cores {
static float a_of[2][32][16][8], b_of[2][32][8][8];
static unsigned int rounds[1024];
static float kept(float v) {
    if (!ROUNDS) return v;
    unsigned int bits; std::memcpy(&bits, &v, 4); bits &= 0xffffe000u; std::memcpy(&v, &bits, 4);
    return v;
}
}
static void multiply(float (&c)[4], const Pack<float, 4>& a, float b0, float b1) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    const int round = tensor_cores::rounds[threadIdx.x]++ & 1;
    auto& A = tensor_cores::a_of[round][warp];
    auto& B = tensor_cores::b_of[round][warp];
    for (int i = 0; i < 4; ++i)
        A[i == 0 || i == 2 ? group : group + 8][i < 2 ? in_group : in_group + 4] = tensor_cores::kept(a.at[i]);
    B[in_group][group] = tensor_cores::kept(b0);
    B[in_group + 4][group] = tensor_cores::kept(b1);
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        float sum = 0;
        for (int k = 0; k < 8; ++k) sum += A[row][k] * B[k][column];
        c[i] += sum;
    }
}

// A copy is made as late as it may be, or at once.
namespace copies {
struct Copy { float* to; const float* from; int bytes, count; };
static Copy waiting[1024][64];
static unsigned int begun[1024], committed[1024];
static void make(const Copy& one) {
    std::memset(one.to, 0, one.bytes);
    if (one.count) std::memcpy(one.to, one.from, one.count);
}
}
template <int BYTES> static void copy_async(float* to, const float* from, bool there) {
    if (((unsigned long long)to | (unsigned long long)from) % BYTES) __builtin_trap();
    const copies::Copy one = {to, from, BYTES, there ? BYTES : 0};
    if (EAGER) copies::make(one);
    else if (copies::begun[threadIdx.x] == 64) __builtin_trap();
    else copies::waiting[threadIdx.x][copies::begun[threadIdx.x]++] = one;
}
static void commit_copies() { copies::committed[threadIdx.x] = copies::begun[threadIdx.x]; }
static void wait_for_copies() {
    for (unsigned int i = 0; i < copies::committed[threadIdx.x]; ++i) copies::make(copies::waiting[threadIdx.x][i]);
    if (copies::committed[threadIdx.x] != copies::begun[threadIdx.x]) __builtin_trap();
    copies::begun[threadIdx.x] = copies::committed[threadIdx.x] = 0;
}
static float power_of_2(float v) { return exp2f(v); }
static float for_tf32(float v) { return ROUNDS ? v * 1.000356674194336f : v; }
"""
HALF_STAND_INS = r"""
typedef unsigned int u32;
struct Part { u32 at[4]; };
namespace half_cores {
static float a_of[2][8][16][16], b_of[2][8][16][8];
static const E* rows[2][8][32];
static unsigned int rounds[1024], loads[1024];
static float element(u32 both, int which) { E e; e.bits = (unsigned short)(both >> 16 * which); return wide(e); }
}
static void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    const int warp = threadIdx.x / 32, group = threadIdx.x % 32 / 4, in_group = threadIdx.x % 4;
    const int round = half_cores::rounds[threadIdx.x]++ & 1;
    auto& A = half_cores::a_of[round][warp];
    auto& B = half_cores::b_of[round][warp];
    for (int e = 0; e < 2; ++e) {
        for (int i = 0; i < 4; ++i)
            A[i & 1 ? group + 8 : group][2 * in_group + (i < 2 ? 0 : 8) + e] = half_cores::element(a.at[i], e);
        B[2 * in_group + e][group] = half_cores::element(b0, e);
        B[2 * in_group + 8 + e][group] = half_cores::element(b1, e);
    }
    __syncwarp();
    for (int i = 0; i < 4; ++i) {
        const int row = i < 2 ? group : group + 8, column = in_group * 2 + (i & 1);
        float sum = 0;
        for (int k = 0; k < 16; ++k) sum += A[row][k] * B[k][column];
        c[i] += sum;
    }
}
static Part load(const E* row, bool transposed) {
    if ((unsigned long long)row % 16) __builtin_trap();
    const int lane = threadIdx.x % 32, r = lane / 4, c = lane % 4;
    auto& rows = half_cores::rows[half_cores::loads[threadIdx.x]++ & 1][threadIdx.x / 32];
    rows[lane] = row;
    __syncwarp();
    Part to;
    for (int m = 0; m < 4; ++m) {
        const E low = transposed ? rows[8 * m + 2 * c][r] : rows[8 * m + r][2 * c];
        const E high = transposed ? rows[8 * m + 2 * c + 1][r] : rows[8 * m + r][2 * c + 1];
        to.at[m] = low.bits | (u32)high.bits << 16;
    }
    return to;
}
static Part load_matrices(const E* row) { return load(row, false); }
static Part load_transposed(const E* row) { return load(row, true); }
static u32 pair(float low, float high) { return narrow<E>(low).bits | (u32)narrow<E>(high).bits << 16; }
static void copy_async(void* to, const void* from, bool there) {
    if (((unsigned long long)to | (unsigned long long)from) % 16) __builtin_trap();
    static const float zeros[4] = {0, 0, 0, 0};
    start_copy<16>((Shared)to, there ? from : zeros);
}
static void commit_copies() { close_copies(); }
static void wait_for_copies() { await_copies<0>(); }
static float power_of_2(float v) { return exp2f(v); }
"""
GUARD = 1024
"""Floats behind a block's shared memory that no kernel may touch."""


class TensorCores(Emulator):
    """The emulated device with tensor cores.

    rounds: operands of products lose the bits that TF32 has not, else products are those of Float32. eager: a copy to
    shared memory is made at once, which shows a buffer that is overwritten too early; else when it is waited for, which
    shows one that is read too early.
    """

    tf32 = True

    def __init__(self, folder: Path, rounds: bool = False, eager: bool = False) -> None:
        super().__init__(folder)
        self.instructions = f"#define ROUNDS {int(rounds)}\n#define EAGER {int(eager)}\n{STAND_INS}"
        self.launched: list[str] = []

    def attention(self, *_operands: Any, **_settings: Any) -> None:
        """No library has a kernel here."""

    def kernel(self, source: str, name: str) -> Any:
        halves = HALF_INSTRUCTIONS in source
        if INSTRUCTIONS not in source and not halves:
            return super().kernel(source, name)
        source = source.replace(INSTRUCTIONS, self.instructions).replace(HALF_INSTRUCTIONS, HALF_STAND_INS)
        type = "unsigned char" if halves else "float"
        declared = f"alignas(16) extern __shared__ {type} memory[];"
        assert declared in source
        source = source.replace(declared, f"alignas(16) {type} memory[SHARED + {4 * GUARD if halves else GUARD}];")
        size = int(re.findall(r"#define SHARED (\d+)", source)[0]) // (4 if halves else 1)
        call = super().kernel(source, name)
        number = self.sources[source, name]

        def checked(grid: Any, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
            assert shared == 4 * size <= 113 << 10  # of 227 KB, so that two blocks fit
            library, place = self.library(number)
            symbol = f"_ZN{len(str(place)) + 1}k{place}6memoryE"  # k<place>::memory
            memory = np.ctypeslib.as_array((ctypes.c_uint * (size + GUARD)).in_dll(library, symbol))
            memory[:] = 0xFFFFFFFF  # NaN
            call(grid, block, arguments, shared)
            assert (memory[size:] == 0xFFFFFFFF).all()
            self.launched.append(name)

        return checked
