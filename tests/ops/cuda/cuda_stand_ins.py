"""Tensor cores and copies without a GPU: C++ in place of the PTX of ops/cuda/flash*_instructions.cuh.

Fragments are those of the PTX ISA's section on mma.m16n8k8 with .tf32, where groupID is a lane's number / 4 and
threadID_in_group its rest: A's a0 to a3 lie in row groupID (a0, a2) or groupID + 8 (a1, a3) and in column
threadID_in_group (a0, a1) or threadID_in_group + 4 (a2, a3); B's b0 and b1 in row threadID_in_group or
threadID_in_group + 4 and column groupID; C's c0 to c3 in row groupID (c0, c1) or groupID + 8 (c2, c3) and column
threadID_in_group * 2 + (i & 1). Those of mma.m16n8k16 with halves hold two neighbouring elements in a register, the
first in its low half: A's registers lie in row groupID (0, 2) or groupID + 8 (1, 3) and from column threadID_in_group
* 2 (0, 1) or threadID_in_group * 2 + 8 (2, 3) on; B's from row threadID_in_group * 2 or that + 8 on in column groupID.
wgmma has 16 rows of A and C for each of four warps, with these fragments (section on wgmma's register fragments), and
reads tiles in shared memory with the swizzling of 128 bytes: bits 4 to 6 of an address are changed by its bits 7 to 9.
ldmatrix gives lane 4 r + c of row r of each matrix of 8 rows of 16 bytes those from 4 c on; transposed, of column r of
a matrix of halves the elements in rows 2 c and 2 c + 1.
"""

from pathlib import Path

from mspc.ops.device import source_text
from tests.texts import text_of

TEXTS = Path(__file__).with_name("cuda_stand_ins.cpp")

INSTRUCTIONS, HALF_INSTRUCTIONS, TF32_INSTRUCTIONS, GROUP_INSTRUCTIONS = (
    source_text(f"ops/cuda/flash_{name}instructions.cuh") for name in ("", "half_", "tf32_", "group_")
)

_COMMON = text_of(TEXTS, "common")
_TF32 = text_of(TEXTS, "tf32")
_HALVES = text_of(TEXTS, "halves")
_GROUPS = text_of(TEXTS, "groups")
GUARD = 1024
"""Words behind a block's shared memory that no kernel may touch."""


DECLARED = "alignas(GROUPED ? 1024 : 16) extern __shared__ unsigned char memory[];"


def without_tensor_cores(source: str, rounds: bool = False) -> str:
    """A kernel with C++ in the place of PTX, and memory of its own for its shared one.

    rounds: operands of products lose the bits that TF32 has not, else products are those of Float32.
    """
    if INSTRUCTIONS not in source:
        return source
    common = f"#define ROUNDS {int(rounds)}\n{_COMMON}"
    stand_ins_of = {
        INSTRUCTIONS: common, HALF_INSTRUCTIONS: _HALVES, TF32_INSTRUCTIONS: _TF32, GROUP_INSTRUCTIONS: _GROUPS,
    }  # fmt: skip
    for text, stand_ins in stand_ins_of.items():
        source = source.replace(text, stand_ins)
    if not rounds:
        source = source.replace("(v * 1.000356674194336f)", "(v)")
    assert "asm" not in source
    assert DECLARED in source
    return source.replace(DECLARED, f"alignas(1024) unsigned char memory[SHARED + {4 * GUARD}];")
