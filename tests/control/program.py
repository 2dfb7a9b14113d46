"""Random programs with nested control flow, as people write them: a script's text, drawn from a seed.

The text runs under any names `ms`, `nn`, `ops`, `np`, `Tensor` and `Parameter`, so that plain Python judges it
(`tests/control/plain.py`, `tests/control/differentiated.py`). It makes `net`, a cell or a function, its `arguments`,
and `total`, a sum of its float results, which is differentiated.
"""

import random
from collections.abc import Sequence

from tests.control.expressions import PRIMITIVES, floats
from tests.control.scope import Helper, Scope, Shape, Sizes, Variable
from tests.control.statements import LAYERS, body, give

HEAD = '''"""Program {seed} of `python -m tests.control_programs`."""

import numpy as np

import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops

'''
DEFINITIONS = '''FLOAT, INT = ms.float64, ms.{int}
random = np.random.default_rng({seed})


def drawn(*shape):
    return Tensor(random.uniform(-1.0, 1.0, shape), FLOAT)


point, line, table = drawn(), drawn({rows}), drawn({rows}, {columns})

'''
FLOATS, INTS = ("x", "y", "s"), ("n", "m")
STEPS = 3
"""On a GPU the first step makes launches one by one, the second captures them, the others replay that."""


class ControlProgram:
    """A random program.

    ranks: how many its strategies are for. depth: how deep blocks are nested. draw: which of a seed's programs it is:
    some are no use. head: its imports. text: what stands behind them. states: the parameters that it updates. cell:
    whether it is a cell.
    """

    def __init__(self, seed: int, ranks: int = 1, depth: int = 3, draw: int = 0) -> None:
        self.rng = rng = random.Random(f"{seed} {draw}")
        self.seed, self.ranks, self.depth = seed, ranks, depth
        self.sizes = Sizes() if ranks == 1 else Sizes(max(4, ranks), 4)
        self.cell = rng.random() < 0.7
        self.int = rng.choice(("int32", "int64"))
        self.returns = self._returns()
        self.helpers: list[Helper] = []
        self.parameters: dict[str, Shape] = {}
        self.states: dict[str, Variable] = {}
        self.primitives: dict[str, tuple[Shape, ...]] = {}
        self.made: list[str] = []
        self.layers = rng.choice(self.sizes.shapes) if self.cell and rng.random() < 0.3 else None
        if self.cell:
            self._parameters()
        if self.cell or ranks > 1:
            self._primitives()
        self.head = HEAD.format(seed=seed)
        self.text = self._text()

    def _returns(self) -> tuple[Variable, ...]:
        rng = self.rng
        found = [Variable("", "float", (rng.choice(self.sizes.shapes),))]
        while rng.random() < 0.4 and len(found) < 3:
            kind = rng.choice(("float", "float", "int"))
            found.append(Variable("", kind, (rng.choice(self.sizes.shapes) if kind == "float" else (),)))
        return tuple(found)

    def _parameters(self) -> None:
        none, row, _ = self.sizes.shapes
        square = (self.sizes.columns, self.sizes.columns)
        for name, shape in (("w", square), ("b", row), ("g", none)):
            if name == "w" or self.rng.random() < 0.5:
                self.parameters[name] = shape
                self.made.append(f'self.{name} = Parameter(drawn({_listed(shape)}), name="{name}")')
        if self.rng.random() < 0.4:
            shape = self.rng.choice((none, row))
            self.states["p"] = Variable("p", "float", (shape,))
            self.made.append(f'self.p = Parameter(drawn({_listed(shape)}), name="p", requires_grad=False)')
        if self.rng.random() < 0.3:
            self.states["turns"] = Variable("turns", "int", ((),))
            self.made.append('self.turns = Parameter(Tensor(0, INT), name="turns", requires_grad=False)')

    def _primitives(self) -> None:
        """Operators, most with a strategy where there are several ranks."""
        _, row, matrix = self.sizes.shapes
        prefix = "self." if self.cell else ""
        for _ in range(self.rng.randint(2, 4)):
            known = {name.rpartition("_")[2] for name in self.primitives}
            # One product only: two of them that shard the weights otherwise are refused.
            usable = [k for k in PRIMITIVES if k != "matmul" or (self.cell and k not in known)]
            kind = self.rng.choice(usable)
            shape = matrix if kind == "matmul" else self.rng.choice((row, matrix))
            name = f"op{len(self.primitives) + 1}_{kind}"
            self.primitives[name] = (shape, *((shape,) if kind in ("add", "mul", "sub") else ()))
            text = f"{prefix}{name} = ops.{PRIMITIVES[kind]}()"
            if self.ranks > 1 and self.rng.random() < 0.8:
                text += f".shard({self._strategy(kind, shape)})"
            self.made.append(text)

    def _strategy(self, kind: str, shape: Shape) -> str:
        """How operands are sharded: into numbers of slices that divide their sizes and the ranks."""
        free, slices = self.ranks, []
        for size in shape:
            numbers = [n for n in (1, 2, 4, 8) if size % n == 0 and free % n == 0]
            slices.append(self.rng.choice(numbers))
            free //= slices[-1]
        if kind == "matmul":
            columns = self.rng.choice([n for n in (1, 2, 4) if self.sizes.columns % n == 0 and free % n == 0])
            return f"({tuple(slices)}, {(slices[1], columns)})"
        second = f", {tuple(slices)}" if kind in ("add", "mul", "sub") else ","
        return f"({tuple(slices)}{second})"

    # Functions

    def _text(self) -> str:
        text = DEFINITIONS.format(
            int=self.int, seed=self.seed, rows=self.sizes.rows, columns=self.sizes.columns
        )  # fmt: skip
        if not self.cell:
            text += "".join(f"{line}\n" for line in self.made)
        methods: list[str] = []
        for number in range(self.rng.choice((0, 0, 1, 1, 2))):
            bound = self.cell and self.rng.random() < 0.5
            lines = self._helper(f"helper{number + 1}", bound)
            if bound:
                methods += ["", *lines]
            else:
                text += "\n\n" + "".join(f"{line}\n" for line in lines)
        if self.layers is not None:
            text += "\n\n" + "".join(f"{line}\n" for line in self._layer())
        main = self._main()
        if self.cell:
            lines = ["class Net(nn.Cell):", "    def __init__(self):", "        super().__init__()"]
            lines += [f"        {line}" for line in self.made]
            lines += [f"    {line}".rstrip() for line in (*methods, "", *main)]
            lines += ["", "", "net = Net()"]
        else:
            lines = ["@ms.jit", *main, ""]
        text += "\n\n" + "".join(f"{line}\n" for line in lines)
        return text + self._ending()

    def _scope(self, method: bool) -> Scope:
        scope = Scope(self.rng, self.sizes, method=method, helpers=list(self.helpers), depth=1, deepest=self.depth)
        if method:
            scope.parameters, scope.states, scope.layers = self.parameters, self.states, self.layers
        if method or not self.cell:
            scope.primitives = self.primitives
        return scope

    def _helper(self, name: str, bound: bool) -> list[str]:
        """The lines of a function of a tensor and a counter, which calls those that are there already."""
        shape = self.rng.choice(self.sizes.shapes)
        scope = self._scope(bound)
        scope.add("given", "float", (shape,))
        scope.add("count", "turn", fixed=True)
        self._add_constants(scope)
        if self.rng.random() < 0.4:
            scope.returns = (Variable("", "float", (shape,)),)
        deep = self.rng.random() < 0.15
        if deep:
            scope.say("if count <= 0:")
            scope.say("    return given")
        body(scope, self.rng.randint(1, 2))
        result = f"ops.tanh({floats(scope, shape, 1)})"
        scope.say(f"return {'self.' if bound else ''}{name}({result}, count - 1)" if deep else f"return {result}")
        self.helpers.append(Helper(name, shape, bound, deep))
        return [f"def {name}({'self, ' if bound else ''}given, count):", *scope.lines]

    def _layer(self) -> list[str]:
        """The lines of a cell of which `Net` has a list, and its parameter."""
        assert self.layers is not None
        scope = Scope(self.rng, self.sizes, method=True, helpers=[h for h in self.helpers if not h.bound], depth=2)
        scope.parameters = {"weight": self.layers}
        scope.add("given", "float", (self.layers,))
        scope.add("count", "turn", fixed=True)
        self._add_constants(scope)
        body(scope, 1)
        scope.say(f"return ops.tanh(given * self.weight + {floats(scope, self.layers, 1)})")
        self.made.append(f"self.layers = nn.CellList([Layer() for _ in range({LAYERS})])")
        return [
            "class Layer(nn.Cell):", "    def __init__(self):", "        super().__init__()",
            f'        self.weight = Parameter(drawn({_listed(self.layers)}), name="weight")', "",
            "    def construct(self, given, count):", *scope.lines,
        ]  # fmt: skip

    def _add_constants(self, scope: Scope) -> None:
        for constant, shape in zip(("point", "line", "table"), self.sizes.shapes, strict=True):
            scope.add(constant, "float", (shape,), fixed=True)

    def _main(self) -> list[str]:
        scope = self._scope(self.cell)
        for name, shape in zip(FLOATS, reversed(self.sizes.shapes), strict=True):
            scope.add(name, "float", (shape,))
        for name in INTS:
            scope.add(name, "int")
        if self.rng.random() < 0.6:
            scope.returns = self.returns
        body(scope, self.rng.randint(self.depth, 2 * self.depth))
        scope.returns = self.returns
        give(scope)
        names = ", ".join((*FLOATS, *INTS))
        return [f"def construct(self, {names}):" if self.cell else f"def net({names}):", *scope.lines]

    def _ending(self) -> str:
        none, row, matrix = self.sizes.shapes
        names = ", ".join((*FLOATS, *INTS))
        results = [f"result{i}" for i in range(len(self.returns))]
        parts = [
            f"({name} * {self.rng.choice((0.7, 1.3, 0.9))}).sum()"
            for name, kind in zip(results, self.returns, strict=True)
            if kind.kind == "float"
        ]
        fed = [*(f"drawn({_listed(shape)})" for shape in (matrix, row, none)),
               *(f"Tensor({self.rng.randint(0, 5)}, INT)" for _ in INTS)]  # fmt: skip
        lines = [
            "", "", f"def total({names}):", f"    {', '.join(results)} = net({names})",
            f"    return {' + '.join(parts)}", "", "", f"arguments = [{', '.join(fed)}]",
        ]  # fmt: skip
        return "".join(f"{line}\n" for line in lines)

    def script(self, folder: str, gradients: bool, again: bool = False) -> str:
        """The whole script, which saves what it computes as arrays into a folder, a file for each rank; with `again` a
        file for each of STEPS, before the last of which the network gets other arguments once."""
        write = _saving_steps if again else _saving
        return self.head + self.text + write(folder, self.ranks, list(self.states), self.cell, gradients)


def _listed(shape: Sequence[int]) -> str:
    return ", ".join(map(str, shape))


def _saving(folder: str, ranks: int, states: list[str], cell: bool, gradients: bool) -> str:
    lines = ["", *_results(states)]
    if gradients:
        lines += _gradients(cell)
    where = f'r"{folder}/rank_{{}}.npz".format(ms.communication.get_rank() if {ranks} > 1 else 0)'
    lines.append(f"np.savez({where}, **found)")
    setting = "ms.set_context(mode=ms.GRAPH_MODE)\n"
    if ranks > 1:
        setting += "ms.communication.init()\n"
        setting += 'ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="full_batch")\n'
    return "\n" + setting + "\n".join(lines) + "\n"


def _saving_steps(folder: str, ranks: int, states: list[str], cell: bool, gradients: bool) -> str:
    """On one rank; states are before every step what they were before the first."""
    assert ranks == 1
    held = f"[{', '.join(f'net.{name}' for name in states)}]"
    given = ", ".join((*["arguments"] * (STEPS - 1), "others", "arguments"))
    body = "".join(f"    {line}\n" for line in _results(states))
    text = f"""
ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU")
saved = []
others = [Tensor(-a.asnumpy(), FLOAT) for a in arguments[:{len(FLOATS)}]]
others += [Tensor((a.asnumpy() + 2) % 6, INT) for a in arguments[{len(FLOATS)}:]]


def afresh():
    for state, value in zip({held}, held):
        state.set_data(Tensor(value))


held = [state.asnumpy().copy() for state in {held}]
for arguments in ({given}):
    afresh()
{body}    saved.append(found)
"""
    if gradients:
        body = "".join(f"    {line}\n" for line in _gradients(cell))
        text += f"""
held = [state.asnumpy().copy() for state in {held}]
for found, arguments in zip(saved, ({given})):
    afresh()
{body}"""
    return text + f"""
for step, found in enumerate([each for i, each in enumerate(saved) if i != {STEPS - 1}]):
    np.savez(rf"{folder}/step_{{step}}.npz", **found)
"""


def _results(states: list[str]) -> list[str]:
    """Lines that put into `found` what a step computes."""
    lines = ["results = net(*arguments)", "results = results if isinstance(results, tuple) else (results,)"]
    lines.append('found = {f"result {i}": result.asnumpy() for i, result in enumerate(results)}')
    return [*lines, *(f'found["{name} behind it"] = net.{name}.asnumpy().copy()' for name in states)]


def _gradients(cell: bool) -> list[str]:
    """Lines that put into `found` the gradients of `total`."""
    lines: list[str] = []
    if cell:
        lines += [
            "value, (inputs, weights) = ms.value_and_grad(total, (0, 1, 2), net.trainable_params())(*arguments)",
            'found |= {f"gradient in {w.name}": g.asnumpy() for w, g in zip(net.trainable_params(), weights)}',
        ]
    else:
        lines.append("value, inputs = ms.value_and_grad(total, (0, 1, 2))(*arguments)")
    lines.append('found["total"] = value.asnumpy()')
    return [*lines, 'found |= {f"gradient in {name}": g.asnumpy() for name, g in zip("xys", inputs)}']
