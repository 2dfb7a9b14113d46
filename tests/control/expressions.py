"""Random expressions of a program with control flow: tensors of one shape, counters, conditions.

Values stay small where what is assigned goes through `settled`. Comparisons of floats have constants with four digits,
so that few are near a tie; `tests/control/plain.py` notes how near they come.
"""

from tests.control.scope import Scope, Shape, Variable

UNARY = ("ops.tanh({})", "ops.sin({})", "ops.exp(ops.tanh({}) - 1.0)", "-({})", "ops.cos({})")
PRIMITIVES = {"tanh": "Tanh", "add": "Add", "mul": "Mul", "sub": "Sub", "matmul": "MatMul"}
"""Operators of `__init__`, which may have strategies, by the names that programs give them."""


def settled(scope: Scope, shape: Shape, own: str = "") -> str:
    """A float expression that stays small however often it is assigned. own: the variable that it is assigned to."""
    text = floats(scope, shape, scope.rng.choice((1, 2, 2)))
    draw = scope.rng.random()
    if own and draw < 0.35:
        return f"{own} * {scope.rng.choice((0.25, 0.5, 0.625))} + ops.tanh({text})"
    if own and draw < 0.5:
        return f"{own} + {scope.rng.choice((0.05, 0.1))} * ops.sin({text})"
    return f"{scope.rng.choice(('ops.tanh', 'ops.sin'))}({text})"


def floats(scope: Scope, shape: Shape, depth: int) -> str:
    """A float expression of a shape."""
    rng = scope.rng
    if depth <= 0:
        return _leaf(scope, shape)
    draw = rng.random()
    if draw < 0.22:
        return rng.choice(UNARY).format(floats(scope, shape, depth - 1))
    if draw < 0.5:
        operands = [floats(scope, shape, depth - 1), floats(scope, _other(scope, shape), depth - 1)]
        if rng.random() < 0.3:
            operands.reverse()
        return f"({operands[0]} {rng.choice('+-*')} {operands[1]})"
    if draw < 0.58:
        return f"({floats(scope, shape, 0)} if {condition(scope, 1)} else {floats(scope, shape, depth - 1)})"
    if draw < 0.68:
        return _counted(scope, shape, depth)
    if draw < 0.78:
        return _called(scope, shape, depth)
    if draw < 0.9:
        return _primitive(scope, shape, depth)
    return _reshaped(scope, shape, depth)


def _other(scope: Scope, shape: Shape) -> Shape:
    """The shape of another operand: the same, or none."""
    return () if scope.rng.random() < 0.25 else shape


def _leaf(scope: Scope, shape: Shape) -> str:
    names = [v.name for v in scope.of_kind("float") if v.shapes == (shape,)]
    for v in scope.of_kind("list", "tuple"):
        names += [f"{v.name}[{i}]" for i, own in enumerate(v.shapes) if own == shape]
    if scope.method:
        names += [f"self.{name}" for name, own in scope.parameters.items() if own == shape]
        names += [f"self.{s.name}" for s in scope.states.values() if s.kind == "float" and s.shapes == (shape,)]
    name = scope.rng.choice(names)
    return f"{name} * {scope.rng.choice((0.3, 0.7, 1.1))}" if name.startswith("self.") else name


def _counted(scope: Scope, shape: Shape, depth: int) -> str:
    """A float expression that depends on a counter."""
    counters = _counters(scope)
    if not counters:
        return floats(scope, shape, depth - 1)
    return f"({floats(scope, shape, depth - 1)} * {scope.rng.choice(counters)} * 0.1)"


def _counters(scope: Scope) -> list[str]:
    """A value that may be read as an int, of Python or as a tensor."""
    names = [v.name for v in scope.of_kind("number", "int", "turn")]
    return [*names, *(f"self.{s.name}" for s in scope.states.values() if s.kind == "int" and scope.method)]


def _called(scope: Scope, shape: Shape, depth: int) -> str:
    usable = [h for h in scope.helpers if h.shape == shape and (scope.method or not h.bound)]
    if not usable or scope.turns > 30:
        return floats(scope, shape, depth - 1)
    helper = scope.rng.choice(usable)
    name = f"self.{helper.name}" if helper.bound else helper.name
    turns = count(scope)
    if helper.deep:
        turns = str(scope.rng.randint(0, 3))
    return f"{name}({floats(scope, shape, depth - 1)}, {turns})"


def _primitive(scope: Scope, shape: Shape, depth: int) -> str:
    """An operator that `__init__` makes, maybe with a strategy."""
    usable = [name for name, shapes in scope.primitives.items() if shapes[0] == shape]
    if not usable:
        return floats(scope, shape, depth - 1)
    name = scope.rng.choice(usable)
    kind = name.rpartition("_")[2]
    prefix = "self." if scope.method else ""
    if kind == "matmul":
        return f"{prefix}{name}({floats(scope, shape, depth - 1)}, self.w)"
    operands = [floats(scope, own, depth - 1) for own in scope.primitives[name]]
    return f"{prefix}{name}({', '.join(operands)})"


def _reshaped(scope: Scope, shape: Shape, depth: int) -> str:
    """A float expression made of one of another shape."""
    none, row, matrix = scope.sizes.shapes
    rng = scope.rng
    if shape == none:
        source = rng.choice((row, matrix))
        draw = rng.random()
        if draw < 0.6:
            return f"({floats(scope, source, depth - 1)}).{rng.choice(('sum', 'mean'))}()"
        name = _plain(scope, row)
        return f"{name}[{_place(scope, scope.sizes.rows)}]" if name else f"({floats(scope, row, 0)}).mean()"
    if shape == row:
        name = _plain(scope, matrix)
        if name and rng.random() < 0.4:
            return f"{name}[:, {rng.randrange(scope.sizes.columns)}]"
        return f"({floats(scope, matrix, depth - 1)}).{rng.choice(('sum', 'mean'))}(1)"
    if scope.method and "w" in scope.parameters and rng.random() < 0.5:
        return f"ops.matmul({floats(scope, matrix, depth - 1)}, self.w)"
    return f"(ops.expand_dims({floats(scope, row, depth - 1)}, 1) * {floats(scope, matrix, 0)})"


def _plain(scope: Scope, shape: Shape) -> str:
    names = [v.name for v in scope.of_kind("float") if v.shapes == (shape,)]
    return scope.rng.choice(names) if names else ""


def _place(scope: Scope, size: int) -> str:
    """An index of a dimension, which may be a counter: counters are never below 0."""
    counters = _counters(scope)
    if counters and scope.rng.random() < 0.6:
        return f"{scope.rng.choice(counters)} % {size}"
    return str(scope.rng.randrange(-1, size))


def count(scope: Scope) -> str:
    """An int to call a function with."""
    ints = scope.of_kind("int")
    return scope.rng.choice(ints).name if ints else "2"


# Counters and conditions

def counter(scope: Scope, variable: Variable) -> str:
    """A value for a counter: from 0 to 6, of the variable's own kind."""
    rng = scope.rng
    if variable.kind == "number":
        others = [v.name for v in scope.of_kind("number")]
    else:
        others = [v.name for v in scope.of_kind("int")]
        if rng.random() < 0.4:
            more = [v.name for v in scope.of_kind("int", "number", "turn")]
            return f"({rng.choice(others)} + {rng.choice(more)}) % {rng.choice((3, 5, 7))}"
    other = rng.choice(others)
    return rng.choice((f"({other} + {rng.randint(1, 4)}) % 5", f"{other} * 2 % 7", f"({other} * 3 + 1) % 4"))


def condition(scope: Scope, depth: int) -> str:
    """A condition of one truth value, as `if` has it."""
    rng = scope.rng
    draw = rng.random()
    if depth > 0 and draw < 0.2:
        return f"{_joined(scope, depth)} {rng.choice(('and', 'or'))} {_joined(scope, depth)}"
    if depth > 0 and draw < 0.28:
        return f"not {_joined(scope, depth)}"
    flags = scope.of_kind("flag")
    if flags and draw < 0.4:
        return rng.choice(flags).name
    counters = _counters(scope)
    if counters and draw < 0.7:
        return _of_counters(scope, counters)
    return comparison(scope)


def _joined(scope: Scope, depth: int) -> str:
    """A condition as an operand of others."""
    text = condition(scope, depth - 1)
    if text in _counters(scope):
        text = f"{text} != 0"  # operands are bools: graphs have no `and` of two kinds
    return f"({text})" if " and " in text or " or " in text else text


def _of_counters(scope: Scope, counters: list[str]) -> str:
    rng = scope.rng
    name = rng.choice(counters)
    draw = rng.random()
    if draw < 0.35:
        return f"{name} % {rng.choice((2, 3))} {rng.choice(('==', '!='))} {rng.randrange(2)}"
    if draw < 0.5 and len(counters) > 1:
        return f"{name} {rng.choice(('<', '<=', '!='))} {rng.choice([c for c in counters if c != name])}"
    if draw < 0.6:
        return name
    return f"{name} {rng.choice(('<', '<=', '>', '>=', '==', '!='))} {rng.randint(1, 3)}"


def comparison(scope: Scope) -> str:
    """Floats compared: a tensor of one bool."""
    rng = scope.rng
    constant = round(rng.uniform(-0.6, 0.6), 4)
    sign = rng.choice("<>")
    if rng.random() < 0.3:
        return f"{floats(scope, (), 1)} {sign} {floats(scope, (), 0)} + {constant}"
    return f"{floats(scope, (), 1)} {sign} {constant}"


def flag(scope: Scope) -> str:
    """A value for a flag: a tensor of one bool."""
    rng = scope.rng
    flags, ints = scope.of_kind("flag"), scope.of_kind("int")
    draw = rng.random()
    if flags and draw < 0.25:
        return f"ops.logical_not({rng.choice(flags).name})"
    if flags and draw < 0.45:
        name = rng.choice(("logical_and", "logical_or"))
        return f"ops.{name}({rng.choice(flags).name}, {comparison(scope)})"
    if ints and draw < 0.7:
        return f"{rng.choice(ints).name} {rng.choice(('<', '>='))} {rng.randint(1, 4)}"
    return comparison(scope)
