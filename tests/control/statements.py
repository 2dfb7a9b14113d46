"""Random statements of a program with nested control flow.

Every loop ends: what counts its turns is assigned nowhere else. A name that a block makes is not read behind it, but
where all branches of an `if` make it. A name keeps its kind and its shape. `continue` stands only where the counter of
its loop has moved on.
"""

from collections.abc import Callable

from tests.control.expressions import condition, count, counter, flag, floats, settled
from tests.control.scope import Loop, Scope, Shape, Variable

TURNS = 60
"""How many turns nested loops have together at most."""
LAYERS = 3
"""How many cells a list of equal ones has."""


def body(scope: Scope, statements: int) -> None:
    """Writes so many statements of a block."""
    for place in range(statements):
        statement(scope)
        if scope.loops and place < statements - 1 and scope.rng.random() < 0.08:
            jump(scope)


def statement(scope: Scope) -> None:
    draw = scope.rng.random()
    if scope.depth <= scope.deepest and draw < (0.5 if scope.depth < 3 else 0.15):
        if draw < 0.22 or scope.turns * 2 > TURNS:
            branches(scope)
        else:
            scope.rng.choice((counted_for, counted_for, over_items, counted_while, counted_while, flagged_while,
                              endless_while))(scope)  # fmt: skip
        return
    assignment(scope)


# Assignments

def assignment(scope: Scope) -> None:
    kinds = [_float] * 3 + [_carried] * 2 + [_new, _int, _number, _flag, _state, _augmented, _closure, _layers]
    scope.rng.choice(kinds)(scope)


def _float(scope: Scope) -> None:
    known = scope.of_kind("float", assigned=True)
    if not known:
        return _new(scope)
    variable = scope.rng.choice(known)
    scope.say(f"{variable.name} = {settled(scope, variable.shapes[0], variable.name)}")


def _new(scope: Scope) -> None:
    if len(scope.of_kind("float")) > 7:
        return
    shape = scope.rng.choice(scope.sizes.shapes)
    text = settled(scope, shape)
    scope.say(f"{scope.add(scope.named('v'), 'float', (shape,)).name} = {text}")


def _augmented(scope: Scope) -> None:
    known = scope.of_kind("float", assigned=True)
    if known:
        variable = scope.rng.choice(known)
        scope.say(f"{variable.name} += 0.1 * ops.tanh({floats(scope, variable.shapes[0], 1)})")


def _int(scope: Scope) -> None:
    known = scope.of_kind("int", assigned=True)
    if known:
        variable = scope.rng.choice(known)
        scope.say(f"{variable.name} = {counter(scope, variable)}")


def _number(scope: Scope) -> None:
    known = scope.of_kind("number", assigned=True)
    if known and scope.rng.random() < 0.7:
        variable = scope.rng.choice(known)
        scope.say(f"{variable.name} = {counter(scope, variable)}")
    elif len(scope.of_kind("number")) < 3:
        scope.say(f"{scope.add(scope.named('k'), 'number').name} = {scope.rng.randrange(4)}")


def _flag(scope: Scope) -> None:
    known = scope.of_kind("flag", assigned=True)
    text = flag(scope)
    name = scope.rng.choice(known).name if known else scope.add(scope.named("flag"), "flag").name
    scope.say(f"{name} = {text}")


def _carried(scope: Scope) -> None:
    """A list or a tuple of tensors."""
    known = scope.of_kind("list", "tuple", assigned=True)
    if not known or (len(known) < 2 and scope.rng.random() < 0.3):
        kind = scope.rng.choice(("list", "tuple"))
        shapes = [scope.rng.choice(scope.sizes.shapes) for _ in range(scope.rng.randint(2, 3))]
        text = _items(scope, kind, [settled(scope, shape) for shape in shapes])
        scope.say(f"{scope.add(scope.named(kind), kind, shapes).name} = {text}")
        return
    variable = scope.rng.choice(known)
    place = scope.rng.randrange(len(variable.shapes))
    if variable.kind == "list" and scope.rng.random() < 0.4:
        scope.say(f"{variable.name}[{place}] = {settled(scope, variable.shapes[place])}")
        return
    items = [f"{variable.name}[{i}]" for i in range(len(variable.shapes))]
    same = [i for i, shape in enumerate(variable.shapes) if shape == variable.shapes[place] and i != place]
    if same:
        items[place], items[same[0]] = items[same[0]], items[place]
    items[place] = settled(scope, variable.shapes[place], items[place])
    scope.say(f"{variable.name} = {_items(scope, variable.kind, items)}")


def _items(scope: Scope, kind: str, items: list[str]) -> str:
    return f"[{', '.join(items)}]" if kind == "list" else f"({', '.join(items)})"


def _state(scope: Scope) -> None:
    """A parameter is updated. No gradient runs through it: what an update hands on is not the same everywhere."""
    if not scope.method or not scope.states:
        return
    state = scope.rng.choice(list(scope.states.values()))
    own = f"self.{state.name}"
    if state.kind == "int":
        text = f"{own} + 1"
    else:
        text = f"{own} * 0.5 + ops.stop_gradient(ops.tanh({floats(scope, state.shapes[0], 1)}))"
    scope.say(scope.rng.choice((f"{own} = {text}", f"ops.assign({own}, {text})")))


def _closure(scope: Scope) -> None:
    """A function that reads a variable around it, which is not assigned again, is called."""
    shape = scope.rng.choice(scope.sizes.shapes)
    known = [v for v in scope.of_kind("float", assigned=True) if v.shapes == (shape,)]
    if not known:
        return
    held, made = scope.named("held"), scope.named("inner")
    scope.say(f"{held} = {settled(scope, shape)}")
    scope.add(held, "float", (shape,), fixed=True)
    formula = f"ops.tanh(given {scope.rng.choice('+-*')} {held})"
    if scope.rng.random() < 0.4:
        scope.say(f"{made} = lambda given: {formula}")
    else:
        scope.say(f"def {made}(given):")
        if scope.rng.random() < 0.5:
            scope.say(f"    if given.mean() > {round(scope.rng.uniform(-0.5, 0.5), 4)}:")
            scope.say(f"        return given * 0.5 - {held}")
        scope.say(f"    return {formula}")
    variable = scope.rng.choice(known)
    scope.say(f"{variable.name} = {made}({variable.name})")


def _layers(scope: Scope) -> None:
    """All layers of a list, one after the other."""
    known = [v for v in scope.of_kind("float", assigned=True) if scope.layers == v.shapes[0]]
    if not known or scope.turns > 10:
        return
    variable, layer = scope.rng.choice(known), scope.named("layer")
    scope.say(f"for {layer} in self.layers:")
    with scope.loop(Loop(True, LAYERS)):
        scope.say(f"{variable.name} = {layer}({variable.name}, {count(scope)})")
        if scope.rng.random() < 0.3:
            jump(scope)


# Branches

def branches(scope: Scope) -> None:
    """`if`, with `elif` and `else` or without. Variables that all branches make may be read after them."""
    rng = scope.rng
    made = Variable(scope.named("v"), "float", (rng.choice(scope.sizes.shapes),)) if rng.random() < 0.25 else None
    scope.say(f"if {condition(scope, 2)}:")
    _branch(scope, made)
    while rng.random() < 0.25:
        scope.say(f"elif {condition(scope, 1)}:")
        _branch(scope, made)
    if made is not None or rng.random() < 0.55:
        scope.say("else:")
        _branch(scope, made)
    if made is not None:
        scope.variables.append(made)


def _branch(scope: Scope, made: Variable | None) -> None:
    with scope.block():
        body(scope, scope.rng.randint(1, 2))
        if made is not None:
            scope.say(f"{made.name} = {settled(scope, made.shapes[0])}")
        elif not scope.lines[-1].strip() or scope.lines[-1].rstrip().endswith(":"):
            scope.say("pass")
        if scope.rng.random() < 0.25:
            leave(scope)


def jump(scope: Scope) -> None:
    """A branch that leaves the turn or the loop, or returns."""
    scope.say(f"if {condition(scope, 1)}:")
    with scope.block():
        if not leave(scope):
            scope.say("pass")


def leave(scope: Scope) -> bool:
    """Writes `break`, `continue` or `return`, where one may stand."""
    kinds = ["return"] if scope.returns else []
    if scope.loops:
        kinds += ["break", "break"] + ["continue"] * (2 * scope.loops[-1].may_continue)
    if not kinds:
        return False
    kind = scope.rng.choice(kinds)
    if kind == "return":
        give(scope)
    else:
        scope.say(kind)
    return True


def give(scope: Scope) -> None:
    """`return` of what the function returns."""
    items: list[str] = []
    for kind in scope.returns:
        if kind.kind == "float":
            items.append(floats(scope, kind.shapes[0], 1))
        else:
            items.append(f"{scope.rng.choice(scope.of_kind('int')).name} + {scope.rng.randint(0, 3)}")
    scope.say(f"return {', '.join(items)}")


# Loops

def _most(scope: Scope) -> int:
    """How many turns another loop may have."""
    return scope.rng.randint(1, max(1, min(5 if not scope.loops else 3, TURNS // scope.turns)))


def _inside(scope: Scope, may_continue: bool, turns: int, write: Callable[[], None] | None = None) -> None:
    """The body of a loop; `write` writes its first lines."""
    with scope.loop(Loop(may_continue, turns)):
        if write is not None:
            write()
        body(scope, scope.rng.randint(1, 3))
        if scope.lines[-1].rstrip().endswith(":"):
            scope.say("pass")


def counted_for(scope: Scope) -> None:
    """`for` over a range, that a constant ends or a tensor."""
    rng = scope.rng
    turns = _most(scope)
    ints = scope.of_kind("int")
    if ints and rng.random() < 0.45:
        end = f"{rng.choice(ints).name} % {turns + 1}"
        kind, given = "turn", rng.choice((end, f"0, {end}", f"1, {end} + 1"))
    else:
        first = rng.randrange(3)
        kind = "number"
        given = rng.choice((f"{turns}", f"{first}, {first + turns}", f"{first}, {first + 2 * turns}, 2",
                            f"{first + turns}, {first}, -1"))  # fmt: skip
    name = scope.named("i")
    scope.say(f"for {name} in range({given}):")
    _inside(scope, True, turns, lambda: scope.add(name, kind, fixed=True) and None)


def over_items(scope: Scope) -> None:
    """`for` over tensors of a list, or over the rows of one."""
    rng = scope.rng
    none, row, matrix = scope.sizes.shapes
    carried = [v for v in scope.of_kind("list", "tuple") if len(set(v.shapes)) == 1]
    name, place = scope.named("item"), scope.named("i")
    shape: Shape = rng.choice((none, row, matrix))
    if carried and rng.random() < 0.5:
        chosen = rng.choice(carried)
        items, shape, turns = f"({', '.join(f'{chosen.name}[{i}]' for i in range(len(chosen.shapes)))})", \
            chosen.shapes[0], len(chosen.shapes)  # fmt: skip
    else:
        turns = min(_most(scope) + 1, 3)
        texts = [settled(scope, shape) for _ in range(turns)]
        items = _items(scope, rng.choice(("list", "tuple")), texts)
    counting = rng.random() < 0.3
    scope.say(f"for {place}, {name} in enumerate({items}):" if counting else f"for {name} in {items}:")

    def first() -> None:
        scope.add(name, "float", (shape,), fixed=True)
        if counting:
            scope.add(place, "number", fixed=True)

    _inside(scope, True, turns, first)


def counted_while(scope: Scope) -> None:
    """`while` with a counter, a Python int or a tensor, up or down, and maybe another condition."""
    rng = scope.rng
    turns = _most(scope)
    ints = scope.of_kind("int")
    tensor = bool(ints) and rng.random() < 0.6
    name = scope.named("n" if tensor else "k")
    variable = scope.add(name, "int" if tensor else "number")
    if tensor and rng.random() < 0.4:  # down
        scope.say(f"{name} = {rng.choice(ints).name} % {turns + 1}")
        head, step = f"{name} > 0", f"{name} = {name} - 1"
    else:
        first = rng.choice((f"{rng.choice(ints).name} % 2", "Tensor(0, INT)")) if tensor else f"{rng.randrange(2)}"
        scope.say(f"{name} = {first}")
        other = [v for v in ints if v.name != name]
        end = f"{rng.choice(other).name} % {turns + 1}" if other and rng.random() < 0.4 else str(turns)
        head, step = f"{name} < {end}", rng.choice((f"{name} = {name} + 1", f"{name} += 1"))
    if rng.random() < 0.35:
        more = condition(scope, 0)
        head = rng.choice((f"{head} and {more}", f"{more} and {head}"))
    _counting(scope, variable, head, step, turns)


def flagged_while(scope: Scope) -> None:
    """`while` with a tensor of one bool, which is assigned in the loop."""
    ints = scope.of_kind("int")
    if not ints:
        return counted_while(scope)
    turns = _most(scope)
    name, go = scope.named("n"), scope.named("go")
    scope.say(f"{name} = {scope.rng.choice(ints).name} % 2")
    scope.say(f"{go} = {name} < {scope.rng.randint(1, 3)}")
    variable = scope.add(name, "int")
    scope.variables.append(Variable(go, "flag", fixed=True))
    _counting(scope, variable, go, f"{name} = {name} + 1\n{go} = {name} < {turns}", turns)


def endless_while(scope: Scope) -> None:
    """`while True`, left by `break` where a tensor has counted far enough."""
    ints = scope.of_kind("int")
    if not ints or scope.rng.random() < 0.5:
        return counted_while(scope)
    turns = _most(scope)
    name = scope.named("n")
    scope.say(f"{name} = {scope.rng.choice(ints).name} % 2")
    variable = scope.add(name, "int")
    _counting(scope, variable, "True", f"{name} = {name} + 1\nif {name} > {turns}:\n    break", turns, early=True)


def _counting(scope: Scope, variable: Variable, head: str, step: str, turns: int, early: bool = False) -> None:
    """A `while`, with the lines that count either first or last; last, there is no `continue` of it."""
    early = early or scope.rng.random() < 0.5

    def moves_on() -> None:
        for line in step.split("\n"):
            scope.say(line)

    scope.say(f"while {head}:")
    with scope.kept(variable):
        with scope.loop(Loop(early, turns)):
            if early:
                moves_on()
            body(scope, scope.rng.randint(1, 3))
            if not early:
                moves_on()
