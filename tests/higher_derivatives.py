"""Random programs of derivatives of derivatives beside PyTorch.

Each program has functions of two vectors and a weight, some with branches and loops, and derivatives of these and of
one another up to order 4, requested in every form. It returns several of them, so that one derivative is taken beside
another. PyTorch's `torch.func` computes the same in Float64.
"""

from __future__ import annotations

import importlib.util
import random
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

SIZE, ORDER, TOLERANCE = 4, 4, 1e-9
TERMS = (
    "{0}", "{0}.sin()", "{0}.cos()", "{0}.tanh()", "({0} * {0})", "{0}.sigmoid()", "({0} * 0.3).exp()", "({0} ** 3)",
    "({0} * {0} + 1.0).sqrt()",
)  # fmt: skip
HEAD = '''import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops


class Weight(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(np.array({weight}, np.float64)), name="w")


HELD = Weight()
'''


FORMS = """
grad:
{r} = ms.grad({f}, {p})

inside:
def {r}(x, y):
    return ms.grad({f}, {p})(x, y)

function:
def {r}_sum(x, y):
    return {f}(x, y).sum()


{r} = ms.grad({r}_sum, {p})

jit:
@ms.jit
def {r}(x, y):
    return ms.grad({f}, ({p},))(x, y)[0]

closure:
def {r}(x, y):
    def inner(a):
        return {f}({inner}).sum()
    return ms.grad(inner)({v})

operation:
def {r}(x, y):
    return ops.GradOperation(get_all=True)({f})(x, y)[{p}]

both positions:
def {r}(x, y):
    return ms.grad({f}, (0, 1))(x, y)[{p}]

attribute:
class C{r}(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g = ms.grad({f}, {p})

    def construct(self, x, y):
        return self.g(x, y)


{r} = C{r}()

operation of a cell:
class C{r}(nn.Cell):
    def __init__(self):
        super().__init__()
        self.f = {f}
        self.g = ops.GradOperation(get_all=True)

    def construct(self, x, y):
        return self.g(self.f)(x, y)[{p}]


{r} = C{r}()

value and gradient:
{r}_both = ms.value_and_grad({f}, {p})


def {r}(x, y):
    value, found = {r}_both(x, y)
    return found + value.sum()

sens:
def {r}(x, y):
    return ops.GradOperation(get_all=True, sens_param=True)({f})(x, y, y)[{p}]

weight:
def {r}(x, y):
    return ms.grad({f}, None, HELD.w)(x, y)

input and weight:
def {r}(x, y):
    by_input, (by_weight,) = ms.grad({f}, {p}, [HELD.w])(x, y)
    return by_input * by_weight

argument of another:
def {r}(x, y):
    return ms.grad({f}, (0, 1))(x, x * y)[{p}]

captured:
def {r}(x, y):
    outside = x.sin() * HELD.w

    def inner(a):
        return (outside * {f}({inner})).sum()
    return ms.grad(inner)({v}) + ms.grad(inner, None, HELD.w)({v})

stopped:
def {r}(x, y):
    return ops.stop_gradient({f}(x, y)) * x + {f}(x, y)
"""
"""Ways to request a derivative, by name: {f} is differentiated by argument {p}, which is called {v}, and {r} is the
result."""
TEXTS = dict(re.findall(r"^([a-z ]+):\n(.*?)(?=\n\n[a-z ]+:\n|\Z)", FORMS, re.M | re.S))


def _grad(f: Any, p: int) -> Any:
    import torch

    return torch.func.grad(lambda *a: f(*a).sum(), p)


def _by_sens(f: Any, p: int) -> Any:
    import torch

    return lambda x, y, w: torch.func.vjp(f, x, y, w)[1](y)[p]


def _captured(f: Any, p: int) -> Any:
    def found(*a: Any) -> Any:
        outside = a[0].sin() * a[2]
        return sum(_grad(lambda *b: outside * f(*b), place)(*a) for place in (p, 2))

    return found


MEANINGS: dict[str, Callable[[Any, int], Any]] = {
    "value and gradient": lambda f, p: lambda *a: _grad(f, p)(*a) + f(*a).sum(),
    "sens": _by_sens,
    "weight": lambda f, p: _grad(f, 2),
    "input and weight": lambda f, p: lambda *a: _grad(f, p)(*a) * _grad(f, 2)(*a),
    "argument of another": lambda f, p: lambda x, y, w: _grad(f, p)(x, x * y, w),
    "captured": _captured,
    "stopped": lambda f, p: lambda x, y, w: f(x, y, w).detach() * x + f(x, y, w),
}
"""The same by `torch.func`, of the function and the position; `_grad` for other forms."""


class Program:
    """The program of a seed: its text, and what PyTorch takes its functions for."""

    def __init__(self, seed: int) -> None:
        self.seed, self.random = seed, random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.x, self.y, self.w = (self.numbers.uniform(0.3, 1.2, SIZE).round(3) for _ in range(3))
        self.forms: Counter[str] = Counter()
        self.functions: list[tuple[str, int, Any]] = []
        self.parts = [HEAD.format(weight=self.w.tolist())]
        for number in range(self.random.randint(1, 2)):
            self._function(f"f{number}")
        for number in range(self.random.randint(4, 7)):
            self._derivative(f"g{number}")
        names = self.random.sample(range(len(self.functions)), min(len(self.functions), self.random.randint(3, 5)))
        self.returned = [self.functions[i] for i in names]
        calls = ", ".join(f"{name}(x, y)" for name, _, _ in self.returned)
        self.parts.append(
            "class Net(nn.Cell):\n    def __init__(self):\n        super().__init__()\n        self.held = HELD\n\n"
            f"    def construct(self, x, y):\n        return {calls}\n"
        )
        self.order = max(order for _, order, _ in self.returned)
        self.text = "\n\n".join(part.strip("\n") + "\n" for part in self.parts)

    def _function(self, name: str) -> None:
        lines = self._lines()
        body = "\n".join(f"    {line}" for line in lines)
        if self.random.random() < 0.5:
            self.parts.append(f"def {name}(x, y):\n    w = HELD.w\n{body}\n    return a")
        else:
            inner = "\n".join(f"    {line}" for line in body.splitlines())
            self.parts.append(
                f"class F{name}(nn.Cell):\n    def __init__(self):\n        super().__init__()\n"
                "        self.w = HELD.w\n\n    def construct(self, x, y):\n        w = self.w\n"
                f"{inner}\n        return a\n\n\n{name} = F{name}()"
            )
        scope: dict[str, Any] = {}
        exec(f"def {name}(x, y, w):\n{body}\n    return a", scope)
        self.functions.append((name, 0, scope[name]))

    def _lines(self) -> list[str]:
        """Statements that compute `a` of x, y and w, by methods that PyTorch's tensors have, too."""
        lines = [f"a = {self._term('x')} * {self._term('y')} + {self._term('w')} * x"]
        for _ in range(self.random.randint(1, 2)):
            kind = self.random.choice(("term", "term", "if", "for", "while", "shared"))
            if kind == "term":
                lines.append(f"a = {self._term('a')} * {self._term(self.random.choice('xyw'))} + a")
            elif kind == "shared":
                lines += ["b = a.sin()", "a = b * b * x + a"]
            elif kind == "if":
                bound = round(self.random.uniform(-2, 4), 2)
                lines += [f"if a.sum() > {bound}:", f"    a = {self._term('a')} * x", "else:", "    a = a * y * y"]
            elif kind == "for":
                lines += [f"for _ in range({self.random.randint(2, 3)}):", f"    a = {self._term('a')} * x + y"]
            else:
                lines += ["a = a * 3.0", "while (a * a).sum() > 2.0:", "    a = a.sin() * 0.6 * x.cos() + 0.05 * y"]
        return lines

    def _term(self, of: str) -> str:
        return self.random.choice(TERMS).format(of)

    def _derivative(self, name: str) -> None:
        known = [each for each in self.functions if each[1] < ORDER]
        of, order, meaning = self.random.choice(known[-3:])
        if len(self.functions) > 1 and self.random.random() < 0.15:
            other, its_order, also = self.random.choice(self.functions)
            self.parts.append(f"def {name}(x, y):\n    return {of}(x, y) * {other}(x, y)")
            self.functions.append((name, max(order, its_order), lambda *a: meaning(*a) * also(*a)))
            return
        form, place = self.random.choice(list(TEXTS)), self.random.randint(0, 1)
        self.forms[form] += 1
        inner = ("a, y", "x, a")[place]
        self.parts.append(TEXTS[form].format(r=name, f=of, p=place, v="xy"[place], inner=inner))
        order += form != "stopped"
        self.functions.append((name, order, MEANINGS.get(form, _grad)(meaning, place)))

    def module(self, folder: Path) -> Any:
        """The program as a module of Python."""
        path = folder / f"program_{self.seed}.py"
        path.write_text(self.text)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    def expected(self) -> list[np.ndarray]:
        """Return the results of the program, computed by PyTorch."""
        import torch

        args = [torch.tensor(a, dtype=torch.float64) for a in (self.x, self.y, self.w)]
        return [np.asarray(meaning(*args).detach()) for _, _, meaning in self.returned]


def found(program: Program, folder: Path, way: str) -> list[np.ndarray]:
    """Return the results of the program: as a cell, from functions called one by one, or sharded over 2 ranks."""
    from mspc import Tensor
    from mspc.ir.types import FLOAT64
    from tests.mindspore_api.nn.training import Training

    module = program.module(folder)
    if way == "ranks":
        training = Training(
            module.Net(), [program.x.shape, program.y.shape], 2, "semi_auto_parallel", [FLOAT64, FLOAT64]
        )
        return list(training.run([(program.x, program.y)])[0])
    x, y = Tensor(program.x), Tensor(program.y)
    if way == "functions":
        return [getattr(module, name)(x, y).asnumpy() for name, _, _ in program.returned]
    return [each.asnumpy() for each in module.Net()(x, y)]


WAYS = ("cell", "ranks", "cell", "functions")


def check(seed: int, folder: Path) -> tuple[Program, str]:
    """The program of a seed, and how it differs from PyTorch; "" if it does not."""
    program = Program(seed)
    expected = program.expected()
    try:
        values = found(program, folder, WAYS[seed % len(WAYS)])
    except Exception as error:
        return program, f"{type(error).__name__}: {getattr(error, 'message', error)}"
    for (name, order, _), value, right in zip(program.returned, values, expected, strict=True):
        size = float(np.max(np.abs(right), where=np.isfinite(right), initial=1e-3))
        if not np.allclose(value, right, TOLERANCE, TOLERANCE * size, equal_nan=True):
            return program, f"{name} (order {order}) is {value}, PyTorch says {right}"
    return program, ""
