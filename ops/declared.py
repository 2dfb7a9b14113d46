"""Operator classes declare these facts of themselves: sharding and other forms, memory, kernels, names in scripts.

An operator's class assigns what is otherwise with it, as `cuda = "{0} * {0}"`: it inherits all of these from `Op`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Self

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout
from mspc.ir.types import TensorType


class Sharding:
    """How an operator is sharded, and what follows for its results.

    Class attributes:
        reduction: how results combine when a reduced factor is sharded.
        linear_in: inputs in each of which it is linear, the others held fixed: a partial sum in one may pass through.
        additive: the result is a sum of the inputs, or they side by side: partial sums over the same axes pass.
        operandwise: the result combines one idempotent `reduction` (all, any, max, min) per operand: every operand
            may be sharded in its own way, and the result is partial over all their axes.
        followers: operands that are sharded as the others say, where a strategy does not shard them.
        follows_neighbours: it only moves data, so that left unset it is sharded as the operators around it.
        exchanged: operands of which ranks exchange the rows that others name, whatever the rule gathers: a copy that
            the rule asks for is nobody else's.
        bordered: see `Op.moved_bytes`.
        distributions: operands whose rows sum to 1, which get no gradient.
        is_several: stands for several operators in every mode; `decompose` gives them.
        is_collective: ranks run it together: a `Collective`.
        constrains: the result is operand 0, and the strategy says how it is to be sharded; gone once that is decided.
        requests: names of attached attributes (`add_prim_attr`) that `decompose` carries out; see `Op.asks`.
        joins: how its results over groups of its operands give that over all of them ("sum", "prod", "max", "min",
            "all", "any"), in whatever groups they are, or that they lie "beside" each other along `axis`; "" where they
            do not. Over one operand it is that operand, unless it goes operandwise or beside.
        sums_of_rows: of what `over_all_ranks` changes, results that are sums over a rank's own rows, added up later.
    """

    reduction: ClassVar[str] = "sum"
    linear_in: ClassVar[tuple[int, ...]] = ()
    additive: ClassVar[bool] = False
    operandwise: ClassVar[bool] = False
    followers: ClassVar[tuple[int, ...]] = ()
    follows_neighbours: ClassVar[bool] = False
    exchanged: ClassVar[tuple[int, ...]] = ()
    bordered: ClassVar[int | None] = None
    distributions: ClassVar[tuple[int, ...]] = ()
    is_several: ClassVar[bool] = False
    is_collective: ClassVar[bool] = False
    constrains: ClassVar[bool] = False
    requests: ClassVar[tuple[str, ...]] = ()
    joins: ClassVar[str] = ""
    sums_of_rows: ClassVar[tuple[int, ...]] = ()


class MemoryEffects:
    """What an operator does to the memory of its operands and results.

    Class attributes:
        has_side_effect: must run even if nobody reads the result (it updates, dumps, or other ranks wait for it).
        mutates: indices of the inputs (parameters) that the operator overwrites.
        updates_aside: it runs for its result, in the forward graph, and overwrites them beside: running statistics.
        keeps_narrow: indices of inputs that may be narrower than what it overwrites; all others are widened.
        copied: indices of overwritten inputs whose new value `launch` also writes to other places: its last argument,
            {index: Copy}.
        neutral: for an operator that changes parameters, values of operands with which it changes nothing, by the
            operand's index; None stands for the parameter's own value. Empty where there are none.
        in_place: `kernel_into` may write to an operand of the result's type.
        in_place_of: of an `in_place` operator the operands to which it may, where these are not all.
        is_view: the result is the memory of operand 0, its elements in their order, in another shape at most: nothing
            has to run. Of a tuple it is the memory of its elements.
        reshapes: a view whose result is a tensor of operand 0's elements in another shape, whatever that is.
        may_alias: `run` on NumPy may return an operand itself or a view of one, as slices are; `is_view` says it too.
            All other results, but for those of updates, are arrays that share memory with no operand.
        moves: every element of a result is one of an operand's, whatever their element type is: a cast may come before
            or behind.
        selects: of operand 0 it reads those elements alone that its result holds, as a lookup of rows does.
        packs: so many elements of the result are one in MindSpore: a Reshape to so many times fewer leaves them, last.
    """

    has_side_effect: ClassVar[bool] = False
    mutates: ClassVar[tuple[int, ...]] = ()
    updates_aside: ClassVar[bool] = False
    keeps_narrow: ClassVar[tuple[int, ...]] = ()
    copied: ClassVar[tuple[int, ...]] = ()
    neutral: ClassVar[Mapping[int, float | None]] = {}
    in_place: ClassVar[bool] = False
    in_place_of: ClassVar[tuple[int, ...]] = ()
    is_view: ClassVar[bool] = False
    reshapes: ClassVar[bool] = False
    may_alias: ClassVar[bool] = False
    moves: ClassVar[bool] = False
    selects: ClassVar[bool] = False
    packs: ClassVar[int] = 1


class KernelTraits:
    """How an operator is computed, and how that is tested.

    Class attributes:
        any_types: `kernel_into` takes operands and results of any element types, which may differ.
        widens: kernels get Float16 and BFloat16 as Float32; False where data are moved, or it says how it computes.
        takes_complex: it computes with complex numbers, too.
        takes_bool: it computes with Bool, too.
        seeds: names of the two fields that say what a random operator draws; both 0: nobody has chosen.
        runs_on_host: its kernel takes arrays of NumPy alone: it prints, writes a file, or is the script's own. On a GPU
            the step waits for it.
        waits: its kernel of arrays waits for numbers of theirs, so that no CUDA graph can hold what it does on a GPU.
        host_reads: operands whose elements the host has to know on a GPU to launch it; see `Device.asking`.
        cuda: C++ expression of one element of the result, for operators that work element by element: `{0}`, `{1}`
            are the operands' elements, widened as `computing_type` says; `T` is the computing type of operand 0, `R`
            that of the result; `{i}` is the number of the element, `{s}` that of the step. "" where there is none.
        row_lines: for operators that go along rows, what they are as lines of a fused operator (`ops/fused/body.py`),
            of which the last is the result: `x0` is operand 0, and `AXES` stands for the attributes of reductions. See
            `Op.row_axes`.
        takes_all_bits: an operand that is rounded otherwise changes the result wholly, as with equality.
        wants_channels_last: it is faster on images whose channels come last; passes bring them there (`Op.reordered`).
        work: the rates of its `operations`, as machines name them.
        traffic: the rates of the bytes that it moves, where machines have some of their own.
        samples: inputs for the generated tests.
    """

    any_types: ClassVar[bool] = False
    widens: ClassVar[bool] = True
    takes_complex: ClassVar[bool] = False
    takes_bool: ClassVar[bool] = True
    seeds: ClassVar[tuple[str, ...]] = ()
    runs_on_host: ClassVar[bool] = False
    waits: ClassVar[bool] = False
    host_reads: ClassVar[tuple[int, ...]] = ()
    cuda: ClassVar[str] = ""
    row_lines: ClassVar[tuple[str, ...]] = ()
    takes_all_bits: ClassVar[bool] = False
    wants_channels_last: ClassVar[bool] = False
    work: ClassVar[str] = "products"
    traffic: ClassVar[str] = ""
    samples: ClassVar[Sequence[Any]] = ()


class Script:
    """How scripts have an operator, and the text form.

    Class attributes:
        arguments: names that a user's constructor has, in their order, where they are not the fields': "name", or
            "name=field" for a field of another name. The other fields are given by keyword.
        operand_names: of a `call` with more than inputs.
        sequences: of fields that users give as a list alone, or as a tuple alone, that type; said where it is called.
        checks_where_called: what a user gave as fields is checked by `infer`, not where the operator is made.
        omitted: names of fields that the text leaves out while they have their default.
    """

    arguments: ClassVar[tuple[str, ...]] = ()
    operand_names: ClassVar[tuple[str, ...]] = ()
    sequences: ClassVar[Mapping[str, type]] = {}
    checks_where_called: ClassVar[bool] = False
    omitted: ClassVar[tuple[str, ...]] = ()


@dataclass(frozen=True, slots=True)
class UnevenWork:
    """What ranks do inside of an operator beside even shares. busiest: how many times the mean over all ranks the one
    computes that has the most to do. operations: floating-point operations of products that it does more than the mean.
    mesh, axes: `moved_bytes` are exchanged along these axes of it. rounds: exchanges that follow one another."""

    busiest: float = 1.0
    operations: float = 0.0
    mesh: tuple[int, ...] = ()
    axes: Axes = ()
    rounds: int = 0


EVEN = UnevenWork()


class OtherForms:
    """An operator may have other forms, which compute the same and have another rule, so that a search has more to
    choose from; what ranks do inside of a form may differ from rank to rank."""

    def other_form(self, types: Sequence[TensorType], ranks: int) -> Self | None:
        """The form with another rule, for operands of these types (global), by which so many ranks may shard it, too;
        None where there is none."""
        return None

    def in_form(self, layouts: Sequence[Layout]) -> Self:
        """The form whose rule lets operands lie so."""
        return self

    def like_forward(self, forward: object) -> Self:
        """A gradient's operator in the form of the one that it differentiates."""
        return self

    def uneven(self, types: Sequence[TensorType], layouts: Sequence[Layout]) -> UnevenWork:
        """What ranks do beside even shares, for operands of these types (global) and layouts."""
        return EVEN
