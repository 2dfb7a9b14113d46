"""Memory of kernels besides a step's values. On a GPU: a workspace shared by matmuls, and scratch memory of
convolutions and attention, reserved before the first step, so that a plan's estimate and the device agree. On a CPU:
memory that a kernel allocates while it runs."""

from __future__ import annotations

import math
from typing import Any

from mspc.analysis.cost.nodes import work_of
from mspc.ir.graph import Graph, Node, element_types, operand_types
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.base import Collective
from mspc.ops.convolution.window import Convolution
from mspc.ops.cuda.attention_kernels import LOWEST, aligned_bytes
from mspc.ops.cuda.flash_attention import NOTE, has_kernels
from mspc.ops.fused.matmul import FusedMatMul
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreShiftGrad
from mspc.ops.nn.attention_base import KEY_SHIFT, AttentionOp

PRODUCTS = 32 << 20
"""Bytes for partial sums of split matmuls; the size that NVIDIA's libraries use on Hopper."""
CONVOLUTION = 64 << 20
"""Maximum workspace bytes of a convolution. An H100 is one percent faster with four times as many."""
PACK = 16
"""Bytes that kernels load at once. If the bytes of channels are not a multiple, a padded copy of the image is made."""


def workspace_bytes(graph: Graph) -> int:
    """Return the bytes that a rank's graph needs on a GPU besides its memory plan."""
    nodes = [*graph.all_nodes()]
    multiplies, in_lanes = any(map(work_of, nodes)), any(node.op.host_reads for node in nodes)
    return PRODUCTS * (multiplies + in_lanes) + scratch_bytes(graph)


def cpu_kernel_bytes(graph: Graph) -> int:
    """Return the maximum bytes that a kernel needs on a CPU besides the memory plan while it runs: the packed operand
    of a convolution, and the copy of the addend that a matmul overwrites."""
    from mspc.ops.cpu.loops.convolution import compiled_convolution  # late: GPUs need none of it

    most = 0
    for node in graph.all_nodes():
        result = element_types(node.type)[0] if element_types(node.type) else None
        if isinstance(node.op, Convolution) and result is not None:
            source = compiled_convolution(node.op, operand_types(node), result)
            most = max(most, 0 if source is None else source.tables.ready * result.dtype.itemsize)
        elif isinstance(node.op, FusedMatMul) and node.op.addend and result is not None:
            most = max(most, result.nbytes)
    return most


def reserve_scratch(graph: Graph, device: Any) -> None:
    """Reserve the scratch memory of a graph's main stream at once, instead of growing it."""
    nbytes = scratch_bytes(graph)
    if nbytes:
        with device.stream("compute"):
            device.scratch(nbytes)


def scratch_bytes(graph: Graph) -> int:
    """Return the scratch bytes shared by the launches of a graph, which run one after the other; small ones are not
    counted."""
    found = 0
    for node in graph.all_nodes():
        if isinstance(node.op, Convolution):
            found = max(found, _of_convolution(node.op, node))
        elif isinstance(node.op, AttentionOp):
            found = max(found, _of_attention(node.op, operand_types(node)))
        elif isinstance(node.op, Collective):
            found = max(found, node.op.scratch_bytes(operand_types(node), node.type))
    return found


def _of_convolution(op: Convolution, node: Node) -> int:
    """Return the bytes of a kernel's scratch memory, and of a copy of the image if cuDNN needs one."""
    (result,) = element_types(node.type)
    operands = [*operand_types(node), result]
    image = max(op.in_order(operands), key=lambda type: math.prod(type.shape[2:]))
    if image.shape[1] * image.dtype.itemsize % PACK:
        return CONVOLUTION + 2 * image.nbytes
    along = op.along(image.shape[2:])
    if any(window.before != window.after for window in along):
        return CONVOLUTION + image.nbytes + image.nbytes // 4
    step = math.prod(window.stride for window in along)
    return CONVOLUTION + (image.nbytes // step if any(window.stride != 1 for window in along) else 0)


def _of_attention(op: Any, types: list[TensorType]) -> int:
    """Return the bytes of scores, and of operands by head, if matmuls replace a fused kernel."""
    dtype = types[0].dtype
    types = op.separated(types) if op.packed else types
    shape = op.sizes(types)
    rows = shape.batch * shape.heads * shape.queries
    gradient = not isinstance(op, FlashAttentionScore)
    named = op.named(types)
    if dtype.name.lower() in LOWEST and not op.draws_by_place and KEY_SHIFT not in named:
        return max((dtype.itemsize * type.size for type in named.values()), default=0)
    sums = isinstance(op, FlashAttentionScoreShiftGrad) and op.summed_to(types)[-2:] != shape.weights[2:]
    if has_kernels(shape, dtype) and "drop_mask" not in named and not sums:
        return NOTE * rows * gradient
    wide = max(dtype.itemsize, FLOAT32.itemsize)
    scores = aligned_bytes(rows * shape.keys * wide)
    if op.input_layout == "BNSD" and not op.packed:
        return scores * (1 + gradient)
    of_keys = shape.batch * shape.key_heads * shape.keys
    query, key, value, out = (
        aligned_bytes(n * dtype.itemsize)
        for n in (rows * shape.depth, of_keys * shape.depth, of_keys * shape.value_depth, rows * shape.value_depth)
    )
    return scores * (1 + gradient) + (query + key + value) * (1 + gradient) + out
