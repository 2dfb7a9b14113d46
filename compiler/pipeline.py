"""Shows the compiler on one screen: which passes run in which mode, in order.

A pass is a file of the same name under passes/ (one that searches: under search/passes/). Passes before
`slice_to_rank` see the graph of all ranks and run once; those from it on run once for every kind of ranks that is asked
for (`compiler/rank_graphs.py`). Of these `fuse_matmul` cleans the graph for all behind it.
`VIEWS` are dumps that the compile does not go on with. Passes are numbered from 1, but for those of `OPTIONAL`: they
share the number of the pass ahead of them (0 is the front end's), and are dumped where they change anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

PREPARING = ("decompose", "route_experts", "route_slots", "hoist_invariants")
"""Ahead of all others in every mode."""
FOR_REGIONS = ("hoist_invariants",)
"""Passes that run where nodes run graphs alone."""
FOR_OFFLOAD = ("check_offload", "offload")
"""Passes that run where something is to live in the host's memory alone."""
FOR_STAGES = ("join_micro_batches", "assign_stages")
"""Passes that run where networks have several stages alone."""
SHARDED = (
    "grad",
    "join_micro_batches",
    "simplify",
    "recompute",
    "check_offload",
    "check_strategies",
    "shard_by_plan",
    "recompute_cells",
    "search_sharding",
    "propagate_sharding",
    "step_parallel_begin",
    "insert_redistribution",
    "exchange_rows",
    "lower_redistribution",
    "assign_stages",
    "fuse_gradients",
)
FOR_GPU_SHARDED = ("choose_pieces",)
"""Behind these where the device is a GPU, whose collectives run beside computation."""
ON_GPU = {"exchange_rows": "exchange_large_tables"}
"""What stands in the place of these where the device is a GPU."""
DATA_PARALLEL = (
    "draw_rows",
    "grad",
    "simplify",
    "recompute",
    "check_offload",
    "step_parallel_begin",
    "share_statistics",
    "reduce_gradients",
    "fuse_gradients",
)
WITHOUT_COMMUNICATION = ("grad", "simplify", "recompute", "check_offload", "step_parallel_begin")
FOR_GPU = ("fuse_attention",)
"""Ahead of the others where the device is a GPU."""
FOR_CPU = ("fuse_large_attention",)
"""Ahead of the others where the device is a CPU."""
FOR_GPU_RANKS = (
    "products_of_rows",
    "split_addends",
    "sum_in_kernels",
    "join_products",
    "pack_attention",
    "split_batch_norm",
    "split_norm",
    "split_dropout",
    "channels_last",
    "heads_last",
    "hoist_joined",
    "share_sums",
)
"""Behind `join_slices` where the device is a GPU: what was sliced is then one tensor again."""
FOR_CPU_ROWS = ("fuse_large_rows",)
"""Ahead of `fuse_elementwise` where the device is a CPU."""
FOR_GPU_SUMS = ("sum_joined",)
"""Ahead of `fuse_matmul` where the device is a GPU."""
FOR_GPU_PRODUCTS = ("send_in_pieces",)
"""Behind `fuse_matmul` where the device is a GPU."""
FOR_GPU_ROWS = ("join_row_sums", "fuse_rows")
"""Ahead of `fuse_elementwise` where the device is a GPU."""
FOR_GPU_KERNELS = (
    "recompute_elementwise",
    "keep_for_gradients",
    "fuse_moves",
    "row_pitch",
    "unstack_slices",
    "group_lookups",
)
"""Behind `fuse_elementwise` where the device is a GPU."""
FOR_GPU_UPDATES = ("update_rows",)
"""Behind `fuse_updates` where the device is a GPU."""
FOR_GPU_ORDER = ("stay_on_main_stream", "sum_in_readers", "read_early")
"""Behind `schedule_communication` where the device is a GPU."""
PER_RANK = (
    "slice_to_rank",
    "join_slices",
    "move_casts",
    "simplify_products",
    "fuse_matmul",
    "fuse_norm",
    "fuse_elementwise",
    "fuse_updates",
    "schedule_communication",
    "execute",
)

OPTIONAL = (
    *PREPARING, "join_micro_batches", "assign_stages", "fuse_large_attention", "fuse_large_rows", "shard_by_plan",
    "recompute_cells", "search_sharding", "exchange_rows", "exchange_large_tables", "check_offload", "choose_pieces",
    "send_in_pieces", *FOR_GPU_ORDER, "offload",
)  # fmt: skip
"""Passes that leave no trace where they have nothing to do."""
VIEWS = ("step_parallel_begin",)
FILE_NAMES = {"slice_to_rank": "step_parallel_end"}
"""Dumps whose fixed name is another than their pass's."""
UNNUMBERED = ("step_parallel_begin", "step_parallel_end")
"""Dumps that MindSpore writes without a place number."""


def passes_of(mode: str, device: str = "CPU") -> tuple[str, ...]:
    """Names of the passes that all ranks share behind those of `PREPARING`, for a ParallelMode and a device."""
    first = FOR_GPU if device == "GPU" else FOR_CPU
    if mode in ("semi_auto_parallel", "auto_parallel"):
        if device != "GPU":
            return first + SHARDED
        return first + tuple(ON_GPU.get(name, name) for name in SHARDED) + FOR_GPU_SHARDED
    return first + (DATA_PARALLEL if mode == "data_parallel" else WITHOUT_COMMUNICATION)


def before_grad(mode: str, device: str = "CPU") -> str:
    """The name of the pass right ahead of differentiation: behind it none compares the attributes of operators."""
    names = (*PREPARING, *passes_of(mode, device))
    return names[names.index("grad") - 1]


def numbered(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """(number, name) of the passes that all ranks share, those of `PREPARING` and then these."""
    number = 0
    for name in (*PREPARING, *names):
        number += name not in OPTIONAL
        yield number, name


def rank_passes_of(device: str = "CPU", stages: int = 1, offloads: bool = False) -> tuple[str, ...]:
    """Names of the passes that run for every rank, for a device and a number of stages. offloads: something is to live
    in the host's memory."""
    if offloads:
        *others, last = rank_passes_of(device, stages)
        return (*others, "offload", last)
    if stages > 1:
        *passes, last = rank_passes_of(device)
        first, rest = passes[:1], passes[1:]
        if device == "GPU":  # forward and backward are joined at once, as long as they are one graph
            at = passes.index("pack_attention") + 1
            first, rest = [*passes[:at], "hoist_joined"], passes[at:]
        return (*first, "cut_stages", *rest, "order_micro_batches", last)
    at = PER_RANK.index("fuse_elementwise")
    if device != "GPU":
        return PER_RANK[:at] + FOR_CPU_ROWS + PER_RANK[at:]
    behind = PER_RANK.index("fuse_updates") + 1
    fused = FOR_GPU_ROWS + PER_RANK[at : at + 1] + FOR_GPU_KERNELS + PER_RANK[at + 1 : behind] + FOR_GPU_UPDATES
    last = PER_RANK[behind:-1] + FOR_GPU_ORDER + PER_RANK[-1:]
    products = PER_RANK.index("fuse_matmul")
    ahead = PER_RANK[:2] + FOR_GPU_RANKS + PER_RANK[2:products] + FOR_GPU_SUMS
    first = ahead + PER_RANK[products : products + 1] + FOR_GPU_PRODUCTS + PER_RANK[products + 1 : at]
    return first + fused + last
