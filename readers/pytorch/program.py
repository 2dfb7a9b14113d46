"""An exported program of PyTorch as data: its nodes, what goes in and comes out, and where its weights lie.

Names are those of the file: a node's kind and the names of its arguments are ATen's (`aten.linear.default`, `input`,
`weight`, `bias`), a parameter's is its module's (`model.layers.0.self_attn.q_proj.weight`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import field

from mspc.checkpoint.reading import Checkpoint
from mspc.ir.late_dataclass import dataclass
from mspc.ir.location import Frames, Location
from mspc.ir.types import DType
from mspc.readers.pytorch.expressions import Expression, shown

OWN = re.compile(r"(^|-packages[/\\]|pytorch[/\\])torch[/\\]|^<")
"""Files of PyTorch, installed or in its source tree, and code without a file. A user's folder may be called torch."""


@dataclass(frozen=True, slots=True)
class NodeResult:
    """An operand that is a value of the graph: the result of a node, or an input."""

    name: str


@dataclass(frozen=True, slots=True)
class SymbolicSize:
    """A number that depends on symbols which have no value yet, as `2*s77 + 1`."""

    expression: Expression

    def __str__(self) -> str:
        return shown(self.expression)


@dataclass(frozen=True, slots=True)
class MemoryFormat:
    """How the dimensions of an image lie in memory, by PyTorch's name: `contiguous_format`, `channels_last`."""

    name: str


@dataclass(frozen=True, slots=True)
class StorageLayout:
    """How the elements of a tensor are stored, by PyTorch's name: `strided`, `sparse_coo`."""

    name: str


@dataclass(frozen=True, slots=True)
class Device:
    """Where a tensor lies, by PyTorch's name: `cpu`, `cuda:0`, `meta`."""

    name: str


@dataclass(frozen=True, slots=True)
class ExportedType:
    """A tensor's element type and shape; requires_grad: whether its exporter differentiates by it."""

    dtype: DType
    shape: tuple[int | SymbolicSize, ...]
    requires_grad: bool = False


@dataclass(frozen=True, slots=True)
class ExportedNode:
    """One call.

    target: the kind, `aten.linear.default`, `_operator.mul` or `higher_order.cond`. arguments: those that are given,
    by the names of the kind's schema and in its order. results: the names of what it computes; of a list of tensors,
    each has one. types: of the results, None for a number. frames: the call stack, the innermost first. scope: the path
    of the module that called it, "" for the outermost one. modules: the classes on that path, the outermost first.
    given_by_name: how many of the arguments, the last ones, were given by name.
    """

    name: str
    target: str
    arguments: tuple[tuple[str, Argument], ...]
    results: tuple[str, ...]
    types: tuple[ExportedType | None, ...]
    frames: Frames = ()
    scope: str = ""
    modules: tuple[str, ...] = ()
    given_by_name: int = 0

    @property
    def user_line(self) -> Location | None:
        """The innermost line of its call stack that is not PyTorch's own; None where it has none."""
        return next((frame for frame in self.frames if not OWN.search(frame.file)), None)


@dataclass(frozen=True, slots=True)
class ExportedGraph:
    """Nodes in the order of their calls. inputs: names and types (None for a number). outputs: what it gives."""

    nodes: tuple[ExportedNode, ...]
    inputs: tuple[tuple[str, ExportedType | None], ...]
    outputs: tuple[Argument, ...]


Argument = (
    NodeResult
    | SymbolicSize
    | ExportedGraph
    | int
    | float
    | bool
    | str
    | complex
    | None
    | DType
    | MemoryFormat
    | StorageLayout
    | Device
    | tuple["Argument", ...]
)
"""What a node is called with; a graph is what a control operator runs."""


@dataclass(frozen=True, slots=True)
class ProgramInput:
    """One input of the program.

    kind: "user", "parameter", "buffer", "constant" (a tensor of the module that is none of these), or "value": an
    argument that was no tensor, whose value is `value`. name: of the value in the graph. qualified: the module's name
    of a parameter, buffer or constant; of a user's input the name of the argument, `input_ids`. trainable: a parameter
    that the exporter differentiates by. persistent: a buffer that checkpoints hold.
    """

    kind: str
    name: str
    qualified: str
    type: ExportedType | None
    trainable: bool = False
    persistent: bool = True
    value: Argument = None


@dataclass(frozen=True, slots=True)
class ProgramOutput:
    """One output of the program.

    kind: "user", "loss", "buffer_mutation", "parameter_mutation", "user_input_mutation", "gradient_to_parameter" or
    "gradient_to_user_input". value: what it is. target: of the others than "user" the name of the buffer, parameter or
    input (as the graph calls it); of a user's output the path in what `forward` returns, as `loss`, `0` or
    `past_key_values.0.1`, "" where that is the tensor itself.
    """

    kind: str
    value: Argument
    target: str = ""


@dataclass(frozen=True)
class Part:
    """A slice of a parameter: of the one of this name, from `begin` to `end` of a dimension."""

    whole: str
    dim: int
    begin: int
    end: int

    def of(self, slices: Sequence[slice], rank: int) -> tuple[slice, ...]:
        """Slices of the part as slices of the whole parameter, which has so many dimensions."""
        found = list(slices) or [slice(None)] * rank
        own = found[self.dim]
        begin = own.start or 0
        end = self.end - self.begin if own.stop is None else own.stop
        found[self.dim] = slice(self.begin + begin, self.begin + end)
        return tuple(found)


Range = tuple[int | None, int | None]
"""The least and the most that a symbol may be; None: there is no such limit."""


@dataclass(frozen=True)
class ExportedProgram:
    """A program as its file has it.

    name: what messages call it. graph: its nodes. inputs: in the order of the graph's. ranges: what every symbol may
    be. examples: what a symbol was when the program was exported. weights: the
    tensors of parameters, buffers and constants by their qualified names, which are read when they are needed; empty
    where the program was exported without any. same: tensors that are another one under a second name, as tied weights
    are, with the name of that. schema: the version of the format. torch: that of PyTorch. own_plan: what the model
    itself says of its layers, styles by patterns; files have none. parts: parameters that are slices of one of the
    module's.
    """

    name: str
    graph: ExportedGraph
    inputs: tuple[ProgramInput, ...]
    outputs: tuple[ProgramOutput, ...]
    weights: Checkpoint
    same: Mapping[str, str] = field(default_factory=dict[str, str])
    ranges: Mapping[str, Range] = field(default_factory=dict[str, Range])
    examples: Mapping[str, int] = field(default_factory=dict[str, int])
    schema: tuple[int, int] = (0, 0)
    torch: str = ""
    own_plan: Mapping[str, str] = field(default_factory=dict[str, str])
    parts: Mapping[str, Part] = field(default_factory=dict[str, "Part"])
