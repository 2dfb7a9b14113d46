"""`mspc verify` of a compiled folder, edited by hand or not. Its ranks are compared with one device that runs the
network as it was read from the script; `program.json` contains the network's text."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verification import report, report_against
from mspc.commands.search import place_in_dump
from mspc.compiler.config import Config
from mspc.compiler.in_memory import read_network
from mspc.compiler.pipeline import VIEWS, shared_passes
from mspc.compiler.rank_graphs import copied
from mspc.ir.diagnostics import MspcError, listed
from mspc.ir.graph import PADDING, STAGES, Graph, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import EIGHTS, TensorType, Type, dtype_of
from mspc.ops.check_graph import check_graph
from mspc.passes.base import PassManager, find_pass
from mspc.passes.lib.choices import release_constraints
from mspc.runtime.faults.record import NodeFailure
from mspc.runtime.program import PROGRAM, Program, load_program, load_slices, slices_to_load
from mspc.verify.difference import TOLERANCES
from mspc.verify.global_batch import GlobalBatchNetwork
from mspc.verify.made_inputs import made_inputs
from mspc.verify.pytorch.against import against_torch
from mspc.verify.same_values import MARK, FirstOperator
from mspc.verify.scale.rank_kinds import RankKind, merged
from mspc.verify.verification import (
    STEPS,
    PlainNetwork,
    Verified,
    VerifiedProgram,
    alone,
    plain_graph,
    plain_network,
    verified,
)

if TYPE_CHECKING:
    from mspc.verify.scale.proof import ScaleProof
    from mspc.verify.scale.reference import OwnRows

FEW_FILES = 3
"""Most edited files that are listed."""


def verify_folder(
    folder: Path, options: CompileOptions, seed: int, with_torch: bool = False, mpi: bool = False
) -> None:
    """Verify a folder as `verify_target` does. Edited files are listed and compared with their errors. Raise MspcError
    if the folder cannot be read, or lacks information; ExecutionError if a value differs."""
    program = checked_program(folder, options)
    network = read_network(program.network, str(program.folder / PROGRAM))
    if with_torch and STAGES in network.attrs:
        raise MspcError(
            f"{folder} holds the network with a loop over micro-batches, which PyTorch has no counterpart of",
            notes=["mspc verify --against torch of its script compares the parts of the batch one after the other"],
        )
    mean, stages = bool(network.attrs.get("gradients_mean")), program.stages(network)
    many = ranks_together(program, network)
    plain, doubled = plain_network(copied(network))
    one = network_alone(network)
    graphs, edited = graphs_of_ranks(program)
    types = [_type(program, entry) for entry in program.inputs]
    config = Config(ranks=program.ranks // stages, mode=program.mode, gradients_mean=mean, pipeline_stages=stages)
    _check_told(program, one, types, many, config.feeds_own_rows)
    if any(len(graph.results) != len(many.results) for graph in graphs):
        raise MspcError(f"{folder} has {len(many.results)} outputs, but the graph of some rank has others")
    layouts = [_layout(program, entry, type, stages) for entry, type in zip(program.inputs, types, strict=True)]
    weights = load_slices(program, plain, 0)
    compared = VerifiedProgram(
        one,
        many,
        program.ranks,
        PlainNetwork(plain, doubled, weights),
        weights,
        lambda caution: made_inputs(one, types, [], seed, STEPS, caution == 2, caution == 0),
        graphs.__getitem__,
        graphs.__getitem__,
        layouts if config.feeds_own_rows else [],
        GlobalBatchNetwork(
            None, reason="the folder holds the network of a rank's rows; mspc verify of its script compares that"
        ),
        stages,
    )
    notes = [f"edited since the compile: {', '.join(edited)}"] if edited else []
    if with_torch:
        report_against(against_torch(compared), options.json, options.loudness, seed, notes, options.all_rows)
        return
    found = located(lambda: verified(compared, seed, mpi), lambda: of_program(program, graphs, edited), seed)
    report(found, config, options.json, options.loudness, seed, notes, options.all_rows)


def located(compare: Callable[[], Verified], programs: Callable[[], ToProve], seed: int) -> Verified:
    """Return the result of a comparison. If values of ranks differ, the first wrong one is named by the proof of
    `--scale`: it knows values without a counterpart of one device, and the change that would make them right. Raise
    NodeFailure if ranks cannot be run, with the node that a few of them run otherwise, if there is one."""
    from mspc.verify.scale.blame import odd_one  # late: most runs find no difference

    try:
        found = compare()
    except NodeFailure as error:
        odd = odd_one(programs().kinds)
        if odd is None or odd.even:
            raise
        raise NodeFailure(error.message, [odd.words, *error.notes], odd.node.frames) from None
    if any(not row.same for row in found.rows):
        _locate(found, programs, seed)
    return found


def _locate(found: Verified, programs: Callable[[], ToProve], seed: int) -> None:
    from mspc.commands.report.scale import first_wrong, told_nodes  # late, as above
    from mspc.verify.scale.proof import first_difference
    from mspc.verify.scale.small_programs import Unfit

    wrong = [row for row in found.rows if not row.same]
    of_ranks = any(not row.kind.startswith("reference") for row in wrong)
    try:
        given = programs()
        rounds = any(t.dtype in EIGHTS for node in given.one.nodes for t in element_types(node.type))
        if not of_ranks and not rounds:  # one device is wrong
            return
        proof = first_difference(given.one, given.kinds, given.values, seed, given.own)
    except (MspcError, NodeFailure, Unfit):  # the difference is reported without its place
        return
    if proof.same and rounds and all(row.difference <= TOLERANCES["BFloat16"] for row in wrong):
        # A rounding error before an element is rounded to 8 bits may move it to the next number, and in Float64 none
        # differs.
        found.rows = [row if row.same else replace(row, excused=row.kind != "derivative") for row in found.rows]
        found.first = None
    nodes = told_nodes(proof)
    if not of_ranks or proof.same or not nodes or (found.first is not None and _is_later(*nodes[0][1:], found.first)):
        return
    found.first = FirstOperator(nodes[0][2])
    found.located = (*first_wrong(proof), *given.places(proof))


def _is_later(kind: RankKind, node: Node, wrong: FirstOperator) -> bool:
    """Return whether a node of a kind is computed from the first operator of one device that differs, runs in a later
    phase, or else is one that was compared before it."""
    from mspc.verify.scale.readers import Readers  # late, as above

    first = wrong.node
    number, own = first.attrs.get(MARK), _numbers(node)
    if first is node or number is None:
        return False
    if first.phase == "forward" != node.phase:  # of another stage, too, where no reader is found
        return True
    if own and all(isinstance(each, int) and each < number for each in own):
        return True
    if wrong.is_sum and node.phase == first.phase:  # its terms are right: the sum is computed from them, not later
        return False
    readers = Readers(kind.graph)
    nodes = (each for graph in kind.graph.graphs() for each in graph.nodes if number in _numbers(each))
    return any(node in readers.behind(each) for each in nodes if each is not node)


def _numbers(node: Node) -> Sequence[object]:
    """Return the numbers of the operators of one device that a node computes."""
    number = node.attrs.get(MARK)
    return number if isinstance(number, tuple | list) else () if number is None else (number,)


def fed_layouts(program: Program) -> tuple[Layout, ...]:
    """Return the layouts of the inputs of a program without stages."""
    return tuple(_layout(program, entry, _type(program, entry), 1) for entry in program.inputs)


def checked_program(folder: Path, options: CompileOptions) -> Program:
    """Return the program in a folder. Raise MspcError if not all of its ranks can be compared with one device."""
    if options.inputs or options.script_arguments or options.strategies:
        raise MspcError(
            f"{folder} is a folder, so a compiled program",
            notes=["--input, --strategies and script arguments are for scripts"],
        )
    program = load_program(folder)
    if options.ranks is not None and options.ranks != program.ranks:
        raise MspcError(
            f"{folder} was compiled for {program.ranks} ranks, not for {options.ranks}",
            notes=[f"verify it without --ranks, or compile it again with --ranks {options.ranks}"], code="E0112",
        )
    if missing := program.missing():
        raise MspcError(
            f"{folder} holds no graph for rank {missing[0]} of {program.ranks}", notes=["compile it without --rank"]
        )
    if not program.network:
        raise MspcError(
            f"{folder / PROGRAM} does not say what one device computes, so there is nothing to compare with",
            notes=[
                "mspc compile writes it unless the network depends on get_rank(), or ranks meet in the script's own "
                "collectives alone, in hybrid_parallel or stand_alone mode",
                "mspc run --simulate runs the folder on ranks of this process",
            ],
        )
    return program


def network_alone(graph: Graph) -> Graph:
    """Return a network after the passes that ranks share, compiled for one device."""
    graph.attrs = alone(graph)
    for parameter in graph.parameters:
        parameter.layout = parameter.global_type = None
    manager = PassManager()
    for name in shared_passes("stand_alone"):
        if name not in VIEWS:
            graph, _ = manager.apply(find_pass(name), graph)
        if name == "grad":
            release_constraints(graph)
    return graph


def graphs_of_ranks(program: Program) -> tuple[list[Graph], list[str]]:
    """Return (every rank's graph, the files that have been edited), and print a warning for each of these files."""
    graphs: list[Graph] = []
    edited: list[str] = []
    for rank in range(program.ranks):
        text = program.text(rank)
        graph = program.graph(rank, text, frames=True)
        if program.edited(rank, text):
            edited.append(program.execute[rank])
            print(f"warning: {program.folder / edited[-1]} has been edited since it was compiled", file=sys.stderr)
            check_graph(graph)
        graphs.append(graph)
    return graphs, edited


def ranks_together(program: Program, network: Graph) -> Graph:
    """Return the layouts of results and parameters over the ranks of a stage, as a graph without operators."""
    graph, stages = Graph("ranks"), program.stages(network)
    graph.attrs = {name: bool(network.attrs.get(name)) for name in ("gradients_mean", "pad_uneven")}
    for entry in program.parameters:
        type = _type(program, entry)
        kind = str(entry.get("kind"))
        layout = _layout(program, entry, type, stages)
        graph.parameters.append(Parameter(str(entry.get("name")), type, kind, layout=layout))
    for entry in program.outputs:
        type = _type(program, entry)
        graph.results.append(Value(type, layout=_layout(program, entry, type, stages)))
    return graph


def _check_told(program: Program, one: Graph, inputs: Sequence[Type], many: Graph, own_rows: bool) -> None:
    """Check that the inputs, outputs and parameters of the program are those of its network. own_rows: the network has
    one rank's rows and the program the global batch, so that the sizes of inputs and outputs are ignored. Raise
    MspcError if one of the two was changed."""
    taken = [parameter.type for parameter in one.parameters if parameter.kind == "input"]
    given = [value.type for value in one.results]
    for what, told, own in (("inputs", inputs, taken), ("outputs", [value.type for value in many.results], given)):
        if len(told) != len(own):
            raise program.damaged(f"{what}: {len(told)}, in its network {len(own)}")
        for i, (one_told, one_own) in enumerate(zip(told, own, strict=True)):
            _check_type(program, f"{what}[{i}]", one_told, one_own, own_rows)
    held = {parameter.name: parameter.type for parameter in many.parameters}
    for parameter in one.parameters:
        if parameter.kind != "parameter":
            continue
        if parameter.name not in held:
            raise program.damaged(f"its parameters lack {parameter.name!r}, which its network has")
        _check_type(program, f"parameter {parameter.name!r}", held[parameter.name], parameter.type, False)


def _check_type(program: Program, what: str, told: Type, own: Type, any_sizes: bool) -> None:
    """Raise MspcError if a type of the program is not that of its network."""
    alike = any_sizes and isinstance(told, TensorType) and isinstance(own, TensorType) and told.dtype == own.dtype
    if alike or told == own:
        return
    raise program.damaged(f"{what} is a {told}, in its network a {own}")


def _type(program: Program, entry: dict[str, Any]) -> TensorType:
    try:
        dtype, shape = dtype_of(str(entry["dtype"])), entry["shape"]
        if not isinstance(shape, list) or not all(type(size) is int and size >= 0 for size in shape):
            raise ValueError(f"its shape is {shape!r:.80}")
        return TensorType(dtype, tuple(shape))
    except (MspcError, KeyError, ValueError) as error:
        raise program.damaged(f"{entry.get('name', 'an output')}: {error}") from None


def _layout(program: Program, entry: dict[str, Any], type: TensorType, stages: int) -> Layout:
    found = program.layout(entry, str(entry.get("name", "an output")), type.shape, stages)
    return Layout.replicated(program.ranks // stages, type.rank) if found is None else found


@dataclass(frozen=True)
class ToProve:
    """Programs that are compared with one device; see `prove`. notes: for the user. compile_id: of a folder. program:
    the folder's. results: (kind, name) of each result of a capture. batch: see `prove`. placed: layouts of each result,
    the first of which it has and the others of which it may have."""

    one: Graph
    kinds: list[RankKind]
    values: Sequence[Any]
    own: OwnRows | None = None
    notes: tuple[str, ...] = ()
    compile_id: str = ""
    program: Program | None = None
    results: Sequence[tuple[str, str]] = ()
    batch: Sequence[tuple[int, ...]] | None = None
    placed: Sequence[Sequence[Layout]] = ()

    def places(self, found: ScaleProof) -> tuple[str, ...]:
        """Return sentences with the positions of the reported nodes in a folder's files; () for a script."""
        from mspc.commands.report.scale import told_nodes  # late, as in `located`

        if self.program is None:
            return ()
        places = (place_in_dump(self.program, rank, kind.graph, node) for rank, kind, node in told_nodes(found))
        return tuple(f"it is in {place}" for place in dict.fromkeys(places) if place)

    def place(self, layouts: Mapping[int, Layout]) -> None:
        """Give results of all programs other layouts."""
        for kind in self.kinds:
            for at, layout in layouts.items():
                kind.graph.results[at].layout = layout

    def proved(self, seed: int) -> ScaleProof:
        """Return the result of the comparison. Raise Unfit if the program cannot be made smaller."""
        from mspc.verify.scale.proof import prove  # late, as in `located`

        found = prove(self.one, self.kinds, self.values, seed, self.own, self.batch)
        for other in range(1, max(map(len, self.placed), default=1)):
            wrong = {int(row.name) for row in found.rows if row.what == "result" and not row.same}
            waiting = [at for at in wrong if len(self.placed[at]) > other]
            if not waiting:
                break
            self.place({at: self.placed[at][other] for at in waiting})
            again = prove(self.one, self.kinds, self.values, seed, self.own, self.batch)
            still = {int(row.name) for row in again.rows if row.what == "result" and not row.same}
            self.place({at: self.placed[at][0] for at in still.intersection(waiting)})
            found = again if len(still) < len(wrong) else found
        for place, row in enumerate(found.rows if self.results else ()):
            if row.what == "result":
                what, name = self.results[int(row.name)]
                found.rows[place] = replace(row, what=what, name=name)
        return found


def of_folder(folder: Path, options: CompileOptions) -> ToProve:
    """Return the programs of a folder that `mspc compile` wrote, edited by hand or not."""
    program = checked_program(folder, options)
    graphs, edited = graphs_of_ranks(program)
    return of_program(program, graphs, edited)


def of_program(program: Program, graphs: Sequence[Graph], edited: Sequence[str]) -> ToProve:
    """Return the programs of a folder, given the graph of every rank and the files that have been edited."""
    from mspc.verify.scale.reference import OwnRows  # late, as in `located`

    network = read_network(program.network, str(program.folder / PROGRAM))
    mean = bool(network.attrs.get("gradients_mean"))
    held = ranks_together(program, network)
    one = plain_graph(network)
    own = None
    rows = Config(ranks=program.ranks, mode=program.mode).feeds_own_rows
    check_fit(program, one, graphs, fed_layouts(program) if rows else ())
    if rows:
        own = OwnRows(program.ranks, fed_layouts(program), mean)
    else:
        for graph in graphs:
            give_layouts(graph, held)
    kinds = merged([RankKind((rank,), graph) for rank, graph in enumerate(graphs)])
    values = [SimpleNamespace(name=name, make=load) for name, load in slices_to_load(program, one, 0).items()]
    notes = [f"edited since the compile: {listed(edited, FEW_FILES)}"] if edited else []
    return ToProve(one, kinds, values, own, tuple(notes), program.compile_id, program)


def give_layouts(graph: Graph, many: Graph) -> None:
    """Copy missing layouts of a rank's results from the graph of all ranks."""
    for value, whole in zip(graph.results, many.results, strict=False):
        if value.layout is None and not isinstance(value, Parameter):
            value.layout = whole.layout


NAMED = 3


def check_fit(program: Program, one: Graph, graphs: Sequence[Graph], fed: Sequence[Layout]) -> None:
    """Raise MspcError if a rank's program does not belong to the network. one: the network on one device. fed: layouts
    of its inputs if the programs do not contain them."""
    known = {p.name: p for p in one.parameters}
    layouts = dict(zip((p.name for p in one.parameters if p.kind == "input"), fed, strict=False))
    for rank, graph in enumerate(graphs):
        where = f"{program.folder / program.execute[rank]}: rank {rank}"
        if len(graph.results) != len(one.results):
            raise MspcError(f"{where} has {len(graph.results)} results, and the network has {len(one.results)}")
        for parameter in graph.parameters:
            own = known.get(parameter.name)
            if own is None or own.kind != parameter.kind:
                names = {p.name for p in graph.parameters}
                others = [name for name, p in known.items() if p.kind == parameter.kind and name not in names][:NAMED]
                raise MspcError(
                    f"{where} has the {parameter.kind} {parameter.name!r}, and the network has no such one",
                    notes=[f"it has {', '.join(map(repr, others))}, which this rank lacks"] if others else [],
                )
            _check_size(where, parameter, own, layouts.get(parameter.name))


def _check_size(where: str, parameter: Parameter, own: Parameter, fed: Layout | None) -> None:
    layout = parameter.layout if fed is None else None
    shape = own.shape
    if isinstance(layout, Layout):
        if len(layout.dims) != len(shape):
            raise MspcError(f"{where}: {parameter.name!r} has the layout {layout}, and {len(shape)} dimensions")
        padded = PADDING in parameter.attrs and layout.holds(shape, parameter.shape, padded=True)
        shape = parameter.shape if padded else layout.local_shape(shape)
    if parameter.shape != shape or parameter.tensor_type.dtype != own.tensor_type.dtype:
        wanted = own.tensor_type.with_shape(shape)
        raise MspcError(f"{where} has {parameter.name!r} as {parameter.type}, and the network's is {wanted} there")
