"""Makes every change of layout a node: an abstract Redistribute if a reader needs another layout than it gets.

Input:  `%3 = ReLU(%2) {in_layouts: (2, 4) [0, 1]}` with `%2` at `(2, 4) [0, -] sum[1]`
Output: `%3 = Redistribute(%2) {layout: (2, 4) [0, 1]}`, `%4 = ReLU(%3)`; every node then gets exactly the layout it
needs.

One value is brought to one layout once, from the cheapest copy at hand, also for readers after a Reshape to the
shape that it has. Options of `Cell.recompute()` change that: copies made for operators that
are computed again may serve once more (`keeps_communication`), and parameters are redistributed again for gradients
(`gathers_again`). Terms of a sum that share a layout are added before they are redistributed, so that partial gradients
are reduced once. Every inserted node carries a reason and the user's line.
"""

from __future__ import annotations

from collections.abc import Sequence

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ir.layout import Layout
from mspc.ops.collective.collectives import Redistribute
from mspc.ops.control.regions import Loop
from mspc.ops.control.structural import MARKS, Enter, IterationNumber, RegionBoundary
from mspc.ops.math.arithmetic import AddN
from mspc.ops.tensor.reshape import Cast, Reshape
from mspc.passes.base import GLOBAL, OPENED, Pass
from mspc.passes.cleanup.simplify import remove_dead
from mspc.passes.lib.choices import FILE, PLAN, SHARD, is_released
from mspc.passes.lib.placement import cheapest_source, result_layouts

REDUCTION_WORDS = {
    "sum": "sums", "mean": "means", "max": "maxima", "min": "minima", "prod": "products",
    "all": "truths", "any": "truths",
}  # fmt: skip


class InsertRedistribution(Pass):
    regions = OPENED
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        inserter = _Inserter(graph)
        for node in graph.nodes:
            if isinstance(node.op, RegionBoundary):
                inserter.pass_border(node, node.op)
            else:
                inserter.visit(node)
        inserter.results()
        graph.nodes = inserter.nodes
        if inserter.reused:
            remove_dead(graph)  # nodes that would have been recomputed for saved values
        return inserter.changed


class _Inserter:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.nodes: list[Node] = []
        self.builder = Builder(graph, self.nodes)
        self.copies: dict[Value, dict[Layout, Value]] = {}
        self.gathered_again: dict[Value, dict[Layout, Value]] = {}
        self.changed, self.reused = False, 0
        self.wanted = result_layouts(graph)
        self.regions: list[OpenRegion] = []

    def pass_border(self, node: Node, border: RegionBoundary) -> None:
        """Forget at the end of a region the copies that were made in it."""

        begin = node
        if border.region:
            region = self.regions.pop()
            region.restore(self.copies, self.gathered_again)
            begin = region.begin
        if not border.is_end:
            self.regions.append(OpenRegion(begin, border, self.copies, self.gathered_again))
        self.nodes.append(node)

    def visit(self, node: Node) -> None:
        if node.in_layouts is not None and not is_released(node):
            if isinstance(node.op, AddN) and len(node.inputs) > 1:
                self.add_by_layout(node)
            for index, layout in enumerate(node.in_layouts):
                value = node.inputs[index]
                if layout is not None and not isinstance(value, Constant) and value.layout != layout:
                    node.inputs[index] = self.bring(value, layout, node, index)
            if not any(isinstance(v, Constant) and v.shape for v in node.inputs):
                node.in_layouts = None
                self.changed = True
        self.nodes.append(node)
        self.made(node)
        for index in node.op.mutates:
            self.gathered_again.pop(node.inputs[index], None)
            self.copies.pop(node.inputs[index], None)  # readers of the parameter from here on get the new values
        if node in self.wanted and node.layout != self.wanted[node]:
            # At once: the caller's loss is then known before any parameter changes.
            self.bring(node, self.wanted[node], None, self.graph.results.index(node))

    def add_by_layout(self, node: Node) -> None:
        """Add the terms of every layout first, so that only the sums are redistributed; every rank slices constants
        itself. Partial products and extrema are no sums: each is redistributed by itself."""
        assert node.in_layouts is not None
        groups: dict[Layout, list[Value]] = {}
        constants = [value for value in node.inputs if isinstance(value, Constant)]
        sums: list[Value] = []
        for value in node.inputs:
            if isinstance(value, Constant):
                continue
            layout = value.tensor_layout
            if layout.partial and layout.reduction not in ("sum", "mean"):
                sums.append(value)
            else:
                groups.setdefault(layout, []).append(value)
        if len(groups) == 1 and not sums and node.in_layouts[0] in groups:
            return
        for layout, values in groups.items():
            if len(values) == 1:
                sums.append(values[0])
                continue
            self.builder.like(node).phase = node.phase
            total = self.builder.emit(AddN(), *values, name=node.name)
            total.layout = layout
            total.forward = node.forward
            self.made(total)
            sums.append(total)
        node.inputs = [*sums, *constants]
        node.in_layouts = node.in_layouts[: len(node.inputs)]

    def bring(self, value: Value, target: Layout, reader: Node | None, index: int) -> Value:
        value = _reshaped_from(value)
        unused = reader is not None and "unused" in reader.attrs
        known = self.gathered_again if _gathers_again(value, reader) else self.copies
        copies = known.setdefault(value, {}) if not unused else dict(known.get(value, {}))
        if target in copies:
            return copies[target]
        cost, start = cheapest_source(value, list(copies), target)
        first = _first_time(value) if cost else None
        if first is not None and target in self.copies.get(first, {}):
            self.reused += 1
            return self.copies[first][target]
        source = copies.get(start, value) if start is not None else value
        if not isinstance(source.layout, Layout):
            raise MspcError(
                f"{self.graph.name}: {value.label if isinstance(value, Node) else value.name} has no layout yet",
                notes=["run propagate_sharding before insert_redistribution"],
                frames=value.frames if isinstance(value, Node) else (),
            )
        place = value if isinstance(value, Node) and (source.layout.partial or reader is None) else reader
        ahead = self.regions[-1].outermost_loop(self.regions, source) if self.regions and reader is not None else None
        builder = self.builder if ahead is None else Builder(self.graph, [])
        if isinstance(place, Node):
            builder.like(place)
        builder.phase = reader.phase if reader is not None else "forward"
        redistributed = builder.emit(Redistribute(source=source.layout, target=target), source, name=value.name)
        redistributed.layout = target
        redistributed.attrs["reason"] = reason(value, source.layout, target, reader, index)
        mirrored = _mirrored_parameter(value, source.layout, reader)
        if mirrored:
            redistributed.attrs["mirror_user_id"] = mirrored
        copies[target] = redistributed
        self.changed = True
        if ahead is not None:
            # Every iteration needs it alike: it is brought there once, before the loop.
            self.nodes.insert(self.nodes.index(ahead.begin), redistributed)
            is_ordinary = known is self.copies
            at = list(self.regions).index(ahead)
            if at:
                self.regions[at - 1].made.add(redistributed)
            for region in self.regions[at:]:
                region.before[0 if is_ordinary else 1].setdefault(value, {})[target] = redistributed
        else:
            self.made(redistributed)
        return redistributed

    def made(self, node: Node) -> None:
        """Note that the region that is being read computes it."""
        if self.regions:
            self.regions[-1].made.add(node)

    def results(self) -> None:
        for i, value in enumerate(self.graph.results):
            target = self.wanted.get(value)
            if target is not None and not isinstance(value, Constant) and value.layout != target:
                self.graph.results[i] = self.bring(value, target, None, i)


def _gathers_again(value: Value, reader: Node | None) -> bool:
    """Return whether a gradient, or an operator recomputed for it, reads a parameter that is not to be stored gathered
    until then (`parallel_optimizer_comm_recompute`)."""
    if reader is None or reader.phase != "backward" or reader.forward is None:
        return False
    while isinstance(value, Node) and value.attrs.get("gathers_again") and len(value.inputs) == 1:
        value = value.inputs[0]
    return isinstance(value, Parameter) and bool(reader.forward.attrs.get("gathers_again"))


def _first_time(value: Value) -> Value | None:
    """Return the original of a node that is computed again here, if its communicated copies are saved
    (`mp_comm_recompute=False`)."""
    if not isinstance(value, Node) or "recomputed" not in value.attrs or value.forward is None:
        return None
    return value.forward if value.forward.attrs.get("keeps_communication") else None


def _reshaped_from(value: Value) -> Value:
    """Return the node whose result a Reshape passes on unchanged, else the value; a parameter may change in between."""
    while isinstance(value, Node) and isinstance(value.op, Reshape) and isinstance(value.inputs[0], Node):
        source = value.inputs[0]
        if (source.type, source.layout) != (value.type, value.layout):
            break
        value = source
    return value


def reason(value: Value, source: Layout, target: Layout, reader: Node | None, index: int) -> str:
    """One sentence: between which layouts, who needs it and why."""
    given = f"{_called(value)} is {_words(source)}"
    if reader is None:
        return f"{given}, the caller receives result {index} {_words(target)}"
    if reader.phase == "update":
        why = "its update runs on the slices that each rank stores"
    elif reader.phase == "backward":
        why = f"gradient of {reader.forward.label}" if reader.forward is not None else "sum of gradients"
    else:
        why = _asked(reader)
    if isinstance(reader.op, MARKS):
        return f"{given}, {reader.op.words} {_words(target)}"
    return f"{given}, input {index} of {reader.label} must be {_words(target)} ({why})"


def _asked(reader: Node) -> str:
    origin = str(reader.attrs.get("strategy_from", ""))
    if origin in (SHARD, FILE):
        asked = ", ".join(map(str, reader.in_strategy or ()))
        return f"strategy ({asked}) given by {origin}"
    if origin == PLAN:
        return f"given by {PLAN}"
    if origin == "batch":
        return "no strategy given: sharded along the batch"
    return f"propagated from {origin}" if origin else "its layout"


def _called(value: Value) -> str:
    if isinstance(value, Parameter):
        return f"parameter {value.name}" if value.kind != "input" else f"input {value.name}"
    assert isinstance(value, Node)
    for_parameter = _gradient_of(value)
    if for_parameter:
        return f"the gradient of {for_parameter}"
    if isinstance(value.op, Enter):
        return f"{value.name}, which {value.op.kind} {'scans' if value.op.scanned else 'carries'},"
    if value.phase == "backward" and value.forward is not None:
        return f"{value.op.name} in the gradient of {value.forward.label}"
    return f"the result of {value.label}"


def _words(layout: Layout) -> str:
    if layout.is_replicated:
        return "replicated"
    sharding = f"sharded {layout.strategy}" if any(layout.dims) else "unsharded"
    mesh = f"({', '.join(map(str, layout.mesh))})"
    if not layout.partial:
        return f"{sharding} on mesh {mesh}"
    return f"{sharding} on mesh {mesh} in {layout.size_of(layout.partial)} partial {REDUCTION_WORDS[layout.reduction]}"


def _mirrored_parameter(value: Value, source: Layout, reader: Node | None) -> str:
    """Return the parameter whose gradient this reduces, as MindSpore's mirror operators name it."""
    if not source.partial or reader is None:
        return ""
    if isinstance(reader.op, Cast) and "gradient_for" in reader.attrs:
        return str(reader.attrs["gradient_for"])
    return _gradient_of(value) if reader.phase == "update" else ""


def _gradient_of(value: Value) -> str:
    """Return the parameters of which `value` is the gradient, also if an optimizer has scaled it since."""
    while isinstance(value, Node):
        if "gradient_for" in value.attrs:
            return str(value.attrs["gradient_for"])
        partial = [v for v in value.inputs if isinstance(v.layout, Layout) and v.layout.partial]
        if value.phase != "update" or len(partial) != 1:
            return ""
        value = partial[0]
    return ""


Copies = dict[Value, dict[Layout, Value]]
"""The copies of values by their layouts."""


class OpenRegion:
    """A region that is being read. begin: the boundary before the first region of its node. made: the values it has
    computed so far."""

    def __init__(self, begin: Node, border: RegionBoundary, copies: Copies, gathered_again: Copies) -> None:
        self.begin, self.border = begin, border
        self.made: set[Value] = set()
        for value in border.changed:
            copies.pop(value, None)
            gathered_again.pop(value, None)
        self.before = _copied(copies), _copied(gathered_again)

    def restore(self, *now: Copies) -> None:
        """Forget the copies that the region has made for itself."""
        for copies, before in zip(now, self.before, strict=True):
            copies.clear()
            copies.update(before)

    def is_fixed(self, value: Value) -> bool:
        """Return whether a value is the same at every turn of the loop that this region belongs to."""
        border = self.border
        if not isinstance(border.op, Loop) or value in self.made or value in (*border.changed, *border.varying):
            return False
        return not (
            isinstance(value, Node)
            and isinstance(value.op, Enter | IterationNumber)
            and value.op.owner is self.border.owner
        )

    @staticmethod
    def outermost_loop(regions: Sequence[OpenRegion], value: Value) -> OpenRegion | None:
        """The outermost of the loops around, with no branch of a choice between, in which the value never changes."""
        found: OpenRegion | None = None
        for region in reversed(regions):
            if not region.is_fixed(value):
                break
            found = region
        return found


def _copied(copies: Copies) -> Copies:
    return {value: dict(layouts) for value, layouts in copies.items()}
