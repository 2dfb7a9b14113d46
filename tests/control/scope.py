"""The names that a line of a random program may use, and the lines that are written so far."""

import contextlib
import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field, replace

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Variable:
    """A name of the program.

    kind: "float" (a tensor in Float64), "int" (a tensor without dimensions), "number" (a Python int), "flag" (a tensor
    of one bool), "turn" (what `for` counts by: an int of Python, or a tensor of MindSpore's), "list" and "tuple" of
    float tensors. shapes: of its tensors. fixed: not assigned again.
    """

    name: str
    kind: str
    shapes: tuple[Shape, ...] = ()
    fixed: bool = False


@dataclass(frozen=True)
class Helper:
    """A function of a float tensor and an int, which returns another float tensor of the same shape.

    bound: whether it is called as a method, so that only methods call it. deep: whether it calls itself, as often as
    its int says; then that is small.
    """

    name: str
    shape: Shape
    bound: bool = False
    deep: bool = False


@dataclass
class Loop:
    """An enclosing loop. after_jump: the lines that must run ahead of `continue`."""

    may_continue: bool
    turns: int


@dataclass(frozen=True)
class Sizes:
    """The sizes of all tensors: `rows`, and (rows, columns)."""

    rows: int = 4
    columns: int = 3

    @property
    def shapes(self) -> tuple[Shape, ...]:
        return (), (self.rows,), (self.rows, self.columns)


@dataclass
class Scope:
    """A function that is being written.

    lines: of its body. variables: what a line may name here. loops: those around it. depth: how many blocks are around
    it. returns: the types that `return` has, () where a block may not return. method: whether it has `self`. layers:
    the shape that its list of cells takes, if it has one. deepest: how deep blocks may be nested.
    """

    rng: random.Random
    sizes: Sizes
    method: bool = False
    layers: Shape | None = None
    deepest: int = 3
    returns: tuple[Variable, ...] = ()
    helpers: list[Helper] = field(default_factory=list[Helper])
    primitives: dict[str, tuple[Shape, ...]] = field(default_factory=dict[str, tuple[Shape, ...]])
    parameters: dict[str, Shape] = field(default_factory=dict[str, Shape])
    states: dict[str, Variable] = field(default_factory=dict[str, Variable])
    variables: list[Variable] = field(default_factory=list[Variable])
    lines: list[str] = field(default_factory=list[str])
    loops: list[Loop] = field(default_factory=list[Loop])
    depth: int = 0
    used: set[str] = field(default_factory=set[str])

    def say(self, line: str) -> None:
        self.lines.append("    " * self.depth + line)

    def named(self, start: str) -> str:
        """A name that the function does not have."""
        number = 1 + sum(name.startswith(start) for name in self.used)
        name = f"{start}{number}"
        self.used.add(name)
        return name

    def add(self, name: str, kind: str, shapes: Sequence[Shape] = (), fixed: bool = False) -> Variable:
        variable = Variable(name, kind, tuple(shapes), fixed)
        self.variables.append(variable)
        return variable

    def of_kind(self, *kinds: str, assigned: bool = False) -> list[Variable]:
        return [v for v in self.variables if v.kind in kinds and not (assigned and v.fixed)]

    @property
    def turns(self) -> int:
        """How often a line here runs at most."""
        total = 1
        for loop in self.loops:
            total *= loop.turns
        return total

    @contextlib.contextmanager
    def block(self) -> Generator[None]:
        """Lines that are written inside stand in a block; its own variables end with it."""
        known = list(self.variables)
        self.depth += 1
        yield
        self.depth -= 1
        self.variables = known

    @contextlib.contextmanager
    def loop(self, loop: Loop) -> Generator[None]:
        """A block of a loop."""
        self.loops.append(loop)
        with self.block():
            yield
        self.loops.pop()

    @contextlib.contextmanager
    def kept(self, *variables: Variable) -> Generator[None]:
        """Lines that are written inside do not assign these variables."""
        self.variables = [replace(v, fixed=True) if v in variables else v for v in self.variables]
        yield
        back = {v.name: v for v in variables}
        self.variables = [back.get(v.name, v) for v in self.variables]
