"""How slices of values pass an exported program's nodes under a plan of layers."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.common.tensor import Tensor
from mspc.readers.pytorch.exported_program import (
    CONTROL,
    Argument,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
)
from mspc.readers.pytorch.kinds.aten_table import kind_of
from mspc.readers.pytorch.kinds.creation import RANDOM
from mspc.readers.pytorch.kinds.kind import Kind
from mspc.readers.pytorch.plans.written_plan import CUT, IN, NOTHING, OPEN, OUT, ROWS, SEQUENCE, WHOLE, Style


def merged(shape: Sequence[int], result: Sequence[int], dim: int) -> int | None:
    """Return the dimension of a view in which the slices of dimension `dim` are slices, or None.

    If a dimension is taken apart it is the outermost one; one that is merged has to be the outermost of those that
    become one.
    """
    before = math.prod(shape[:dim])
    total = 1
    for number, size in enumerate(result):
        if total == before and size != 1:
            return number
        total *= size
    return None


# Whether an operator gives slices of its results for slices of its operands is decided by computing both on an example:
# ranks that follow a plan by hand call every operator on their slices, which is right if rank r gets slice r of the
# results for whole operands, along some dimension, or all of it. No list of operators could say so: it holds for `x[:,
# ::2]`, and not for `x[:, :8]`.


SMALL, LARGEST = 1 << 14, 1 << 22
"""Elements up to which tensors are computed as they are, and up to which they are computed at all."""
SIZES = frozenset({"size", "sizes", "shape"})
"""Arguments that name the shape of the result: a rank's own program has that of its slice there."""
DRAWN = frozenset(kind.name for kinds in RANDOM for kind in kinds)


class Unjudged(Exception):
    """The operator cannot be computed here."""


def dims_of_results(
    node: ExportedNode, types: Mapping[str, ExportedType], cuts: Mapping[str, int], parts: int
) -> list[int | None] | None:
    """Return for every result the dimension along which ranks get slices of it, None if each gets all.

    types: of the operands, by name. cuts: the dimensions of operands that are cut, the others are whole.

    Returns None if the ranks get anything else.

    Raises:
        Unjudged: the operator is not computed: it draws numbers, runs graphs, is too large, or has open sizes.
    """
    kind = None if node.target in CONTROL else kind_of(node.target)
    if kind is None or kind.name in DRAWN or kind.writes not in ((), (kind.arguments[0].name,)):
        raise Unjudged
    shapes = {name: _numbers(type) for name, type in types.items()}
    if any(shapes[name][dim] % parts for name, dim in cuts.items()):
        raise Unjudged
    smaller = _smaller_sizes(shapes, cuts)
    arrays = _arrays(types, shapes, smaller)
    if sum(array.size for array in arrays.values()) > LARGEST:
        raise Unjudged
    try:
        whole = _computed_results(kind, node, arrays, smaller)
    except MspcError:
        raise Unjudged from None
    return _dims(kind, node, arrays, smaller, cuts, parts, whole)


def _dims(
    kind: Kind, node: ExportedNode, arrays: Mapping[str, Any], smaller: Mapping[int, int], cuts: Mapping[str, int],
    parts: int, whole: Sequence[Any],
) -> list[int | None] | None:  # fmt: skip
    found: list[int | None] = []
    ranks = sorted({0, 1, parts - 1})
    slices = [{n: _slice(a, cuts[n], parts, rank) if n in cuts else a for n, a in arrays.items()} for rank in ranks]
    for place, expected in enumerate(whole):
        for dim in (*(dim for dim, size in enumerate(expected.shape) if size and size % parts == 0), None):
            wanted = [expected if dim is None else _slice(expected, dim, parts, rank) for rank in ranks]
            if _gives_arrays(kind, node, slices, smaller, place, wanted):
                found.append(dim)
                break
        else:
            return None
    return found


def _gives_arrays(
    kind: Kind, node: ExportedNode, slices: Sequence[Mapping[str, Any]], smaller: Mapping[int, int], place: int,
    wanted: Sequence[Any],
) -> bool:  # fmt: skip
    """Return whether ranks get these arrays for a result, with the arguments unchanged or with their own shape."""
    shape = tuple(wanted[0].shape)
    for own in (None, shape) if any(name in SIZES for name, _ in node.arguments) else (None,):
        try:
            found = [_computed_results(kind, node, each, smaller, own)[place] for each in slices]
        except (MspcError, IndexError):
            continue
        pairs = zip(found, wanted, strict=True)
        if all(a.shape == b.shape and np.allclose(a, b, 1e-4, 1e-5, equal_nan=True) for a, b in pairs):
            return True
    return False


def _computed_results(
    kind: Kind, node: ExportedNode, arrays: Mapping[str, Any], smaller: Mapping[int, int],
    own: tuple[int, ...] | None = None,
) -> list[Any]:  # fmt: skip
    """Return the results. own: the shape that arguments for one have."""

    def operand(value: Argument) -> Any:
        if isinstance(value, NodeResult):
            return Tensor(arrays[value.name])
        return tuple(map(operand, value)) if isinstance(value, tuple) else value

    given: dict[str, Any] = {}
    for name, value in node.arguments:
        if name in SIZES and isinstance(value, tuple):
            sizes = tuple(smaller.get(size, size) if isinstance(size, int) else size for size in value)
            value = own if own is not None and len(own) == len(value) else sizes
        given[name] = value if name in kind.unread else operand(value)
    with np.errstate(all="ignore"):
        try:
            found = kind.target(*kind.bound(given))
        except (TypeError, ValueError, IndexError, ArithmeticError, AttributeError) as error:
            raise MspcError(str(error)) from None
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    if len(results) < len(node.results) or not all(isinstance(each, Tensor) for each in results[: len(node.results)]):
        raise MspcError("there are other results")
    return [each.asnumpy() for each in results[: len(node.results)]]


def _numbers(type: ExportedType) -> tuple[int, ...]:
    if not all(isinstance(size, int) for size in type.shape):
        raise Unjudged
    return tuple(size for size in type.shape if isinstance(size, int))


def _smaller_sizes(shapes: Mapping[str, tuple[int, ...]], cuts: Mapping[str, int]) -> dict[int, int]:
    """Return smaller sizes instead of those that no operand is cut along, for large operands."""
    if sum(int(np.prod(shape)) for shape in shapes.values()) <= SMALL:
        return {}
    fixed = {shapes[name][dim] for name, dim in cuts.items()}
    return {size: 2 for shape in shapes.values() for size in shape if size > 2 and size not in fixed}


def _arrays(
    types: Mapping[str, ExportedType], shapes: Mapping[str, tuple[int, ...]], smaller: Mapping[int, int]
) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for name, type in types.items():
        shape = tuple(smaller.get(size, size) for size in shapes[name])
        if np.prod(shape, dtype=float) > LARGEST:
            raise Unjudged
        dtype = type.dtype.numpy
        if type.dtype.is_complex:
            found[name] = (rng.uniform(-1, 1, shape) + 1j * rng.uniform(-1, 1, shape)).astype(dtype)
        elif type.dtype.is_float:
            found[name] = rng.uniform(-1, 1, shape).astype(dtype)
        else:
            found[name] = rng.integers(0, 2, shape).astype(dtype)
    return found


def _slice(array: Any, dim: int, parts: int, rank: int) -> Any:
    count = array.shape[dim] // parts
    return np.ascontiguousarray(array[(slice(None),) * dim + (slice(rank * count, (rank + 1) * count),)])


PRODUCTS: Mapping[str, tuple[str, str, bool]] = {
    "linear": ("input", "weight", True), "addmm": ("mat1", "mat2", False), "mm": ("self", "mat2", False),
    "matmul": ("self", "other", False),
}  # fmt: skip
"""Kinds of layers with a weight: the names of the operand and the weight, and whether that is [out, in]."""
REDUCED = frozenset("mean sum var std amax amin softmax _softmax log_softmax _log_softmax cumsum".split())
NORMS = frozenset("layer_norm native_layer_norm rms_norm _fused_rms_norm".split())
SAME = frozenset(
    "add sub mul div pow neg rsqrt sqrt exp tanh sigmoid silu gelu relu where masked_fill to _to_copy clone contiguous "
    "dropout native_dropout cos sin abs clamp maximum minimum type_as detach alias square leaky_relu elu softplus "
    "hardswish mish relu6 add_ mul_ eq ne lt gt le ge logical_and logical_or bitwise_and bitwise_or softcap".split()
)  # fmt: skip
"""Kinds that take elements one by one."""
LOSSES = frozenset("cross_entropy_loss nll_loss nll_loss_forward nll_loss_nd".split())
LOG_SOFTMAX = ("log_softmax", "_log_softmax")
ATTENTION = "scaled_dot_product_attention"


@dataclass(frozen=True)
class SlicedValue:
    """A dimension of a value that is cut, and the layer of which that comes."""

    dim: int
    layer: str


@dataclass(frozen=True)
class Mistake:
    """Something that a plan says wrongly, at a node."""

    node: ExportedNode
    text: str


State = SlicedValue | None
"""None: every rank holds all of it."""


class LayerFlow:
    """The state of every value of a program, as far as it is known.

    styles: of parameters by their qualified names. tied: of modules that share parameters with others, by their paths.
    parts: the number of slices. placed: parameters with a dimension that placements cut, not styles. cuts: the states
    of values; missing ones are not known. loss_parallel: losses take slices of classes. pads: whether `parts` does not
    divide a dimension that a style shards.
    """

    def __init__(
        self, program: ExportedProgram, styles: Mapping[str, Style], parts: int, placed: Mapping[str, int],
        tied: Mapping[str, Style], loss_parallel: bool = False,
    ) -> None:  # fmt: skip
        self.program = program
        self.loss_parallel = loss_parallel
        self.styles = styles
        self.parts = parts
        self.pads = False
        self.placed = placed
        self.tied = tied
        self.mistakes: list[Mistake] = []
        self.cuts: dict[str, State] = {each.name: None for each in program.inputs}
        same = program.same
        self.parameters = {e.name: same.get(e.qualified, e.qualified) for e in program.inputs if e.kind == "parameter"}
        self.types = {name: type for name, type in program.graph.types.items() if type is not None}
        self._alike: dict[tuple[object, ...], list[int | None] | None] = {}
        """Dimensions of results, by calls that differ in the names of their operands alone."""
        for name, own in self.parameters.items():
            if own in placed:
                self.cuts[name] = SlicedValue(placed[own], own)
        self.shapes = {name: tuple(type.shape) for name, type in self.types.items()}
        for node in program.graph.nodes:
            self._node(node)

    def _node(self, node: ExportedNode) -> None:
        given = dict(node.arguments)
        kind = node.target.removeprefix("aten.").partition(".")[0]
        weight = self._weight(kind, given)
        try:
            if weight is not None:
                found: State | list[State] = self._layer(node, kind, given, weight)
            elif kind == "embedding":
                found = self._table(node, given)
            else:
                found = self._other(node, kind, given)
        except _Unknown:
            return
        except _Wrong as wrong:
            self.mistakes.append(Mistake(node, wrong.text))
            return
        states = found if isinstance(found, list) else [found] * len(node.results)
        self.cuts.update(zip(node.results, states, strict=True))

    def _weight(self, kind: str, given: Mapping[str, Argument]) -> str | None:
        """Return the parameter of a matmul, by its qualified name."""
        if kind not in PRODUCTS:
            return None
        name = given.get(PRODUCTS[kind][1])
        return self.parameters.get(name.name) if isinstance(name, NodeResult) else None

    def of(self, value: Argument) -> State:
        if not isinstance(value, NodeResult):
            return None
        if value.name not in self.cuts:
            raise _Unknown
        return self.cuts[value.name]

    def shape(self, value: Argument) -> tuple[int, ...]:
        found = self.shapes.get(value.name) if isinstance(value, NodeResult) else None
        if found is None or not all(isinstance(size, int) for size in found):
            raise _Unknown
        return tuple(size for size in found if isinstance(size, int))

    def _layer(self, node: ExportedNode, kind: str, given: Mapping[str, Argument], weight: str) -> State:
        operand, name, out_first = PRODUCTS[kind]
        x, style = given[operand], self.tied.get(node.scope, self.styles.get(weight))
        layer = node.scope if node.scope in self.tied else weight.rpartition(".")[0] or weight
        if style is not None and style.weight == OPEN:
            raise _Unknown
        shape, sizes = self.shape(x), self.shape(given[name])
        last = len(shape) - 1
        if weight in self.placed:  # placements require nothing of their input, which is redistributed
            raise _Unknown
        if style is not None and isinstance(x, NodeResult) and x.name not in self.cuts:
            return _result_state(style, last, layer)
        cut = self.of(x)
        if style is None or style.weight == NOTHING:
            if cut is not None and cut.dim == last:
                raise _Wrong(
                    f"{layer} reads its whole input, but {cut.layer} (column-wise) leaves each rank a slice of it: "
                    f"make {layer} row-wise, or gather the result of {cut.layer}"
                )
            return cut
        if style.weight not in (OUT, IN):
            raise _Wrong(f"{layer} has the style {style.name}, which is for tables of an embedding")
        gives, takes = (sizes[-2], sizes[-1]) if out_first else (sizes[-1], sizes[-2])
        size = gives if style.weight == OUT else takes
        self.pads |= size % self.parts != 0
        self._check_input(layer, style, cut, last)
        return _result_state(style, last, layer)

    def _check_input(self, layer: str, style: Style, cut: State, last: int) -> None:
        """Raise if the input is not cut as the style requires."""
        dim = -1 if cut is None else cut.dim
        if style.takes == CUT and dim != last:
            if style.weight == OUT:
                raise _Wrong(
                    f"{layer} gathers an input that every rank already holds: {style.name} says that ranks hold slices "
                    "of it"
                )
            why = "every rank holds its whole input: make the layer before it column-wise"
            if cut is not None:
                why = f"the result of {cut.layer} is sharded along dimension {dim}, not along its features"
            raise _Wrong(f"{layer} is row-wise ({style.name}), but {why}")
        if style.takes == WHOLE and cut is not None:
            what = "column-wise" if style.weight == OUT else "row-wise"
            how = "along dimension 1" if dim != last else "of its features"
            raise _Wrong(
                f"{layer} is {what} ({style.name}) and reads its whole input, but {cut.layer} leaves each rank a slice "
                f"{how}: gather it first"
            )
        if style.takes == SEQUENCE and dim != 1:
            raise _Wrong(f"{layer} gathers its input along dimension 1 ({style.name}), where no layer shards it")

    def _table(self, node: ExportedNode, given: Mapping[str, Argument]) -> State:
        name = given["weight"]
        weight = self.parameters.get(name.name, "") if isinstance(name, NodeResult) else ""
        style, state = self.tied.get(node.scope, self.styles.get(weight)), self.of(given["indices"])
        if weight in self.placed:
            raise _Unknown
        if style is None or style.weight in (OPEN, NOTHING):
            return state
        sizes, layer = self.shape(name), weight.rpartition(".")[0]
        size = sizes[0] if style.weight in (ROWS, IN) else sizes[1]
        self.pads |= size % self.parts != 0
        return _result_state(style, len(self._result(node)) - 1, layer)

    def _other(self, node: ExportedNode, kind: str, given: Mapping[str, Argument]) -> State | list[State]:
        states = [(value, self.of(value)) for value in map(NodeResult, node.operands)]
        cut = [(value, state) for value, state in states if state is not None]
        if kind in NORMS:
            return self._norm(node, given)
        if not cut:
            return None
        if kind in SAME:
            return self._elementwise(node, states)
        first, state = cut[0]
        if kind == ATTENTION:
            return self._attention(node, given)
        if kind in LOSSES and state.dim == 1:
            if self.loss_parallel:
                return None
            raise _Wrong(f"the loss reads all classes, but {state.layer} leaves each rank a slice of them: gather "
                         "them first, or set loss_parallel = true in the plan")  # fmt: skip
        if kind in LOG_SOFTMAX and self.loss_parallel:
            return state
        if kind in REDUCED:
            return self._reduced(node, given, first, state)
        if kind in ("view", "reshape", "_unsafe_view", "flatten", "unflatten"):
            return self._viewed(node, kind, states, state)
        return self._on_slices(node, kind, states)

    def _on_slices(self, node: ExportedNode, kind: str, states: Sequence[tuple[NodeResult, State]]) -> list[State]:
        """Return the results of a kind that every rank computes from its slices."""
        cuts = {value.name: state for value, state in states if state is not None}
        held = [self.parameters[value.name] for value, _ in states if value.name in self.parameters]
        if any(name in self.styles or name in self.placed for name in (*held, *(cut.layer for cut in cuts.values()))):
            raise _Unknown  # a style or a placement says how these are cut
        types = {value.name: self.types[value.name] for value, _ in states}
        dims = {name: cut.dim for name, cut in cuts.items()}
        places = {name: str(place) for place, name in enumerate(types)}
        arguments = tuple((name, _renamed_text(value, places)) for name, value in node.arguments)
        key = (node.target, arguments, *((type, dims.get(name)) for name, type in types.items()))
        try:
            if key not in self._alike:
                self._alike[key] = dims_of_results(node, types, dims, self.parts)
        except Unjudged:
            raise _Unknown from None
        found, cut = self._alike[key], next(iter(cuts.values()))
        if found is None:
            raise _Wrong(
                f"{kind} reads slices along dimension {cut.dim} of the result of {cut.layer}, and its result on a rank "
                f"is no slice of the global result: make {cut.layer} row-wise, or column-wise with a gather"
            )
        return [None if dim is None else SlicedValue(dim, cut.layer) for dim in found]

    def _result(self, node: ExportedNode) -> tuple[int, ...]:
        if not node.results:
            raise _Unknown
        return self.shape(NodeResult(node.results[0]))

    def _viewed(
        self, node: ExportedNode, kind: str, states: Sequence[tuple[NodeResult, State]], state: SlicedValue
    ) -> State | list[State]:
        shape, result = self.shape(states[0][0]), self._result(node)
        found = merged(shape, result, state.dim)
        if found is None:
            return self._on_slices(node, kind, states)
        if result[found] % self.parts and result[found] != shape[state.dim]:
            raise _Wrong(
                f"the result of {state.layer} is viewed as {result}, and {self.parts} ranks do not divide the "
                f"{result[found]} of dimension {found}: choose ranks that divide it, or a layer each for query, key "
                "and value"
            )
        return SlicedValue(found, state.layer)

    def _elementwise(self, node: ExportedNode, states: Sequence[tuple[NodeResult, State]]) -> State:
        rank = len(self._result(node))
        found: SlicedValue | None = None
        for value, state in states:
            if state is not None:
                found = found or SlicedValue(state.dim + rank - len(self.shape(value)), state.layer)
        assert found is not None
        for value, state in states:
            shape = self.shape(value)
            dim = found.dim - rank + len(shape)
            own = self.parameters.get(value.name, "")
            if dim < 0 or shape[dim] == 1:
                self._check_summed(own, found)
                continue
            if own and state is None:
                style = self.styles.get(own)
                if style is not None and style.weight in (OUT, OPEN):
                    continue
                raise _Wrong(f"every rank holds all of {own}, but a slice of the result of {found.layer}: shard both")
            if state is None or state.dim != dim:
                raise _Wrong(
                    f"slices of the result of {found.layer} are combined with a tensor that every rank holds whole: "
                    f"make {found.layer} row-wise, or column-wise with a gather"
                )
        return found

    def _norm(self, node: ExportedNode, given: Mapping[str, Argument]) -> State:
        value = given.get("input", given.get("self"))
        state, rank = self.of(value), len(self.shape(value))
        sizes = given.get("normalized_shape", ())
        if state is None:
            own = given.get("weight")
            style = self.styles.get(self.parameters.get(own.name, "")) if isinstance(own, NodeResult) else None
            if style is not None and style.takes == SEQUENCE:
                raise _Wrong(f"{node.scope} is {style.name}, but its input is not sharded along dimension 1: the layer "
                             "before it must give Shard(1)")  # fmt: skip
            return None
        if state.dim >= rank - (len(sizes) if isinstance(sizes, tuple) else 1):
            raise _Wrong(f"{node.scope} normalises over features of which {state.layer} leaves each rank a slice: "
                         "every rank would have another mean")  # fmt: skip
        for name in ("weight", "bias"):
            own = given.get(name)
            if isinstance(own, NodeResult):
                self._check_summed(self.parameters.get(own.name, ""), state)
        return state

    def _check_summed(self, parameter: str, cut: SlicedValue) -> None:
        """Raise if every rank has the gradient of a parameter for its own slice alone."""
        style = self.styles.get(parameter)
        if parameter and (style is None or not (style.sums_gradient or style.weight == OPEN)):
            layer = parameter.rpartition(".")[0] or parameter
            raise _Wrong(
                f"the gradient of {parameter} is never summed: {layer} reads only the slice that {cut.layer} "
                "leaves a rank: make it sequence_parallel or replicated_with_grad_allreduce"
            )

    def _reduced(
        self, node: ExportedNode, given: Mapping[str, Argument], value: NodeResult, state: SlicedValue
    ) -> State:
        rank = len(self.shape(value))
        dims = given.get("dim")
        named = dims if isinstance(dims, tuple) else (dims,)
        if any(dim is None or (isinstance(dim, int) and dim % rank == state.dim) for dim in named or (None,)):
            raise _Wrong(f"a reduction reads all of the result of {state.layer}, which is sharded: gather it first")
        if len(self._result(node)) == rank:
            return state
        return SlicedValue(state.dim - sum(isinstance(d, int) and d % rank < state.dim for d in named), state.layer)

    def _attention(self, node: ExportedNode, given: Mapping[str, Argument]) -> State:
        states = {name: self.of(given[name]) for name in ("query", "key", "value")}
        cuts = {name: state for name, state in states.items() if state is not None}
        if len(cuts) < 3 or len({state.dim for state in cuts.values()}) > 1:
            state = next(iter(cuts.values()))
            others = [name for name in states if name not in cuts] or ["the others"]
            raise _Wrong(f"attention reads slices of {state.layer}, but all of {' and '.join(others)}: shard query, "
                         "key and value alike")  # fmt: skip
        state = cuts["query"]
        if state.dim != 1:
            raise _Wrong(f"attention reads slices along dimension {state.dim} of the result of {state.layer}, which "
                         "are not heads")  # fmt: skip
        return state


class _Unknown(Exception):
    """Nothing is known of a value."""


class _Wrong(Exception):
    """The plan is wrong here."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.text = text


def _result_state(style: Style, last: int, layer: str) -> State:
    """Return the state of a layer's result, by its style; a DTensor needs none."""
    if not style.is_local:
        raise _Unknown
    return None if style.gives in ("", WHOLE) else SlicedValue(1 if style.gives == SEQUENCE else last, layer)


def _renamed_text(value: Argument, names: Mapping[str, str]) -> str:
    """Return the text of an argument with other names."""
    if isinstance(value, tuple):
        return f"({','.join(_renamed_text(each, names) for each in value)})"
    return f"%{names[value.name]}" if isinstance(value, NodeResult) else repr(value)
