"""The pipeline: one list of the passes of a compile, in order, and the compiles in which each runs.

A pass is a file of the same name under `passes/` (`search_sharding`: under `search/passes/`). Passes before
`slice_to_rank` see the graph of all ranks and run once. The others run once for every kind of ranks that is asked for
(`compiler/rank_graphs.py`). `mspc passes` prints the list.

Dumps are numbered from 1 in this order; 0 is the front end's. An optional pass shares the number of the pass before
it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from mspc.ir.late_dataclass import dataclass

SHARDED, DATA, LOCAL = "sharded", "data_parallel", "local"
"""Kinds of parallel modes: semi_auto_parallel and auto_parallel, data_parallel, and modes without communication."""


@dataclass(frozen=True)
class Step:
    """One pass of the pipeline.

    modes: the kinds of parallel modes in which it runs. device: the device for which it runs, or "" for all.
    staged, offloads, regions, quantizes: if set, it runs only if the network has several stages, if values are stored
    in host memory, if nodes run graphs, or if layers multiply in Float8. optional: it leaves no dump if it changes
    nothing, and has no number of its own. view: later passes do not see its result; it is only dumped.
    """

    name: str
    modes: tuple[str, ...] = (SHARDED, DATA, LOCAL)
    device: str = ""
    staged: bool = False
    offloads: bool = False
    regions: bool = False
    quantizes: bool = False
    optional: bool = False
    view: bool = False

    def runs_on(self, device: str) -> bool:
        """Return whether it runs if ranks compute on `device`, "CPU" or "GPU"."""
        return self.device in ("", "GPU" if device == "GPU" else "CPU")


STEPS = (
    Step("mask_bounds", optional=True),
    Step("pad_uneven", (SHARDED,), optional=True),
    Step("decompose", optional=True),
    Step("route_experts", optional=True),
    Step("route_slots", optional=True),
    Step("hoist_invariants", regions=True, optional=True),
    Step("fuse_attention", device="GPU"),
    Step("fuse_large_attention", device="CPU", optional=True),
    Step("draw_rows", (DATA,)),
    Step("grad"),
    Step("join_micro_batches", (SHARDED,), staged=True, optional=True),
    Step("simplify"),
    Step("quantize_products", quantizes=True, optional=True),
    Step("recompute"),
    Step("check_offload", offloads=True, optional=True),
    Step("check_strategies", (SHARDED,)),
    Step("shard_by_plan", (SHARDED,), optional=True),
    Step("recompute_cells", (SHARDED,), optional=True),
    Step("search_sharding", (SHARDED,), optional=True),
    Step("propagate_sharding", (SHARDED,)),
    Step("step_parallel_begin", view=True),
    Step("share_statistics", (DATA,)),
    Step("reduce_gradients", (DATA,)),
    Step("insert_redistribution", (SHARDED,)),
    Step("exchange_rows", (SHARDED,), "CPU", optional=True),
    Step("exchange_large_tables", (SHARDED,), "GPU", optional=True),
    Step("lower_redistribution", (SHARDED,)),
    Step("assign_stages", (SHARDED,), staged=True, optional=True),
    Step("fuse_gradients", (SHARDED, DATA)),
    Step("choose_pieces", (SHARDED,), "GPU", optional=True),
    # From here on once for every kind of ranks.
    Step("slice_to_rank"),
    Step("cut_stages", device="CPU", staged=True),
    Step("join_slices"),  # slices of one tensor are one tensor again for the passes below
    Step("products_of_rows", device="GPU"),
    Step("split_addends", device="GPU"),
    Step("sum_in_kernels", device="GPU"),
    Step("join_products", device="GPU"),
    Step("pack_attention", device="GPU"),
    # A GPU's stages are cut after matmuls are joined, which needs forward and backward in one graph.
    Step("hoist_joined", device="GPU", staged=True),
    Step("cut_stages", device="GPU", staged=True),
    Step("split_batch_norm", device="GPU"),
    Step("split_norm", device="GPU"),
    Step("split_dropout", device="GPU"),
    Step("channels_last", device="GPU"),
    Step("heads_last", device="GPU"),
    Step("hoist_joined", device="GPU"),
    Step("share_sums", device="GPU"),
    Step("move_casts"),
    Step("simplify_products"),
    Step("sum_joined", device="GPU"),
    Step("fuse_edges", device="GPU", optional=True),
    Step("fuse_matmul"),  # removes dead nodes for all passes after it
    Step("send_in_pieces", device="GPU", optional=True),
    Step("fuse_norm"),
    Step("fuse_large_rows", device="CPU", optional=True),
    Step("fuse_rows", device="GPU"),
    Step("fuse_elementwise"),
    Step("recompute_elementwise", device="GPU"),
    Step("keep_for_gradients", device="GPU"),
    Step("fuse_moves", device="GPU"),
    Step("fuse_scans", device="GPU"),
    Step("row_pitch", device="GPU"),
    Step("group_lookups", device="GPU"),
    Step("fuse_updates"),
    Step("update_rows", device="GPU"),
    Step("schedule_communication"),
    Step("stay_on_main_stream", device="GPU", optional=True),
    Step("sum_in_readers", device="GPU", optional=True),
    Step("read_early", device="GPU", optional=True),
    Step("order_micro_batches", staged=True),
    Step("offload", offloads=True, optional=True),
    Step("execute"),
)

FIRST_OF_RANKS = "slice_to_rank"
OPTIONAL = frozenset(step.name for step in STEPS if step.optional)
VIEWS = tuple(step.name for step in STEPS if step.view)
FILE_NAMES = {FIRST_OF_RANKS: "step_parallel_end"}
"""Dumps whose fixed name differs from their pass's."""
UNNUMBERED = ("step_parallel_begin", "step_parallel_end")
"""Dumps that MindSpore writes without a number."""


def kind_of_mode(mode: str) -> str:
    """Return which kind of modes a ParallelMode is of: `SHARDED`, `DATA` or `LOCAL`."""
    if mode in ("semi_auto_parallel", "auto_parallel"):
        return SHARDED
    return DATA if mode == "data_parallel" else LOCAL


def _shared_and_rank_steps() -> tuple[Sequence[Step], Sequence[Step]]:
    first = next(index for index, step in enumerate(STEPS) if step.name == FIRST_OF_RANKS)
    return STEPS[:first], STEPS[first:]


def shared_passes(mode: str, device: str = "CPU") -> tuple[str, ...]:
    """Return the names of the passes over the graph of all ranks, with those that `idle_passes` then leaves out."""
    steps, kind = _shared_and_rank_steps()[0], kind_of_mode(mode)
    return tuple(step.name for step in steps if kind in step.modes and step.runs_on(device))


def rank_passes(device: str = "CPU", stages: int = 1, offloads: bool = False) -> tuple[str, ...]:
    """Return the names of the passes that run for every kind of ranks. offloads: values are stored in host memory."""
    return tuple(
        step.name
        for step in _shared_and_rank_steps()[1]
        if step.runs_on(device) and (stages > 1 or not step.staged) and (offloads or not step.offloads)
    )


def idle_passes(**found: bool) -> set[str]:
    """Return the names of shared passes that have nothing to do in a graph without `regions`, `offloads`, several
    stages (`staged`) or layers in Float8 (`quantizes`)."""
    return {
        step.name
        for step in _shared_and_rank_steps()[0]
        if any(getattr(step, name) and not has for name, has in found.items())
    }


def numbered(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield (number, name) for each of the shared passes."""
    number = 0
    for name in names:
        number += name not in OPTIONAL
        yield number, name


def file_of(number: int, name: str) -> str:
    """Return the name of the dump of a pass, without its ending."""
    stem = FILE_NAMES.get(name, name)
    return stem if stem in UNNUMBERED else f"{number:02d}_{stem}"


class RankDumps:
    """Dumps of a rank's passes, in order. first: the number of the first dump. before: the pass before it."""

    def __init__(self, names: Sequence[str], first: int, before: str) -> None:
        self._numbers: dict[str, int] = {}
        self._ahead: dict[str, str] = {}
        number = first - 1
        for name in names:
            self._ahead[name] = before
            if name not in OPTIONAL:
                number, before = number + 1, name
            self._numbers[name] = number

    def file_and_before(self, name: str, changed: bool) -> tuple[str, str] | None:
        """Return the file of a pass's dump, and the pass before it. Return None if there is no dump: a pass of
        `OPTIONAL` that changed nothing leaves no trace."""
        if name in OPTIONAL and not changed:
            return None
        before = self._ahead[name]
        if name in OPTIONAL:
            names = list(self._ahead)
            self._ahead[names[names.index(name) + 1]] = name
        return file_of(self._numbers[name], name), before
