"""Evaluation of a module's operations over mspc's operators: calls are inlined, loops are unrolled or scanned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, TensorType
from mspc.mindspore_api import ops
from mspc.mindspore_api.ops.function.control_func import ScannedTables
from mspc.readers.pytorch.evaluation import FEW, InnerGraph
from mspc.readers.stablehlo.emitter import DeviceSlices, HloEmitter, Known, StackedRows, integer, tensor
from mspc.readers.stablehlo.kinds.all_kinds import MANUAL_ENDS, kind_of, name_of
from mspc.readers.stablehlo.kinds.kind import symbol
from mspc.readers.stablehlo.manual_computations import ManualAxes, at_manual_end, equal_on, of_devices, run_manual
from mspc.readers.stablehlo.module import Dense, HloFunction, HloModule, HloOperation, HloRegion, constant_array
from mspc.readers.stablehlo.shardings import layout_of, sharding_in

DEEPEST_CALLS = 64
"""Calls of functions inside of each other."""
_RETURNS = ("stablehlo.return", "func.return", "return", "sdy.return", "mhlo.return")
_CALLS = ("func.call", "call", "stablehlo.composite")


@dataclass(frozen=True)
class CountedLoop:
    """A loop that counts. counter: its argument. step: added after every iteration. count: of iterations."""

    counter: int
    begin: int
    step: int
    count: int

    def order(self, slope: int, start: int) -> int | None:
        """Return 1 if rows at `slope * counter + start` are all rows from the first on, -1 if from the last on."""
        own = slope * self.step, slope * self.begin + start
        return own[0] if own in ((1, 0), (-1, self.count - 1)) else None


class RegionWalk:
    """The values of a region by name; those of the regions around it are read through `outer`."""

    def __init__(
        self, evaluator: Any, module: HloModule, ranks: int, constants: dict[Any, Any], outer: RegionWalk | None = None,
        depth: int = 0,
    ) -> None:  # fmt: skip
        self.evaluator, self.module, self.ranks = evaluator, module, ranks
        self.constants = constants
        """Elements of constants, by the identities of their operations."""
        self.outer, self.depth = outer, depth
        self.values: dict[str, Any] = {}
        self.shardings: dict[str, Any] = {}
        """Shardings of constrained values as they are written, by name."""
        self.e = HloEmitter(evaluator, self)
        self.frames: Frames = () if outer is None else outer.frames
        """Lines of the call around the operations."""
        self.path = "" if outer is None else outer.path
        """The name of this call, which those of the operations may go on from."""
        self.manual: ManualAxes | None = None if outer is None else outer.manual
        """The leading dimensions of values in a manual computation."""

    # The scope that kinds read.

    def lookup(self, name: str) -> Any:
        """Return a value by its name. Raise MspcError if there is none."""
        walk: RegionWalk | None = self
        while walk is not None:
            if name in walk.values:
                return walk.values[name]
            walk = walk.outer
        if name.endswith("#0"):
            return self.lookup(name[:-2])
        raise MspcError(f"{name} is read, which nothing before it gives")

    def constant_of(self, operation: HloOperation) -> Any:
        """Return the elements of a constant, a splat with sizes 1."""
        found = self.constants.get(id(operation))
        if found is None:
            value = operation.attributes.get("value", operation.entries[0] if operation.entries else None)
            if not isinstance(value, Dense) or not operation.types:
                raise MspcError("a constant has no elements, or no type")
            try:
                found = constant_array(self.module, value, tensor(operation.types[0]))
            except ValueError as error:
                raise MspcError(str(error)) from None
            self.constants[id(operation)] = found
        return found

    def function(self, name: str) -> HloFunction:
        """Return a function of the module. Raise MspcError if there is none."""
        if name not in self.module.functions:
            raise MspcError(f"there is no function @{name}")
        return self.module.functions[name]

    def inner(self, evaluator: Any = None) -> RegionWalk:
        """Return the walk of a region in this one. evaluator: emits its operators, if it is another one."""
        return RegionWalk(evaluator or self.evaluator, self.module, self.ranks, self.constants, self, self.depth)

    # Operations.

    def run(self, region: HloRegion, given: Sequence[Any]) -> list[Any]:
        """Return the results of a region for its arguments."""
        if len(given) != len(region.arguments):
            raise MspcError(f"a region takes {len(region.arguments)} values, and is given {len(given)}")
        self.values.update(zip(region.arguments, given, strict=True))
        for operation in region.operations:
            try:
                if operation.name in _RETURNS:
                    return [self.lookup(name) for name in operation.operands]
                self.at(operation)
                found = self.of_operation(operation)
                self.check(operation, found)
            except MspcError as error:
                if error.location is not None:
                    raise
                raise self.told(operation, error) from None
            for name, value in zip(operation.results, found, strict=False):
                self.values[name] = value
        raise MspcError("a region returns nothing")

    def told(self, operation: HloOperation, error: MspcError) -> MspcError:
        """Return an error with the operation and its line."""
        place = self.module.location(operation.place)
        notes = [*error.notes, f"in {place}"]
        frames = self.lines(operation)
        return MspcError(f"{operation.name}: {error.message}", frames[0] if frames else place, notes, frames,
                         code=error.code or "E0702")  # fmt: skip

    def check(self, operation: HloOperation, found: Sequence[Any]) -> None:
        """Raise MspcError if results have other types than the text says."""
        if len(found) < len(operation.results):
            raise MspcError(f"it gives {len(found)} values here, and {len(operation.results)} are named")
        for value, type in zip(found, operation.types, strict=False):
            own = self.e.type_of(value)
            if self.manual is not None and isinstance(type, TensorType):
                own = TensorType(own.dtype, own.shape[len(self.manual.names) :])
            if own != type:
                raise MspcError(f"its result is {own} here, and the text says {type}")

    def lines(self, operation: HloOperation) -> Frames:
        """Return the lines of an operation, the innermost first; in the program of one device its line in the text is
        the last one, as XLA makes several operations of a line."""
        own = operation.origin.frames if operation.origin is not None else ()
        own = own or self.frames
        return (*own, self.module.location(operation.place)) if self.module.rank >= 0 or not own else own

    def at(self, operation: HloOperation) -> None:
        """Attribute the next operators to an operation."""
        self.evaluator.at(self.lines(operation), self.path_of(operation).rpartition("/")[0].replace(" ", ""), None)

    def path_of(self, operation: HloOperation) -> str:
        """Return the scopes and the name of an operation; a name in a function may go on from that of its call."""
        name = operation.origin.name if operation.origin is not None else ""
        return name if not self.path or name.startswith("jit(") else f"{self.path}/{name}"

    def of_operation(self, operation: HloOperation) -> Sequence[Any]:
        name = name_of(operation)
        given = [self.lookup(each) for each in operation.operands]
        if name == "constant":
            return [self.on_all(Known(self.constant_of(operation), tensor(operation.types[0]).shape))]
        if operation.name in _CALLS:
            return self.called(operation, given)
        if name == "fusion":
            return self.inner().run(operation.regions[0], given)
        if name == "while":
            return self.looped(operation, given)
        if name in ("if", "case"):
            return self.branched(operation, given)
        try:
            if name in ("sdy.sharding_constraint", "custom_call"):
                return self.constrained(operation, given)
            if name == "sdy.manual_computation":
                return run_manual(self, operation, given)
            if self.manual is not None:
                return of_devices(self, operation, given)
            kind = kind_of(operation)
            assert kind is not None, "kinds were checked before"
            return kind(self.e, operation, given)
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            if isinstance(error, MspcError):
                raise
            raise MspcError(f"its operands or attributes do not fit each other ({error})"[:300]) from None

    def called(self, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
        """Return the results of a function, which is inlined."""
        name = "decomposition" if name_of(operation) == "composite" else "callee"
        function = self.function(symbol(operation, name))
        if self.depth >= DEEPEST_CALLS:
            raise MspcError(f"calls are nested deeper than {DEEPEST_CALLS}; a function may call itself")
        walk = RegionWalk(self.evaluator, self.module, self.ranks, self.constants, None, self.depth + 1)
        walk.frames, walk.path, walk.manual = self.lines(operation), self.path_of(operation), self.manual
        slices = next((x for x in given if isinstance(x, DeviceSlices)), None)
        if slices is None:
            return walk.run(function.body, given)
        walk.manual = slices.axes
        found = walk.run(function.body, [getattr(x, "value", x) for x in given])
        return [DeviceSlices(tensor(t), x, slices.axes) for t, x in zip(operation.types, found, strict=True)]

    def constrained(self, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
        """Return a value in the layout that the text gives it."""
        sharding, target = sharding_of(operation), symbol(operation, "call_target_name")
        if target in MANUAL_ENDS:
            return [at_manual_end(self, operation, given[0])]
        self.shardings.update((name, sharding) for name in operation.results)
        opened = str(operation.attributes.get("backend_config", "")).removeprefix("unspecified_dims=")
        return [self.in_layout(given[0], sharding, opened.count(",") + 1 if opened[:1] == "[" else 0)]

    def in_layout(self, value: Any, sharding: Any, opened: int = 0) -> Any:
        """Return a value constrained to a sharding as it is written, None for none. opened: the number of dimensions
        that may be divided further."""
        if self.ranks == 1 or sharding is None or isinstance(value, Known | DeviceSlices):
            return value
        leading, axes = ((), ()) if self.manual is None else (self.manual.names, self.manual.mesh)
        rank = len(self.e.shape_of(value)) - len(leading)
        layout = layout_of(self.module, sharding, rank, leading, axes)
        if layout is None or (opened == rank and not any(layout.axes[len(leading) :])):
            return value
        return self.e.constrained(value, layout)

    def on_all(self, value: Any) -> Any:
        """Return a value as that of all devices of a manual computation."""
        return value if self.manual is None else equal_on(self.e, value, self.manual.sizes)

    # Branches.

    def branched(self, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
        """Return the results of one of several regions. If only the run knows which, all run, and elements of one are
        selected: regions change nothing else."""
        regions = operation.regions
        number = integer(given[0])
        is_bool = self.e.type_of(given[0]).dtype == BOOL
        if number is not None:
            last = len(regions) - 1
            at = 1 - number if is_bool else number if 0 <= number <= last else last
            return self.inner().run(regions[at], [])
        found = [self.inner().run(region, []) for region in regions]
        self.at(operation)
        chosen = found[-1]
        for at in reversed(range(len(regions) - 1)):
            holds = self.e.whole(given[0])
            if not is_bool:
                holds = self.e.call(ops.Equal(), holds, self.e.constant(np.array(at, np.int32)))
            chosen = [self.select(holds, *pair) for pair in zip(found[at], chosen, strict=True)]
        return chosen

    def select(self, holds: Any, first: Any, other: Any) -> Any:
        """Return one of two values."""
        shape = self.e.shape_of(first)
        own = self.e.shape_of(holds)
        condition = self.e.reshaped(holds, (*own, *(1,) * (len(shape) - len(own))))
        return self.e.spread(self.e.call(ops.Select(), condition, self.e.whole(first), self.e.whole(other)), shape)

    # Loops.

    def looped(self, operation: HloOperation, given: Sequence[Any]) -> Sequence[Any]:
        """Return the values that a loop carries at its end."""
        condition, body = operation.regions
        loop = self.counted(condition, body, given)
        if loop is None:
            return self.repeated(condition, body, given)
        return (self.unrolled if loop.count <= FEW else self.scanned)(body, given, loop)

    def unrolled(self, body: HloRegion, given: Sequence[Any], loop: CountedLoop) -> Sequence[Any]:
        """Return the values after a loop of few iterations."""
        values, dtype = list(given), self.e.type_of(given[loop.counter]).dtype
        stacked = self.stacked(body, loop) if loop.count else {}
        rows: dict[int, list[Any]] = {k: [] for k in stacked}
        for k in stacked:
            values[k] = StackedRows(self.e.type_of(given[k]))
        for turn in range(loop.count):
            values[loop.counter] = self.on_all(self.e.number(loop.begin + turn * loop.step, dtype))
            values = self.inner().run(body, values)
            for k, order in stacked.items():
                rows[k].insert(len(rows[k]) if order == 1 else 0, self.e.whole(values[k].row))
        for k, made in rows.items():
            values[k] = made[0] if len(made) == 1 else self.e.call(ops.Concat(0), tuple(made))
        return values

    def counted(self, condition: HloRegion, body: HloRegion, given: Sequence[Any]) -> CountedLoop | None:
        """Return how a loop counts; None if its iterations are known only when it runs."""
        last = body.operations[-1].operands
        if not condition.operations or condition.operations[-1].name not in _RETURNS:
            return None
        if len(last) != len(condition.arguments):
            return None
        fixed = {name: (0, n) for k, name in enumerate(condition.arguments)
                 if last[k] == body.arguments[k] and (n := integer(given[k])) is not None}  # fmt: skip
        values, names = LinearValues(self, fixed, condition), {name: name for name in condition.arguments}
        compared = values.made.get(condition.operations[-1].operands[0])
        if compared is not None and name_of(compared) == "fusion":  # as XLA's compiled modules have it
            outer, values = compared.operands, values.inside(compared)
            names = {inner: names.get(name, "") for inner, name in zip(values.region.arguments, outer, strict=True)}
            compared = values.made.get(values.region.operations[-1].operands[0])
        if compared is None or name_of(compared) != "compare" or len(compared.operands) != 2:
            return None
        (first, limit), is_less = compared.operands, "LT" in str((compared.words, compared.attributes))
        if not names.get(first) or not is_less:
            return None
        at = condition.arguments.index(names[first])
        end, begin = values.of(limit), integer(given[at])
        step = LinearValues(self, {body.arguments[at]: (1, 0)}, body).of(last[at])
        if end is None or end[0] or begin is None or step is None or step[0] != 1 or step[1] < 1:
            return None
        return CountedLoop(at, begin, step[1], max(0, -(-(end[1] - begin) // step[1])))

    def repeated(self, condition: HloRegion, body: HloRegion, given: Sequence[Any]) -> Sequence[Any]:
        """Return the values after a loop whose number of iterations only the run knows."""

        def holds(evaluator: Any, args: Sequence[Any]) -> Any:
            walk = self.inner(evaluator)
            found = walk.e.whole(walk.run(condition, list(args[0]))[0])
            return found if self.manual is None else walk.e.call(ops.ReduceAny(), found)

        def turn(evaluator: Any, args: Sequence[Any]) -> Any:
            walk = self.inner(evaluator)
            found = tuple(map(walk.e.whole, walk.run(body, list(args[0]))))
            if self.manual is None:
                return found
            goes_on = self.inner(evaluator).run(condition, list(args[0]))[0]  # not on every device
            return tuple(walk.select(walk.e.whole(goes_on), *pair) for pair in zip(found, args[0], strict=True))

        carried = tuple(map(self.e.whole, given))
        return list(self.e.call(ops.WhileLoop(), InnerGraph(holds), InnerGraph(turn), carried))

    def scanned(self, body: HloRegion, given: Sequence[Any], loop: CountedLoop) -> Sequence[Any]:
        """Return the values after a loop of many iterations. Values that it returns as they are stay outside; rows that
        it puts into a tensor, or reads of one, one in each iteration, are those of the loop itself."""
        last = body.operations[-1].operands
        fixed = {k for k, name in enumerate(body.arguments) if last[k] == name}
        stacked = self.stacked(body, loop)
        own = [k for k in range(len(given)) if k not in fixed and k not in stacked and k != loop.counter]
        dtype = self.e.type_of(given[loop.counter]).dtype
        rows, read = list(stacked), self.read_rows(body, loop, fixed)
        orders = [*stacked.values(), *read.values()]
        order = -1 if orders.count(-1) > orders.count(1) else 1
        read = {k: own_order for k, own_order in read.items() if own_order == order}
        begin = loop.begin if order == 1 else loop.begin + loop.step * (loop.count - 1)

        def turn(evaluator: Any, args: Sequence[Any]) -> Any:
            state, (place, *entries) = args
            walk = self.inner(evaluator)
            counter = walk.e.call(ops.Cast(), place, dtype)
            for op, number, neutral in ((ops.Mul(), loop.step * order, 1), (ops.Add(), begin, 0)):
                if number != neutral:
                    counter = walk.e.call(op, counter, walk.e.constant(np.array(number, dtype.numpy)))
            values = list(given)
            values[loop.counter] = walk.on_all(counter)
            for k in rows:
                values[k] = StackedRows(self.e.type_of(given[k]))
            for k, entry in zip(read, entries, strict=True):
                values[k] = StackedRows(self.e.type_of(given[k]), entry)
            for k, value in zip(own, state, strict=False):
                values[k] = value
            found = walk.run(body, values)
            made = tuple(walk.e.whole(walk.e.reshaped(found[k].row, found[k].type.shape[1:])) for k in rows)
            after = tuple(walk.e.whole(found[k]) for k in own)
            return (after, made) if own else ((*state,), made)

        first = (self.in_layout(given[k], self.carried_sharding(body, k)) for k in own)
        state = tuple(map(self.e.whole, first)) or (self.e.call(ops.arange, 0, 1, 1),)
        tables = (self.e.call(ops.arange, 0, loop.count, 1), *(self.e.whole(given[k]) for k in read))
        after, made = self.e.call(ops.Scan(), InnerGraph(turn), state, ScannedTables(tables, order == -1), None, False)
        values = list(given)
        for k, value in zip(own, after, strict=False):
            values[k] = value
        values[loop.counter] = self.on_all(self.e.number(loop.begin + loop.count * loop.step, dtype))
        for k, at in enumerate(rows):
            found = self.e.of_rows([each[k] for each in made])
            values[at] = found if stacked[at] == order else self.e.call(ops.ReverseV2((0,)), found)
        return values

    def carried_sharding(self, body: HloRegion, at: int) -> Any:
        """Return the sharding that an iteration gives a carried value, at its end or else at its beginning; None if it
        gives it none."""
        made = self._constraint(body, body.operations[-1].operands[at], is_made=True)
        return made or self._constraint(body, body.arguments[at], is_made=False)

    def _constraint(self, region: HloRegion, name: str, is_made: bool) -> Any:
        """Return the sharding of the constraint that makes a value, or else reads it, also in a function that is
        called; None if there is none."""
        for _ in range(DEEPEST_CALLS):
            near = [each for each in region.operations if name in (each.results if is_made else each.operands)]
            found = next(filter(is_constraint, near), None)
            call = next((each for each in near if each.name in _CALLS), None)
            if found is not None or call is None:
                return None if found is None else sharding_of(found)
            region = self.function(symbol(call, "callee")).body
            of_call = call.results if is_made else call.operands
            name = (region.operations[-1].operands if is_made else region.arguments)[of_call.index(name)]
        return None

    def stacked(self, body: HloRegion, loop: CountedLoop) -> dict[int, int]:
        """Return the arguments of a loop that an iteration only puts its row into: 1 if rows follow each other in the
        order of the iterations, -1 if in the other order."""
        found: dict[int, int] = {}
        if self.manual is not None:
            return found
        last, linear = body.operations[-1].operands, LinearValues(self, {body.arguments[loop.counter]: (1, 0)}, body)
        uses = Counter(name for each in body.operations for name in each.operands)
        inside = {name for each in body.operations for region in each.regions for inner in region.all_operations()
                  for name in inner.operands}  # fmt: skip
        for k, (name, type) in enumerate(zip(body.arguments, body.types, strict=True)):
            made = next((each for each in body.operations if last[k] in each.results), None)
            if made is None or uses[name] != 1 or uses[last[k]] != 1 or {name, last[k]} & inside:
                continue
            index = self.row_index(made, name, linear)
            if index is None or not isinstance(type, TensorType) or type.shape[0] != loop.count:
                continue
            if (order := loop.order(*index)) is not None:
                found[k] = order
        return found

    def read_rows(self, body: HloRegion, loop: CountedLoop, fixed: Collection[int]) -> dict[int, int]:
        """Return the arguments, of those that no iteration changes, of which an iteration only reads its row, in the
        order in which `stacked` returns those that it writes."""
        found: dict[int, int] = {}
        for k in sorted(fixed) if self.manual is None else ():
            type, name = body.types[k], body.arguments[k]
            if isinstance(type, TensorType) and type.shape[:1] == (loop.count,):
                indices = self.reads(name, LinearValues(self, {body.arguments[loop.counter]: (1, 0)}, body), returned=1)
                orders = {None if index is None else loop.order(*index) for index in indices}
                if len(orders) == 1 and (order := orders.pop()) is not None:
                    found[k] = order
        return found

    def reads(self, target: str, linear: LinearValues, returned: int = 0) -> Iterator[tuple[int, int] | None]:
        """Yield the row that each operation reads of `target`, as `row_index` returns it. returned: how often the
        region may return it."""
        for each in linear.region.operations:
            inside = {name for inner in each.regions for made in inner.all_operations() for name in made.operands}
            count = each.operands.count(target)
            if target in inside or (each.name in _RETURNS and count > returned):
                yield None
            elif not count or each.name in _RETURNS:
                continue
            elif each.name in _CALLS[:2] and count == 1:
                inner = linear.inside(each)
                yield from self.reads(inner.region.arguments[each.operands.index(target)], inner)
            else:
                yield row_at(each, target, linear, "dynamic_slice")

    def row_index(self, operation: HloOperation, target: str, linear: LinearValues) -> tuple[int, int] | None:
        """Return (slope, start) of the row of `target` that an operation replaces as a whole, as a linear function of a
        loop's counter; None if it does anything else. A call of a function that only does this is one, too."""
        if operation.name in _CALLS:
            inner = linear.inside(operation)
            callee = inner.region
            last = callee.operations[-1].operands
            made = next((each for each in callee.operations if last and last[0] in each.results), None)
            if made is None or len(last) != 1 or target not in operation.operands:
                return None
            own = callee.arguments[operation.operands.index(target)]
            if sum(each.operands.count(own) for each in callee.operations) != 1:
                return None
            return self.row_index(made, own, inner)
        return row_at(operation, target, linear, "dynamic_update_slice")


def is_constraint(operation: HloOperation) -> bool:
    """Return whether an operation says how its operand is sharded."""
    return name_of(operation) in ("sdy.sharding_constraint", "custom_call")


def sharding_of(operation: HloOperation) -> Any:
    """Return the sharding of a constraint as it is written."""
    if name_of(operation) == "custom_call":
        return sharding_in(operation.attributes)
    return operation.attributes.get("sharding", operation.entries[0] if operation.entries else None)


class LinearValues:
    """Integers of a region as linear functions (slope, start) of a loop's counter."""

    def __init__(self, walk: RegionWalk, known: Mapping[str, tuple[int, int]], region: HloRegion) -> None:
        self.walk, self.known, self.region = walk, dict(known), region
        self.made = {name: each for each in region.operations for name in each.results}

    def inside(self, call: HloOperation) -> LinearValues:
        """Return the values of a function that the region calls, or of a fusion in it."""
        callee = call.regions[0] if call.regions else self.walk.function(symbol(call, "callee")).body
        pairs = zip(callee.arguments, map(self.of, call.operands), strict=True)
        return LinearValues(self.walk, {name: value for name, value in pairs if value is not None}, callee)

    def of(self, name: str, depth: int = 0) -> tuple[int, int] | None:
        """Return the function of a value, None if it has another form."""
        made = self.made.get(name)
        if name in self.known or name in self.region.arguments or depth > DEEPEST_CALLS:
            return self.known.get(name)
        if made is None:  # from outside
            number = integer(self.walk.lookup(name))
            return None if number is None else (0, number)
        kind = name_of(made)
        if kind == "constant":
            array = self.walk.constant_of(made)
            return (0, int(array.reshape(-1)[0])) if array.size == 1 and array.dtype.kind in "iu" else None
        if kind == "select":  # of an index from the end if it is negative, which no row's is
            compared, last = self.made.get(made.operands[0]), self.of(made.operands[2], depth + 1)
            is_less = compared is not None and "LT" in str((compared.words, compared.attributes))
            given = [self.of(each, depth + 1) for each in compared.operands] if compared is not None and is_less else []
            return last if given == [last, (0, 0)] else None
        if kind == "fusion":
            inner = self.inside(made)
            return inner.of(inner.region.operations[-1].operands[made.results.index(name)], depth + 1)
        if kind not in ("add", "subtract", "convert", "copy"):
            return None
        parts = [self.of(each, depth + 1) for each in made.operands]
        if parts[0] is None or parts[-1] is None or kind in ("convert", "copy"):
            return parts[0]
        sign = -1 if kind == "subtract" else 1
        first, second = parts[0], parts[-1]
        return first[0] + sign * second[0], first[1] + sign * second[1]


def row_at(operation: HloOperation, target: str, linear: LinearValues, name: str) -> tuple[int, int] | None:
    """Return the row of `target` that an operation of this name reads or writes, as a linear function of a loop's
    counter; None if it is another operation, or does anything else."""
    if name_of(operation) != name or operation.operands[0] != target:
        return None
    types = operation.types[0], region_type(linear.region, operation, int(name == "dynamic_update_slice"))
    whole, row = types if name == "dynamic_update_slice" else types[::-1]
    starts = [linear.of(each) for each in operation.operands[2 if name == "dynamic_update_slice" else 1 :]]
    is_row = isinstance(whole, TensorType) and isinstance(row, TensorType) and row.shape == (1, *whole.shape[1:])
    return starts[0] if is_row and starts and all(each == (0, 0) for each in starts[1:]) else None


def region_type(region: HloRegion, operation: HloOperation, at: int) -> Any:
    """Return the type of an operand of an operation of a region, None if it is not known there."""
    if len(operation.operand_types) > at:
        return operation.operand_types[at]
    name = operation.operands[at]
    made = next((each for each in region.operations if name in each.results), None)
    if made is not None:
        return made.types[made.results.index(name)]
    return region.types[region.arguments.index(name)] if name in region.arguments else None


def run_function(walk: RegionWalk, function: HloFunction, given: Sequence[Any]) -> list[Any]:
    """Return the results of a module's function as values of the front end."""
    return [walk.e.whole(value) for value in walk.run(function.body, given)]
