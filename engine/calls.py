"""Execution of called cells: compiles a target once per argument types, and runs this rank's graph."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from mspc.analysis.aliasing import updated_parameters
from mspc.compiler.call import Call, describe_call, takes_data
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, TracedCall, compile_traced, trace_call
from mspc.compiler.frontend.trace import Traced
from mspc.compiler.program_figures import operations_of
from mspc.compiler.rank_graphs import run_graph
from mspc.engine.equal_values import COMPARED_STEPS, compare_inputs, compared_inputs
from mspc.engine.garbage import collecting_rarely
from mspc.engine.initial_values import (
    RankInitialValue,
    compare_initial_values,
    different_programs,
    initial_of,
    settings_of,
)
from mspc.engine.job import (
    ALIKE,
    ALL_RANKS_NOTES,
    Job,
    described,
    different_calls,
    joint_call,
    name_of,
    run_collective,
)
from mspc.engine.parameter_store import ParameterStore
from mspc.engine.ranks.environment import mpi_size
from mspc.engine.strategy_files import StrategyFiles, sharded_by_file
from mspc.engine.variants import VARIABLE, Variants, graphs_to_keep, identity, step_count_key, weak_reference
from mspc.ir.diagnostics import ExecutionError, Location, MspcError
from mspc.ir.graph import Graph, Value, stages_of
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ir.layout import Layout
from mspc.ir.types import Type, dtype_of
from mspc.mindspore_api import context
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import FrozenContext
from mspc.mindspore_api.runtime import asked_device
from mspc.mindspore_api.setting_kind import place_of_caller, say_once
from mspc.ops.collective.base import Collective
from mspc.runtime.comm.agreement import agree, agree_on_collectives, gathered, stop_together
from mspc.runtime.comm.interface import Communicator, collectives_of
from mspc.runtime.compiled_loops import begin_library
from mspc.runtime.data import gather, slice_parameter, slices_of
from mspc.runtime.device_choice import RANK_LOCAL_MODES, DeviceRequest
from mspc.runtime.faults.stopped import GRAPHS

# One compiled target on a rank: its executor, its values and its arguments.


Array = Any


class CompiledCall:
    """One compiled target on this rank, with its executor and the sources of its arguments.

    traced: this rank's objects for the graph's parameters and constants; the program may come from another rank's
    compile.
    """

    def __init__(
        self, number: int, compiled: Compiled, job: Job, traced: Traced, store: ParameterStore,
        tf32: bool = False,
    ) -> None:  # fmt: skip
        self.number = number
        self.compiled = compiled
        self.job = job
        self.is_outdated = False
        """Whether a value that the graph was compiled for has changed, so that the next call recompiles."""
        self.counted_as: Any = None
        self.counted: Callable[[], Any] = lambda: None
        """The key of its count of steps, and the object without which no other graph continues it, see `StepCounts`."""
        self._traced, self._store = traced, store
        self._arrays: dict[str, Array] = {}
        graph = self._without_unused_states(compiled.rank_graph(job.rank))
        values: dict[str, Array] = {}
        begun: list[RankInitialValue | None] = []
        with store.drawn_early((traced.parameters[p.name], p) for p in graph.parameters if p.kind == "parameter"):
            for parameter in graph.parameters:
                if parameter.kind == "constant":
                    full = traced.constants[parameter.name]
                    array = values[parameter.name] = _constant(full, parameter, job.rank)
                    begun.append(initial_of(parameter.name, "constant", slices_of(parameter, job.rank), full, array))
                elif parameter.kind == "parameter":
                    values[parameter.name] = self._attached(parameter)
        if compiled.config.pipeline_stages > 1:
            held = {parameter.name for parameter in graph.parameters}
            for parameter in compiled.graph.parameters:
                if parameter.kind == "parameter" and parameter.name not in held and stages_of(parameter.attrs):
                    store.leave(traced.parameters[parameter.name], parameter)
        self._begun = [entry for entry in begun if entry is not None] + store.take_initial_values()
        self._compared = compared_inputs(compiled, graph, job.size)
        self.executor = job.hardware.executor(graph, job.comm, values, job.cursor, number, tf32)
        self.mutated = {p.name for ps in updated_parameters(graph).values() for p in ps}
        store.changed_by(self)
        self._traced, self._arrays = traced.without_script(), {}

    def _attached(self, parameter: GraphParameter) -> Array:
        if parameter.name not in self._arrays:
            self._arrays[parameter.name] = self._store.attach(self._traced.parameters[parameter.name], parameter, self)
        return self._arrays[parameter.name]

    def _without_unused_states(self, graph: Graph) -> Graph:
        """Return the graph without optimizer states that the current hyperparameters leave unused. Without states, an
        update may be restricted to the gathered rows."""
        own, scalars = run_graph(graph, self._number)
        for scalar in scalars:
            self._store.rely(self._traced.parameters[scalar.name], self)
        return own

    def _number(self, scalar: GraphParameter) -> float | None:
        """Return the current value of a scalar parameter; None if a graph updates it."""
        self._attached(scalar)
        parameter = self._traced.parameters[scalar.name]
        return None if self._store.varies(parameter) else float(self._store.part(parameter)[1])  # of this stage alone

    def take_initial_values(self) -> list[RankInitialValue]:
        """Return, once, the initial values of constants and of parameters that no earlier graph had."""
        found, self._begun = self._begun, []
        return found

    def run(self, arrays: Sequence[Array], origins: Sequence[Any]) -> list[Array]:
        """Run one step on this rank's arrays. An array with the same origin as in the last step is unchanged."""
        executor = self.executor
        fed = [_fit(p, a, self.job.rank) for p, a in zip(executor.inputs, arrays, strict=True)]
        if self._compared is not None and executor.step < COMPARED_STEPS:
            own = {p.name: a for p, a in zip(executor.inputs, arrays, strict=True)}
            comm, fetch = self.job.comm.for_graph(self.number), self.job.hardware.memory.fetch
            with self.job.outside_user_code():
                compare_inputs(comm, self.job.rank, self._compared, own, executor.step + 1, fetch)
        self.job.step(self.number, executor.step + 1)
        results = self.job.run(executor, fed, origins)
        self.job.step_done()
        return results


def _constant(full: Any, parameter: GraphParameter, rank: int) -> Array:
    """Return this rank's slice of a constant of the script. An initializer generates only the slice."""
    if isinstance(full, InitialValue):
        return full.fill(slices_of(parameter, rank))
    return slice_parameter(parameter, np.asarray(full), rank, "constant")


def _fit(parameter: GraphParameter, array: Array, rank: int) -> Array:
    if array.shape == parameter.shape:
        return array
    return slice_parameter(parameter, array, rank, "argument")


# Outputs of a graph over the data of several ranks are gathered.


def check_all_have_data(name: str, config: Config, ranks: Sequence[int]) -> None:
    """Raise MspcError if only some ranks have data for a graph that all must run."""
    if not config.sharded or len(ranks) == config.all_ranks:
        return
    without = [rank for rank in range(config.all_ranks) if rank not in ranks]
    raise MspcError(
        f"the ranks have different numbers of batches for {name}: "
        f"{len(ranks)} of {config.all_ranks} have a further one, rank {without[0]} has none",
        notes=[f"in mode {config.mode} all ranks compute every batch together, so every data set needs as many"],
    )


def global_outputs(
    comm: Communicator, config: Config, values: Sequence[Value], own: Sequence[Array] | None
) -> list[Array]:
    """Return the outputs of a graph over the data of all ranks; all ranks call this together.

    Rows are concatenated in rank order. Floating-point scalars that each rank computes from its rows are averaged;
    other scalars are stacked.

    values: the graph's results, before slicing. own: this rank's results, None if it had no data.
    """
    if config.sharded:
        return [_gathered(comm, value, array) for value, array in zip(values, own or (), strict=True)]
    if not config.feeds_own_rows:
        return list(own or ())
    return [_joined(parts) for parts in _exchanged(comm, own)]


def _gathered(comm: Communicator, value: Value, array: Array) -> Array:
    """Return the full result of a sharded graph, given `array`: a slice, or already the full result."""
    layout = value.layout
    if not isinstance(layout, Layout) or array.shape == tuple(value.shape):
        return array
    return gather(array, layout, tuple(value.shape), comm)


def _joined(parts: Sequence[Array]) -> Array:
    if parts[0].ndim:
        return np.concatenate(parts)
    row = np.stack(parts)
    return row.mean(dtype=np.float64).astype(row.dtype) if row.dtype.kind not in "biu" else row


def _exchanged(comm: Communicator, own: Sequence[Array] | None) -> list[list[Array]]:
    known = gathered(comm, [(a.dtype.name, a.shape) for a in own or ()])
    have = [rank for rank, types in enumerate(known) if types]
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    found: list[list[Array]] = []
    for index in range(len(known[have[0]])):
        mine = None if own is None else np.ascontiguousarray(own[index]).reshape(own[index].shape)
        sends = [] if mine is None else [(rank, mine) for rank in others]
        types = [(rank, *known[rank][index]) for rank in have if rank != comm.rank]
        receives = [(rank, tuple(shape), dtype_of(name).numpy) for rank, name, shape in types]
        arrived = dict(zip((rank for rank, *_ in receives), comm.exchange(sends, receives), strict=True))
        found.append([arrived[rank] if rank in arrived else mine for rank in have])
    return found


# Steps of the graphs of a script are counted over all runs, also those that this one resumes.
#
# Random masks depend on the number of a step. Graphs are identified by their purpose and the order in which the script
# runs them first, as `train.0`, so that a run on other ranks, with other graphs, finds its own.


MAX_ENDED_GRAPHS = 1024
"""Maximum number of ended graphs whose counts later graphs may continue: a script may create functions without end."""


class StepCounts:
    """Step counts of one script's graphs. earlier: counts of the run that it resumes."""

    def __init__(self, earlier: Mapping[str, int]) -> None:
        self._earlier = dict(earlier)
        self._named: dict[int, tuple[str, Any]] = {}
        """The names of graphs, and the graphs, by the ids of these."""
        self._numbers: Counter[str] = Counter()
        """Number of named graphs of each kind, including released ones."""
        self._latest: dict[Any, tuple[Any, Any]] = {}
        """The target and the graph that began last, by identity."""
        self._ended: dict[Any, list[tuple[str, Callable[[], Any]]]] = {}
        """Names of graphs that are no longer stored, by identity, with the object that the script needs to make further
        ones."""

    def begin(self, executor: Any, identity: Any = None, target: Any = None) -> None:
        """Start the count of a graph at its first run. It continues its own count of a resumed run, or that of an ended
        graph of the same `identity`, or that of the latest stored graph of this identity if it has another `target`."""
        self._drop_unreachable()
        if self._ended.get(identity):
            self._named[id(executor)] = self._ended[identity].pop(0)[0], executor
        name = self._name(executor)
        before, latest = self._latest.get(identity, (target, executor))
        so_far = 0 if before == target else latest.step + latest.earlier_steps
        steps = self._earlier.get(name, so_far)
        self._latest[identity] = target, executor
        if steps:
            executor.set_step_count(steps - executor.step)

    def end(self, executor: Any, identity: Any, counted: Callable[[], Any]) -> None:
        """Record that a graph is no longer stored. counted: returns the object that later graphs with this count depend
        on, or None if that was collected."""
        name = self._name(executor)
        self._earlier[name] = executor.step + executor.earlier_steps
        self._ended.setdefault(identity, []).append((name, counted))
        del self._named[id(executor)]
        if self._latest.get(identity, (None, None))[1] is executor:
            del self._latest[identity]
        self._drop_unreachable()

    def release_target(self, executor: Any, identity: Any) -> None:
        """Record that the target of a stored graph was collected, so that another target may get its id."""
        if self._latest.get(identity, (None, None))[1] is executor:
            self._latest[identity] = None, executor

    def steps(self, executors: Sequence[Any]) -> dict[str, int]:
        """Return the steps of every graph by name."""
        self._drop_unreachable()
        ended = {name: self._earlier[name] for names in self._ended.values() for name, _ in names}
        return ended | {self._name(e): e.step + e.earlier_steps for e in executors}

    def _name(self, executor: Any) -> str:
        if id(executor) not in self._named:
            kind = "train" if executor.trains else "evaluate"
            self._named[id(executor)] = f"{kind}.{self._numbers[kind]}", executor
            self._numbers[kind] += 1
        return self._named[id(executor)][0]

    def _drop_unreachable(self) -> None:
        """Remove ended graphs whose counts no later graph can continue."""
        for number, names in list(self._ended.items()):
            for name, counted in names:
                if counted() is None:
                    del self._earlier[name]
            self._ended[number] = [(name, counted) for name, counted in names if counted() is not None]
            if not self._ended[number]:
                del self._ended[number]
        while len(self._ended) > MAX_ENDED_GRAPHS:
            for name, _ in self._ended.pop(next(iter(self._ended))):
                del self._earlier[name]


LOCAL_GRAPHS = GRAPHS * 2**20 - 1
"""First number of graphs without communication, numbered per rank; the GPUs' progress marks treat all of them as
one."""


class RanksWanted(BaseException):
    """Raised to leave a script that requests more ranks than are running, before its first step. It is a BaseException,
    so that no handler of the script catches it.

    `mspc run` catches it and starts as many ranks. Elsewhere its text says how to start them.
    """

    def __init__(self, ranks: int, place: Location | None = None) -> None:
        super().__init__(ranks)
        self.ranks = ranks
        self.place = place

    @property
    def mistake(self) -> MspcError:
        """Return the error of a script that cannot be restarted."""
        return MspcError(
            f"the script sets device_num={self.ranks}, but runs on one rank",
            self.place,
            notes=[f"start it with mspc run SCRIPT --ranks {self.ranks}, or under mpirun -n {self.ranks}"],
        )

    def __str__(self) -> str:
        return str(self.mistake)

    def _render_traceback_(self) -> list[str]:
        """Return the text that IPython shows in place of a traceback."""
        return [str(self)]


class RankCalls:
    """Handler of the calls of one rank's script.

    job: this rank's job. ranks_given: `--ranks` was given, so that the script's device_num is ignored. script_folder:
    file names in graphs are relative to it. strategies: a file that shards all graphs.
    """

    has_own_process: ClassVar[bool] = True
    """Whether no other rank runs in this process."""

    def __init__(
        self, job: Job, ranks_given: bool = False, script_folder: str = "", strategies: Path | None = None
    ) -> None:
        self.job = job
        self.ranks_given = ranks_given
        self.script_folder = script_folder
        self.strategies = strategies
        self._first: Any = None
        """The `identity` of the first target, which `strategies` is about."""
        self._sharded: dict[bool, tuple[FrozenContext, FrozenContext]] = {}
        """A context of the script, and the same as sharded by `strategies`, of the first target and of others: every
        call asks for it."""
        self.store = ParameterStore(job)
        self.compiled_calls: dict[int, CompiledCall] = {}
        self.on_first_compile: Callable[[], None] = _nothing
        self._known = Variants(graphs_to_keep(), by_use=job.size == 1, keeps=_ignores_change)
        self._last: dict[Any, CompiledCall] = {}
        """The last run of `launch_global` for a target, by its `identity`."""
        self._ran: CompiledCall | None = None
        self._graphs = {False: count(), True: count()}
        """Numbers of further graphs, with and without communication."""
        self._said: set[str] = set()
        self._counts = StepCounts({})
        self._strategy_files = StrategyFiles(job.rank, self.has_own_process)

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        """Run `target(*args)` and return its result: a Tensor, or tuples, lists and dicts of Tensors. Raise MspcError
        if the target cannot be compiled, or the arguments do not fit, ExecutionError if it failed."""
        return self._to_outputs(*self._run(target, args))

    def call_on_all_ranks(self, target: Any, args: tuple[Any, ...] | None) -> Any:
        """Run `target(*args)` and return the outputs over all ranks; see `mindspore_api.call_handler.CallHandler`.
        Raise MspcError as `call` does, and if ranks that must compute together have different numbers of batches."""
        job = self.job
        with joint_call(job, f"computes a batch of all ranks with {name_of(target)}", "", ALL_RANKS_NOTES):
            if not self._any_has_data(target, args):
                return None
        found, results = self._run(target, args) if args is not None else (self._last.get(identity(target)), None)
        if found is None:
            raise MspcError(f"rank {job.rank} has no batch for {name_of(target)}", notes=["every rank needs one"])
        self._last[identity(target)] = found
        own = None if results is None else [Tensor.from_array(array).array for array in results]
        with job.outside_user_code():
            outputs = global_outputs(job.aside, found.compiled.config, found.compiled.results, own)
        return found.compiled.traced.rebuild([Tensor.from_array(array) for array in outputs])

    def _context(self, target: Any) -> FrozenContext:
        """Return the context in which `target` is compiled.

        A strategy file applies to the first graph, the one that `mspc compile` and `mspc search` compile. Other graphs,
        such as those for evaluation, have other operator names. They run in the same mode without the file.
        """
        frozen = context.freeze(target)
        if self.strategies is None:
            return frozen
        self._first = self._first or identity(target)
        is_first = self._first == identity(target)
        known = self._sharded.get(is_first)
        if known is None or known[0] is not frozen:
            sharded = sharded_by_file(frozen, self.strategies)
            known = frozen, sharded if is_first else replace(sharded, operator_load_file=frozen.operator_load_file)
            self._sharded[is_first] = known
        return known[1]

    def _any_has_data(self, target: Any, args: tuple[Any, ...] | None) -> bool:
        """Return whether any rank calls `target` with data; all ranks call this together. Raise MspcError if all must
        compile or run one graph, and some have no data or data of other shapes."""
        job, frozen, call = self.job, self._context(target), describe_call(args or (), [])
        config = self.config(frozen)
        is_new = args is not None and self._known.find((identity(target), call, frozen)) is None
        with job.outside_user_code():
            answers = job.aside.all_gather(np.array([[args is not None, is_new]], np.int64), tuple(range(job.size)), 0)
            having, compiling = (np.flatnonzero(column).tolist() for column in answers.T)
            if not having:
                return False
            check_all_have_data(name_of(target), config, having)
            if 0 < len(compiling) < job.size and config.mode not in RANK_LOCAL_MODES:
                different = different_calls(job.aside, target, call)
                if different is not None:
                    raise different
        return True

    def gather_numbers(self, number: float, what: str = "", note: str = ALL_RANKS_NOTES) -> list[float]:
        """Return the numbers that the ranks pass, by rank; all ranks call this together."""
        job = self.job
        with joint_call(job, what or "compares a number with that of all ranks", "", note), job.outside_user_code():
            row = job.aside.all_gather(np.array([number], np.float64), tuple(range(job.size)), 0)
        return [float(each) for each in row]

    def steps(self) -> dict[str, int]:
        """Return the number of steps of every graph; see `StepCounts`."""
        return self._counts.steps([compiled_call.executor for compiled_call in self.compiled_calls.values()])

    def resume_steps(self, steps: dict[str, int]) -> None:
        """Continue the step counts of an earlier run."""
        self._counts = StepCounts(steps)
        for compiled_call in self.compiled_calls.values():
            self._counts.begin(compiled_call.executor)

    def _run(self, target: Any, args: tuple[Any, ...]) -> tuple[CompiledCall, list[Array]]:
        self._release_unreachable()
        tensors: list[Tensor] = []
        call = describe_call(args, tensors)
        frozen = self._context(target)
        key = (identity(target), call, frozen)
        found = self._known.find(key)
        if found is None or self._outdated(key, found):
            with collecting_rarely(self.has_own_process):
                found, traced = self._compile(target, call, frozen)
                # As in MindSpore, a training step stays in training mode after its network has been evaluated.
                trained = bool(getattr(target, "training", False))
                self._known.add(key, found, traced, target, self._is_permanent(found), trained)
            self._drop_surplus(target)
        arrays = [tensor.array for tensor in tensors]
        with self.job.outside_user_code():
            self.store.prepare(found)
            results = found.run(arrays, [t.array if t.owned else None for t in tensors])
            self.store.done(found)
        self._ran = found
        return found, results

    def _to_outputs(self, found: CompiledCall, results: Sequence[Array]) -> Any:
        made = [Tensor.from_array(array) for array in results]
        for tensor, placement in zip(made, found.compiled.placements, strict=True):
            tensor.placement = placement
        return found.compiled.traced.rebuild(made)

    def collective(self, op: Collective, types: Sequence[Type], arrays: Sequence[Array]) -> Any:
        """Run a collective outside a network and return its result; see `mindspore_api.call_handler.CallHandler`."""
        return run_collective(self.job, op, types, arrays)

    def synchronize(self) -> None:
        """Wait for all steps in flight. Raise ExecutionError if one failed."""
        with self.job.outside_user_code():
            self.job.hardware.memory.finish()

    def operations(self) -> tuple[float, float, float, float]:
        """Return the floating-point operations of the last step; see `mindspore_api.call_handler.CallHandler`."""
        return (0.0, 0.0, 0.0, 0.0) if self._ran is None else operations_of(self._ran.compiled, self.job.rank)

    def peak_memory(self) -> int:
        """Return the peak bytes of GPU memory of this rank's graphs; 0 on the CPU."""
        return self.job.hardware.memory.peak_bytes()

    def _compile(self, target: Any, call: Call, frozen: FrozenContext) -> tuple[CompiledCall, Traced]:
        """Return this rank's compiled call, and the trace with the attributes read for it."""
        error: MspcError | None = None
        built: tuple[Compiled, Traced] | None = None
        asked = DeviceRequest(**asked_device())
        try:
            self._check_ranks(frozen)
            self.job.hardware.choose(asked, self.job.size)
            if not self.compiled_calls:
                self.on_first_compile()
            built = self.build(target, call, self.config(frozen))
        except MspcError as found:
            error = found
        if error is not None and (self.job.size == 1 or frozen.parallel_mode in RANK_LOCAL_MODES):
            raise error
        alone = built is not None and self._is_rank_local(built[0])
        compiled, traced = built if built is not None and alone else self._agreed_compile(target, call, error, built)
        self._warn(target, compiled, frozen)
        self.job.hardware.prepare(asked.deterministic, self.job.comm, self.job.watch)
        tf32 = bool(getattr(frozen, "matmul_allow_tf32", False))
        self.store.from_rank_0 = frozen.parameter_broadcast and compiled.config.mode not in RANK_LOCAL_MODES
        number = self._number(alone)
        compiled_call = self.compiled_calls[number] = CompiledCall(number, compiled, self.job, traced, self.store, tf32)
        begun = compiled_call.take_initial_values()
        if not alone:
            with joint_call(self.job, f"calls {name_of(target)}", f" with {described(call)}", ALIKE):
                compare_initial_values(self.job, compiled, begun, settings_of(traced.cells))
        name, counted = step_count_key(target)
        compiled_call.counted_as, compiled_call.counted = (name, compiled.compile_id), weak_reference(counted)
        self._counts.begin(compiled_call.executor, compiled_call.counted_as, identity(target))
        self._strategy_files.write(compiled, frozen, bool(compiled_call.mutated))
        compiled.drop_script()
        if self.job.watch is not None:
            self.job.watch.describe = self.describe
            self.job.watch.graph_of = self.graph_of
        return compiled_call, traced

    def _is_rank_local(self, compiled: Compiled) -> bool:
        """Return whether a graph has no communication and each rank may run a different one."""
        apart = compiled.config.mode in RANK_LOCAL_MODES
        return apart and not any(collectives_of(compiled.rank_graph(self.job.rank).nodes))

    def _number(self, alone: bool) -> int:
        """Return the next graph's number: shared by all ranks that communicate in it, or local to this rank."""
        place = next(self._graphs[alone])
        return place if not alone else LOCAL_GRAPHS + GRAPHS * place

    def _drop_surplus(self, target: Any) -> None:
        found = self._known.surplus(identity(target))
        if found is None:
            return
        name, (key, compiled_call) = name_of(target), found
        say_once(
            f"graphs of {name}",
            f"{name} was called with more than {self._known.most} kinds of arguments ({VARIABLE}): its graph for "
            f"{described(key[1])} is given up, as others will be, and compiled again for the next such call",
        )
        self._release(compiled_call)

    def _outdated(self, key: Any, compiled_call: CompiledCall) -> bool:
        """Return whether a graph is no longer valid. It is then released, unless other ranks communicate in it."""
        if compiled_call.is_outdated and self._known.forget(key, compiled_call):
            self._release(compiled_call)
        return compiled_call.is_outdated

    def _release_unreachable(self) -> None:
        """Release the graphs that the script can no longer call. This happens at the next call, because Python may
        collect an object anywhere, even within a step."""
        for compiled_call, stays in self._known.take_unreachable():
            if stays and self.job.hardware.device is not None:  # GPUs of other ranks may still know its memory
                self._counts.release_target(compiled_call.executor, compiled_call.counted_as)
            else:
                self._release(compiled_call)

    def _release(self, compiled_call: CompiledCall) -> None:
        with self.job.outside_user_code():
            self.job.hardware.release(compiled_call.executor)
        self._counts.end(compiled_call.executor, compiled_call.counted_as, compiled_call.counted)
        self.store.detach(compiled_call)
        self._ran = None if self._ran is compiled_call else self._ran
        self._last = {at: last for at, last in self._last.items() if last is not compiled_call}
        del self.compiled_calls[compiled_call.number]

    def _is_permanent(self, compiled_call: CompiledCall) -> bool:
        """Return whether a graph is never released: if ranks communicate in it, each may have called others before, or
        other ranks' GPUs may have mapped its memory."""
        if self.job.size == 1 or compiled_call.number >= LOCAL_GRAPHS:
            return False
        return compiled_call.compiled.config.mode in RANK_LOCAL_MODES or self.job.hardware.device is not None

    def _agreed_compile(
        self, target: Any, call: Call, error: MspcError | None, built: tuple[Compiled, Traced] | None
    ) -> tuple[Compiled, Traced]:
        """Return this rank's compile, once the compiles of all ranks agree.

        This uses a communicator of its own: one rank may come alone because only it calls the network with other
        shapes.
        """
        meeting = self.job.meeting or self.job.aside
        before = [known for at, known, _ in self._known.keys() if at == identity(target)]
        so_far = [f"before, it was called with {described(before[-1])}"] if before else []
        how = f" with {described(call)}, for which it has no graph"
        settings = {} if built is None else settings_of(built[1].cells)
        with joint_call(self.job, f"calls {name_of(target)}", how, *so_far, ALIKE), self.job.outside_user_code():
            if built is not None and built[0].config.mode in RANK_LOCAL_MODES:
                agree_on_collectives(meeting, built[0].rank_graph(self.job.rank))
            else:
                stop_together(meeting, error)
                assert built is not None
                self._check_equal(meeting, target, call, built[0], settings)
            self.job.hardware.agree(meeting)
        return built

    def _check_equal(self, meeting: Any, target: Any, call: Call, compiled: Compiled, settings: dict[str, str]) -> None:
        """Check that all ranks have graphs of one compile or, in data parallel mode, graphs with matching
        communication, which may contain the rank's number. Raise MspcError."""
        try:
            agree(meeting, compiled.compile_id)
        except MspcError as different:
            explained = different_calls(meeting, target, call)
            if explained or compiled.config.mode != "data_parallel":
                raise explained or different_programs(meeting, settings, compiled.graph, different) from None
            agree_on_collectives(meeting, compiled.rank_graph(self.job.rank))

    def _warn(self, target: Any, compiled: Compiled, frozen: FrozenContext) -> None:
        """Print the compiler's warnings, and settings without effect in this mode, once on rank 0."""
        if self.job.rank:
            return
        for name, text in frozen.changing_nothing("run", compiled.config.device):
            say_once(name, text)
        for text in _warnings_of(target, compiled):
            if text not in self._said:
                self._said.add(text)
                print(f"warning: {text}", file=sys.stderr, flush=True)

    def build(self, target: Any, call: Call, config: Config) -> tuple[Compiled, Traced]:
        """Return the compiled target, and the trace with this rank's own Parameters and cells."""
        read = trace_call(target, call, config)
        return self.compiled(read), read.traced

    def compiled(self, call: TracedCall) -> Compiled:
        """Return the program of a traced call."""
        begin_library(call.traced.graph, call.config.device, call.config.ranks)
        return compile_traced(call)

    def config(self, frozen: FrozenContext) -> Config:
        """Return the compiler's settings for a launch in this context."""
        config = Config.from_context(frozen, self.job.size, self.script_folder)
        choice = self.job.hardware.choice
        return config if choice is None else replace(config, device=choice.device.upper())

    def _check_ranks(self, frozen: FrozenContext) -> None:
        wanted = frozen.device_num
        if not wanted or self.ranks_given or wanted == self.job.size:
            return
        if self.job.size == 1 and mpi_size() == 0:
            raise RanksWanted(wanted, frozen.place_of("device_num"))
        raise MspcError(
            f"the script sets device_num={wanted}, but mpirun started {self.job.size} ranks",
            frozen.place_of("device_num"),
            notes=[f"start it with mpirun -n {wanted}, or give --ranks {self.job.size} to overrule the script"],
            code="E0117",
        )

    def describe(self, rank: int, number: int, index: int) -> ExecutionError:
        """Return an error with the position of another rank: `at NODE`, with the node's frames."""
        node = self.graph_of(rank, number).nodes[index]
        return ExecutionError(f"at {node.label}", frames=node.frames)

    def graph_of(self, rank: int, number: int) -> Graph:
        """Return the graph that a rank runs, by its number in the job."""
        compiled_call = self.compiled_calls[number]
        return compiled_call.executor.graph if rank == self.job.rank else compiled_call.compiled.rank_graph(rank)


def _warnings_of(target: Any, compiled: Compiled) -> list[str]:
    """Return the compiler's warnings, and settings without effect in this mode."""
    said = list(compiled.traced.warnings)
    ignored, mode = compiled.traced.ignored_strategies, compiled.config.mode
    if ignored:
        said.append(f"{ignored} strategies set with shard() do not count in mode {mode}")
    if mode == "data_parallel" and compiled.config.feeds_own_rows and not takes_data(target):
        said.append(
            f"{type(target).__name__} is called with gradients in mode {mode}: they are each rank's own, unless "
            "the script adds them up; if one graph computes and uses gradients, it adds them up"
        )
    return said


def _nothing() -> None: ...


def _ignores_change(name: str, changed: str) -> bool:
    """Return whether a compiled target stays valid although `changed` has changed since. In graph mode it does, with a
    warning, as in MindSpore; in PyNative mode the script's current state counts."""
    if not context.is_graph_mode():
        return False
    say_once(
        f"changed {name}",
        f"{place_of_caller()}{changed} has changed since {name} was compiled, which goes on with the value of then: "
        "graph mode compiles once. set_context(mode=PYNATIVE_MODE) compiles again after changes",
    )
    return True
