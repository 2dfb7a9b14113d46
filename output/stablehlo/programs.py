"""One module for the programs of all ranks: it runs on as many devices, each of which takes its own branches.

Kernels run on arrays that write operations. Ranks whose programs are equal but for attributes share their operators."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from functools import partial, reduce
from types import SimpleNamespace
from typing import Any

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.ir.diagnostics import MspcError, ranks_listed
from mspc.ir.graph import MICRO_BATCH, Graph, Node, Value, element_types
from mspc.ir.types import StackType, TupleType, Type
from mspc.ops.collective.base import Collective
from mspc.ops.collective.collectives import Broadcast, NeighborExchange
from mspc.ops.collective.point_to_point import Receive, Send
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.control.regions import If, Loop, While, spread
from mspc.ops.control.structural import CALL
from mspc.ops.math.library import LibraryFunction
from mspc.ops.math.xla_functions import XlaFunction
from mspc.output.stablehlo.array_module import ArrayModule
from mspc.output.stablehlo.arrays import HloArray
from mspc.output.stablehlo.text import Content, NotWritten, Ref, quoted, type_of
from mspc.output.stablehlo.xla_forms import FORMS

Steps = Generator[None, None, Any]
"""Writes until an array of other ranks is missing, then yields."""
_MAX_LISTED, _EXCHANGED, _UNROLLED = 20, -1, 3
"""Most operators in a message; the tag of arrays in exchanges; iterations from which a loop is written as one."""
_REFUSALS = (NotWritten, ArithmeticError, AttributeError, LookupError, TypeError, ValueError)
"""Errors of kernels on arrays of which only a run knows the elements."""
_COMBINE = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
_OF_BOOL = {"sum": "or", "max": "or", "min": "and", "prod": "and"}


def module_text(kinds: Sequence[Any], ranks: int, name: str) -> str:
    """Return the module of the programs of all ranks. kinds: see `verify.scale.rank_kinds.RankKind`. Raise MspcError if
    operators have no form, all of which are named with counts and lines."""
    module = _Module(ranks)
    programs = [_Program(module, kind) for kind in kinds]
    waiting, idle = [program.run() for program in programs], 0
    while waiting:
        before = module.met
        waiting = [steps for steps in waiting if next(steps, module) is not module]
        idle = 0 if module.met > before else idle + 1
        if idle > len(programs):
            module.check_refused()
            raise MspcError("the ranks wait for messages that none sends")
    module.check_refused()
    results, shown = list[Content](), list[str]()
    for program in programs:
        for title, content, place in program.results:
            if place is not None:
                given = f", tf.aliasing_output = {len(results)} : i32}}"
                module.arguments[place] = module.arguments[place].replace("}", given, 1)
            results.append(content)
            shown.append(f"{type_of(content)} {{jax.result_info = {quoted(title)}}}")
    module.xp.emit("func.return", results)
    if module.step.name in module.xp.used:
        module.arguments.append(f'{module.step.name}: {type_of(module.step)} loc("step")')
    return "\n".join(module.xp.lines(name, ranks, module.arguments, shown))


class _Module:
    """State that the programs share. sent: messages by (sender, receiver, tag), until they are received. given:
    operands of collectives of ranks of several kinds, by group and rank. met: how often an array came that a program
    waited for."""

    def __init__(self, ranks: int) -> None:
        self.ranks, self.xp, self.met = ranks, ArrayModule(), 0
        self.step = Ref("%step", np.dtype(np.uint64), ())
        self.arguments = list[str]()
        self.sent: dict[tuple[int, int, int], list[HloArray]] = {}
        self.given: dict[tuple[Any, int], list[list[HloArray]]] = {}
        self.refused: dict[tuple[str, str], list[Node]] = {}

    def check_refused(self) -> None:
        """Raise MspcError if operators have no form."""
        lines = [f"{name}: {len(nodes)} time{'s' * (len(nodes) > 1)}, first at {[*nodes[0].frames, '?'][0]}: {reason}"
                 for (name, reason), nodes in self.refused.items()]  # fmt: skip
        if lines:
            lines[_MAX_LISTED:] = [f"and {len(lines) - _MAX_LISTED} more"] * (len(lines) > _MAX_LISTED)
            names = ", ".join(Counter(name for name, _ in self.refused))
            frames = next(iter(self.refused.values()))[0].frames
            raise MspcError(f"no form in StableHLO has {names}", frames=frames, notes=lines)


class _Program:
    """The program of a kind of ranks. results: names and contents, with the numbers of arguments that they replace."""

    def __init__(self, module: _Module, kind: Any) -> None:
        self.module, self.kind, self.xp = module, kind, module.xp
        self.backend = SimpleNamespace(xp=self.xp, comm=self, step=HloArray(self.xp, module.step), turns=(), calls=())
        self.groups = np.zeros((0, 0), np.int64)
        self.results: list[tuple[str, Content, int | None]] = []
        self.first, self.cells = len(module.arguments), dict[Value, HloArray]()
        where = f', mspc.ranks = "{ranks_listed(kind.ranks)}"' if len(kind.ranks) < module.ranks else ""
        for parameter in kind.graph.parameters:
            type = parameter.tensor_type
            ref = Ref(f"%arg{len(module.arguments)}", np.dtype(type.dtype.numpy), type.shape)
            facts = f'{{mspc.layout = "{parameter.layout}"{where}}} loc({quoted(parameter.name)})'
            module.arguments.append(f"{ref.name}: {type_of(ref)} {facts}")
            self.cells[parameter] = HloArray(self.xp, ref)

    def run(self) -> Steps:
        """Write the program and find its results."""
        graph = self.kind.graph
        found = yield from self._graph(graph, [self.cells[parameter] for parameter in graph.parameters])
        results = [each for one in found for each in (one if isinstance(one, list | tuple) else [one])]
        self.results = [(f"result {i}", each.content, None) for i, each in enumerate(results)]
        updated = {parameter for each in updated_parameters(graph).values() for parameter in each}
        self.results += [(parameter.name, self.cells[parameter].content, self.first + place)
                         for place, parameter in enumerate(graph.parameters) if parameter in updated]  # fmt: skip

    def _graph(self, graph: Graph, operands: Sequence[Any]) -> Steps:
        """Write a graph and return its results."""
        values: dict[Value, Any] = dict(zip(graph.parameters, operands, strict=True))
        for node in graph.nodes:
            self.xp.frames = node.frames
            inputs = [values[each] if each in values else self._constant(each) for each in node.inputs]
            try:
                made = yield from self._node(node, inputs)
            except _REFUSALS as error:
                reason = error.message if isinstance(error, MspcError) else f"its kernel takes other arrays ({error})"
                name = f"{node.op.name} {getattr(node.op, 'function', '')}".strip()
                self.module.refused.setdefault((name, reason), []).append(node)
                made = None
            values[node] = self._typed(made, node.type)
        return [values[each] if each in values else self._constant(each) for each in graph.results]

    def _typed(self, made: Any, type: Type) -> Any:
        """Return a result as its type says; zeros instead of one that was refused."""
        if isinstance(type, TupleType):
            parts = [None] * len(type.elements) if made is None else made
            return tuple(self._typed(part, each) for part, each in zip(parts, type.elements, strict=True))
        dtype: Any = getattr(type, "dtype", None)
        if isinstance(type, StackType) or dtype is None:
            return made
        made = self.xp.zeros(getattr(type, "shape", ())) if made is None else made
        return self.xp.asarray(made, dtype.numpy)

    def _constant(self, value: Any) -> HloArray:
        own = self.kind.constants.get(id(value)) or (value,)
        return self._by_rank([each.value.tobytes() for each in own], lambda i: self.xp.asarray(own[i].value))

    def _by_rank(self, keys: Sequence[Any], make: Callable[[int], Any]) -> Any:
        """Return the result that each rank of the kind makes by itself. keys: equal ones make the same; one for all if
        no ranks differ."""
        numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
        if len(numbers) == 1:
            return make(0)
        made = list[Any]()

        def branch(place: int) -> list[Content]:
            made.append(make(place))
            return [each.content for each in (made[-1] if isinstance(made[-1], tuple) else (made[-1],))]

        of_rank = dict(zip(self.kind.ranks, map(numbers.__getitem__, keys), strict=True))
        branches = [partial(branch, keys.index(key)) for key in numbers]
        chosen = self.xp.chosen([of_rank.get(rank, 0) for rank in range(self.module.ranks)], branches)
        found = tuple(HloArray(self.xp, ref) for ref in chosen)
        return found if isinstance(made[0], tuple) else found[0]

    def _node(self, node: Node, inputs: list[Any]) -> Steps:
        """Write a node and return its result."""
        op: Any = node.op
        ops: Sequence[Any] = self.kind.ops_of(op)
        if node.regions:
            return (yield from self._regions(node, inputs))
        if isinstance(op, Collective):
            own = dict(zip(self.kind.ranks, list(ops) * (len(self.kind.ranks) // len(ops)), strict=True))
            return (yield from self._collective(op, own, inputs))
        if isinstance(op, LibraryFunction):
            form = FORMS.get(op.function) if isinstance(op, XlaFunction) else None
            if form is None:
                return op.row.run(*inputs, *op.options)
            made = form(self.xp, [(t.dtype.numpy, t.shape) for t in element_types(node.type)], *inputs, *op.options)
            return tuple(HloArray(self.xp, ref) for ref in made) if isinstance(made, list) else HloArray(self.xp, made)
        if op.runs_on_host or (op.mutates and len(set(ops)) > 1):
            raise NotWritten("it runs on the host" if op.runs_on_host else "ranks update other elements")
        if len(set(ops)) > 1:
            inputs = [HloArray(self.xp, self.xp.ref(each)) for each in inputs]
        return self._by_rank(ops, lambda i: self._typed(ops[i].kernel(self.backend)(*inputs), node.type))

    # Collectives

    def _collective(self, op: Any, own: dict[int, Any], inputs: list[Any]) -> Steps:
        """Write a collective of ranks of the kind, or with others. own: the operator of each rank."""
        sent, messages = self.module.sent, {r: each.on(r) if hasattr(each, "on") else each for r, each in own.items()}
        first = next(iter(messages.values()))
        if isinstance(first, Send):
            for rank, each in messages.items():
                sent.setdefault((rank, each.dest_rank, each.sr_tag), []).append(inputs[0].copy())
            return inputs[0]
        if isinstance(first, Receive):
            return (yield from self._fetched([(each.src_rank, rank, each.sr_tag) for rank, each in messages.items()]))
        if isinstance(op, NeighborExchange):
            for i, array in enumerate(inputs):
                for rank, each in own.items():
                    sent.setdefault((rank, each.send_rank_ids[i], _EXCHANGED), []).append(array.copy())
            found = list[Any]()
            for j in range(len(op.recv_rank_ids)):
                keys = [(each.recv_rank_ids[j], rank, _EXCHANGED) for rank, each in own.items()]
                found.append((yield from self._fetched(keys)))
            return tuple(found)
        if not isinstance(op, Broadcast) and len({each.with_ranks(op.ranks) for each in own.values()}) > 1:
            raise NotWritten("ranks of one program call it with other settings")
        if {rank for each in own.values() for rank in each.ranks} > {*own}:
            inputs = yield from self._of_all(own, inputs)
        self._set_groups(own)
        if isinstance(op, FetchRows | SendRows):
            return self._rows(op, [each.ranks.index(rank) for rank, each in own.items()], *inputs)
        return op.kernel(self.backend)(*inputs)

    def _rows(self, op: FetchRows | SendRows, numbers: list[int], x: HloArray, places: HloArray) -> HloArray:
        """Return rows of a table in slices, or a slice of the table that rows are sent to: all places go to all ranks.
        numbers: of the ranks' slices."""
        xp, rest = self.xp, x.shape[1 if isinstance(op, FetchRows) else places.ndim :]
        size = x.shape[0] if isinstance(op, FetchRows) else op.size
        every = self.all_gather(places.reshape(1, -1), op.ranks).astype(np.int64)
        mine = every - self._by_rank(numbers, lambda i: xp.asarray(np.array(numbers[i]))) * size
        inside = (mine >= 0) & (mine < size)
        if isinstance(op, FetchRows):
            mask = inside.reshape(*inside.shape, *(1,) * len(rest))
            rows = xp.where(mask, x[xp.where(inside, mine, 0)], np.zeros(1, x.dtype))
            return self.reduce_scatter(rows, "sum", op.ranks).reshape(*places.shape, *rest)
        wide = np.float32 if x.itemsize == 2 and not op.sets else x.dtype
        table = xp.zeros((size, *rest), wide)
        rows = self.all_gather(x.reshape(1, places.size, *rest), op.ranks).astype(wide)
        table.put(xp.where(inside, mine, size), rows, "" if op.sets else "add")  # a scatter leaves out others
        return table.astype(x.dtype)

    def _until(self, ready: Callable[[], bool]) -> Steps:
        frames = self.xp.frames
        while not ready():
            yield
        self.module.met, self.xp.frames = self.module.met + 1, frames

    def _fetched(self, keys: Sequence[tuple[int, int, int]]) -> Steps:
        """Return the array that each rank gets from another one, once all are sent; zeros on others. keys: of the
        messages. Each permutation moves one array, of which a rank sends at most one."""
        sent, rounds = self.module.sent, list[tuple[HloArray, dict[int, int]]]()
        yield from self._until(lambda: all(sent.get(key) for key in keys))
        for source, target, array in [(*key[:2], sent[key].pop(0)) for key in keys]:
            fitting = next((to for x, to in rounds if x.content is array.content and source not in to), None)
            if fitting is None:
                rounds.append((array, fitting := {}))
            fitting[source] = target
        parts = [x.made(self.xp.emit("collective_permute", (x,), (x.dtype, x.shape), source_target_pairs=np.array(
            list(to.items()), np.int64))) for x, to in rounds]  # fmt: skip
        return reduce(operator.or_ if parts[0].dtype.kind == "b" else operator.add, parts)

    def _of_all(self, own: dict[int, Any], inputs: list[HloArray]) -> Steps:
        """Return the operands of a collective that every rank of its groups has, once all kinds of ranks are there:
        each kind writes one for its own ranks."""
        given, place = self.module.given, dict[Any, int]()
        for rank, each in own.items():
            calls = given.setdefault((each.ranks, rank), [])
            place[each.ranks] = len(calls)
            calls.append([array.copy() for array in inputs])
        groups = {rank: each.ranks for each in own.values() for rank in each.ranks}
        yield from self._until(lambda: all(len(given.get((g, r), ())) > place[g] for r, g in groups.items()))
        together = list[HloArray]()
        for i in range(len(inputs)):
            contents = {rank: given[group, rank][place[group]][i].content for rank, group in groups.items()}
            arrays = list({id(each): each for each in contents.values()}.values())
            every = map(contents.get, range(self.module.ranks))
            numbers = [next((n for n, x in enumerate(arrays) if x is own), 0) for own in every]
            together.append(HloArray(self.xp, self.xp.chosen(numbers, [partial(list, [each]) for each in arrays])[0]))
        return together

    def _set_groups(self, own: dict[int, Any]) -> None:
        """Note the groups of a collective; ranks that do not run it are in groups of the same size."""
        groups = list(dict.fromkeys(each.ranks for each in own.values()))
        others, size = sorted({*range(self.module.ranks)}.difference(*groups)), len(groups[0])
        if any(len(group) != size for group in groups) or len(others) % size:
            raise NotWritten(f"its groups of {size} ranks do not divide all {self.module.ranks}")
        self.groups = np.array([*groups, *(others[i : i + size] for i in range(0, len(others), size))], np.int64)
        self.roots = {each.ranks.index(each.root_rank) for each in own.values() if isinstance(each, Broadcast)}

    def _emit(self, name: str, x: HloArray, shape: Sequence[int], how: str = "", **settings: Any) -> HloArray:
        wide = np.float32 if x.itemsize == 2 and x.dtype.kind in "fV" and how in ("sum", "prod") else x.dtype
        combine = (_OF_BOOL if x.dtype.kind == "b" else _COMBINE)[how] if how else ""
        regions = [self.xp.combining(combine, np.dtype(wide))] if how else []
        settings |= {"replica_groups": self.groups}
        made = self.xp.emit(name, (x.astype(wide),), (wide, shape), regions=regions, **settings)
        return x.made(made).astype(x.dtype)

    def all_reduce(self, x: HloArray, op: str, ranks: Any) -> HloArray:
        """Do a communicator's `all_reduce`; likewise below."""
        return self._emit("all_reduce", x, x.shape, op)

    def all_gather(self, x: HloArray, ranks: Any, axis: int = 0) -> HloArray:
        axis, shape = axis % x.ndim, list(x.shape)
        shape[axis] *= len(ranks)
        return self._emit("all_gather", x, shape, all_gather_dim=axis)

    def reduce_scatter(self, x: HloArray, op: str, ranks: Any, axis: int = 0) -> HloArray:
        axis, shape = axis % x.ndim, list(x.shape)
        shape[axis] //= len(ranks)
        return self._emit("reduce_scatter", x, shape, op, scatter_dimension=axis)

    def all_to_all(self, x: HloArray, ranks: Any, split_dim: int, concat_dim: int) -> HloArray:
        shape, count = list(x.shape), len(ranks)
        shape[split_dim] //= count
        shape[concat_dim] *= count
        dims = {"split_dimension": split_dim, "concat_dimension": concat_dim}
        return self._emit("all_to_all", x, shape, split_count=count, **dims)

    def broadcast(self, x: HloArray, root: int, ranks: Any) -> HloArray:
        if len(self.roots) > 1:
            raise NotWritten("its groups have roots at different places")
        return self.all_gather(self.xp.expand_dims(x, 0), ranks)[next(iter(self.roots))]

    def barrier(self, ranks: Any) -> None:
        """Order nothing: the module is one program."""

    # Regions

    def _regions(self, node: Node, inputs: list[Any]) -> Steps:
        """Write a node with regions and return its results."""
        op, backend, known = node.op, self.backend, -1
        if isinstance(op, If):
            return self._branches(node, op, inputs)
        if isinstance(op, Loop):
            inner = [each.op for region in node.regions for graph in region.graphs() for each in graph.nodes]
            known = op.known_iterations([value.type for value in node.inputs])
            messages = any(hasattr(each, "on") or isinstance(each, NeighborExchange) or self._meets_others(each)
                           for each in inner)  # fmt: skip
            if known >= 0 and (known < _UNROLLED or messages):
                return (yield from self._unrolled(node, op, inputs, known))
            return self._while(node, op, inputs, known)
        around = backend.turns, backend.calls
        if MICRO_BATCH in node.attrs:
            backend.turns += (int(node.attrs[MICRO_BATCH]),)
        elif CALL in node.attrs:
            backend.calls += (int(node.attrs[CALL]),)
        found = yield from self._graph(node.regions[0], spread(node, inputs))
        backend.turns, backend.calls = around
        return tuple(_apart(found))

    def _meets_others(self, op: Any) -> bool:
        """Return whether an operator is a collective with ranks of other kinds."""
        ops: Sequence[Any] = self.kind.ops_of(op) if isinstance(op, Collective) else ()
        return not {rank for each in ops for rank in each.members} <= {*self.kind.ranks}

    def _inside(self, region: Graph, operands: Sequence[Any]) -> list[Any]:
        """Return copies of the results of a graph that is written into an open region."""
        steps = self._graph(region, operands)
        try:
            next(steps)
        except StopIteration as end:
            return _apart(end.value)
        raise NotWritten("ranks with other programs send messages inside it")

    def _branches(self, node: Node, op: If, inputs: list[Any]) -> Any:
        """Write both branches; operands that they overwrite are results, too."""
        given, regions, found = [self.xp.ref(each) for each in inputs], list[list[str]](), list[HloArray]()
        for region in node.regions:
            with self.xp.region() as (lines, _):
                cells = [HloArray(self.xp, each) for each in given[1:]]
                found = [*self._inside(region, cells), *(cells[i - 1] for i in op.mutates)]
                self.xp.emit("return", found)
            regions.append(lines)
        made = self.xp.emit("if", given[:1], *((each.dtype, each.shape) for each in found), regions=regions)
        arrays = [HloArray(self.xp, each) for each in (made if len(found) != 1 else [made])]
        for i, each in zip(op.mutates, arrays[len(found) - len(op.mutates) :], strict=True):
            inputs[i].store(each.content)
        return tuple(arrays[: len(found) - len(op.mutates)])

    def _unrolled(self, node: Node, op: Loop, inputs: list[Any], turns: int) -> Steps:
        """Write the body once for every iteration."""
        start, end = op.first + op.carried, op.first + op.carried + op.scanned
        carried, scanned, around = inputs[op.first : start], inputs[start:end], self.backend.turns
        entries: list[list[Any]] = [[None] * turns for _ in range(op.stacked)]
        for turn in range(turns)[:: -1 if op.reverse else 1]:
            self.backend.turns = (*around, turn)
            number = [self.xp.asarray(np.array(turn))] * op.leading
            own = [*number, *carried, *(x[turn] for x in scanned), *inputs[end:]]
            found = _apart((yield from self._graph(node.regions[-1], own)))
            carried = found[: op.carried]
            for stack, entry in zip(entries, found[op.carried :], strict=True):
                stack[turn] = entry
        self.backend.turns = around
        types = element_types(node.type)[op.carried :]
        return (*carried, *(each if isinstance(type, StackType) or not turns else self.xp.stack(each)
                            for each, type in zip(entries, types, strict=True)))  # fmt: skip

    def _while(self, node: Node, op: Loop, inputs: list[Any], known: int) -> Any:
        """Write a loop. It carries the number of the iteration, carried values, operands that the body overwrites, and
        the entries that are saved, if their number is known."""
        if known < 0 and (op.stacked or op.scanned):
            raise NotWritten("it saves values of each iteration, whose number only a run knows")
        xp, first, around = self.xp, op.first + op.carried, self.backend.turns
        inner = node.regions[-1].results[op.carried :]
        limit = xp.asarray(np.array(known)) if known >= 0 else inputs[0]
        wholes = [xp.stack(each) if isinstance(each, list) else HloArray(xp, xp.ref(each)) for each in inputs]
        written = [i for i in op.mutates if not op.first <= i < first]
        start = [xp.asarray(np.zeros((), np.int64)), *wholes[op.first : first], *(wholes[i] for i in written),
                 *(xp.zeros((known, *each.shape), each.tensor_type.dtype.numpy) for each in inner)]  # fmt: skip
        types, regions = [(each.dtype, each.shape) for each in start], list[list[str]]()
        for is_body in (False, True):
            with xp.region(*types) as (lines, values):
                cells = [HloArray(xp, each) for each in values]
                number = limit - 1 - cells[0] if op.reverse else cells[0]
                self.backend.turns = (*around, number.astype(np.uint64))
                now = dict(enumerate(wholes)) | dict(zip(written, cells[1 + op.carried :], strict=False))
                rows = {i: now[i][number] for i in op.scanned_operands}
                own = [*cells[1 : 1 + op.carried], *((now | rows)[i] for i in range(first, len(inputs)))]
                if not is_body:
                    ends = [self._inside(node.regions[0], own)[0] if isinstance(op, While) else cells[0] < limit]
                else:
                    found = self._inside(node.regions[-1], [*[number] * op.leading, *own])
                    for i in {*written} & {*rows}:
                        now[i][number] = rows[i]
                    for stack, entry in zip(cells[1 + op.carried + len(written) :], found[op.carried :], strict=True):
                        stack[number] = entry
                    ends = [cells[0] + 1, *found[: op.carried], *cells[1 + op.carried :]]
                xp.emit("return", ends)
            regions.append(lines)
        self.backend.turns = around
        made = list(map(partial(HloArray, xp), np.atleast_1d(xp.emit("while", start, *types, regions=regions))))
        for i, each in zip(written, made[1 + op.carried :], strict=False):
            pairs = zip(inputs[i], each, strict=True) if isinstance(inputs[i], list) else [(inputs[i], each)]
            for cell, entry in pairs:
                cell.store(entry.content)
        counts = made[:1] if isinstance(op, While) and op.returns_count else []
        return (*made[1 : 1 + op.carried], *counts, *made[1 + op.carried + len(written) :])


def _apart(results: Sequence[Any]) -> list[Any]:
    """Return results, with copies of arrays that later nodes may overwrite."""
    return [each.copy() if isinstance(each, HloArray) else each for each in results]
