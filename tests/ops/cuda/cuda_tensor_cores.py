"""Tensor cores and copies without a GPU: C++ in place of the PTX of `mspc.ops.cuda.flash.INSTRUCTIONS`.

Fragments are those of the PTX ISA's section on mma.m16n8k8 with .tf32, where groupID is a lane's number / 4 and
threadID_in_group its rest: A's a0 to a3 lie in row groupID (a0, a2) or groupID + 8 (a1, a3) and in column
threadID_in_group (a0, a1) or threadID_in_group + 4 (a2, a3); B's b0 and b1 in row threadID_in_group or
threadID_in_group + 4 and column groupID; C's c0 to c3 in row groupID (c0, c1) or groupID + 8 (c2, c3) and column
threadID_in_group * 2 + (i & 1).
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.ops.cuda.flash import INSTRUCTIONS
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

    def kernel(self, source: str, name: str) -> Any:
        if INSTRUCTIONS not in source:
            return super().kernel(source, name)
        source = source.replace(INSTRUCTIONS, self.instructions)
        declared = "alignas(16) extern __shared__ float memory[];"
        assert declared in source
        source = source.replace(declared, f"alignas(16) float memory[SHARED + {GUARD}];")
        size = int(re.findall(r"#define SHARED (\d+)", source)[0])
        call = super().kernel(source, name)
        number = self.sources[source, name]

        def checked(grid: Any, block: int, arguments: Sequence[Any], shared: int = 0) -> None:
            assert shared == 4 * size <= 113 << 10  # of 227 KB, so that two blocks fit
            if self.built is None:
                self.built = ctypes.PyDLL(str(self.build()))
            library = self.built
            symbol = f"_ZN{len(str(number)) + 1}k{number}6memoryE"  # k<number>::memory
            memory = np.ctypeslib.as_array((ctypes.c_uint * (size + GUARD)).in_dll(library, symbol))
            memory[:] = 0xFFFFFFFF  # NaN
            call(grid, block, arguments, shared)
            assert (memory[size:] == 0xFFFFFFFF).all()
            self.launched.append(name)

        return checked
