"""The text of a network as a user writes one, while it grows: weights and constants of `__init__`, lines of
`construct`.

Sizes are few, so that networks share the kernels that are compiled for their shapes.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Generator, Sequence
from typing import NamedTuple

BATCH = 2
HEAD = '''"""Network {seed} of tests/fused_networks.py."""

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops

FLOAT, HALF = ms.{float}, ms.{half}
random = np.random.default_rng({seed})
ms.set_seed({short})


def drawn(*shape, low=-1.0, high=1.0):
    return Tensor(random.uniform(low, high, shape), FLOAT)


def whole(*shape, end):
    return Tensor(random.integers(0, end, shape).astype(np.int32))


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
'''


class Written(NamedTuple):
    """A value of the network: the name that it has in `construct`, its sizes."""

    name: str
    shape: tuple[int, ...]


class Script:
    """The lines of a network so far.

    rng: draws all choices. kind: the name of the element type that is computed in now, FLOAT or HALF.
    precise: whether nothing is in halves. jumps: whether another rounding may choose another element, whose gradient
    then is another's.
    made: lines of `__init__`. lines: lines of `construct`. feeds: (name, expression) of its arguments. seen: what the
    pieces so far have given.
    """

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.kind = "FLOAT"
        self.precise = self.rng.random() < 0.75
        self.jumps = False
        self.made: list[str] = []
        self.lines: list[str] = []
        self.feeds: list[tuple[str, str]] = []
        self.seen: list[Written] = []
        self._weights: dict[str, str] = {}
        self._count = 0

    # Lines of `__init__`

    def weight(self, *shape: int, low: float | None = None, high: float | None = None) -> str:
        """A weight's expression, in the type that is computed in; small enough for sums to keep their size."""
        bound = round((shape[-2] if len(shape) > 1 else 2) ** -0.5, 3)
        low, high = (-bound, bound) if low is None or high is None else (low, high)
        drawn = f"drawn({', '.join(map(str, shape))}, low={low}, high={high})"
        same = [name for name, text in self._weights.items() if text == drawn]
        if same and self.rng.random() < 0.15:
            name = self.rng.choice(same)
        else:
            name = self.named("w")
            self._weights[name] = drawn
            self.made.append(f'self.{name} = Parameter({drawn}, name="{name}")')
        return f"self.{name}" if self.kind == "FLOAT" else f"ops.cast(self.{name}, HALF)"

    def constant(self, array: str, kind: str = "") -> str:
        """A constant tensor's expression; `kind` names its element type where it is not the array's own."""
        name = self.named("c")
        self.made.append(f"self.{name} = Tensor({array}{', ' if kind else ''}{kind})")
        return f"self.{name}"

    def cell(self, text: str) -> str:
        name = self.named("cell")
        self.made.append(f"self.{name} = {text}")
        return f"self.{name}"

    def feed(self, array: str) -> str:
        """The name of another argument of the network."""
        name = self.named("given")
        self.feeds.append((name, array))
        return name

    # Lines of `construct`

    def say(self, expression: str, shape: Sequence[int]) -> Written:
        """A line that gives an expression a name."""
        name = self.named("x")
        self.lines.append(f"{name} = {expression}")
        return Written(name, tuple(shape))

    def named(self, start: str) -> str:
        self._count += 1
        return f"{start}{self._count}"

    @contextlib.contextmanager
    def in_halves(self) -> Generator[None]:
        """Lines that are written inside compute in halves."""
        self.kind = "HALF"
        yield
        self.kind = "FLOAT"

    def cast(self, x: Written, kind: str) -> Written:
        text = self.rng.choice((f"ops.cast({x.name}, {kind})", f"{x.name}.astype({kind})"))
        return self.say(text, x.shape)

    def text(self, seed: int, kinds: tuple[str, str], ending: str) -> str:
        """The whole script; `ending` stands behind the class. kinds: the element types FLOAT and HALF."""
        head = HEAD.format(seed=seed, short=seed % 1000, float=kinds[0], half=kinds[1])
        made = "".join(f"        {line}\n" for line in self.made)
        names = ", ".join(name for name, _ in self.feeds)
        lines = "".join(f"        {line}\n" for line in self.lines)
        fed = "".join(f"    {array},\n" for _, array in self.feeds)
        return f"{head}{made}\n    def construct(self, {names}):\n{lines}\n\n{ending}\narguments = [\n{fed}]\n"
