"""Pieces of networks on values [..., width]: chains of elements, moves, norms and layers, in the forms that people
write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from tests.written.script import Script, Written

UNARY = (
    "ops.tanh({0})", "ops.sigmoid({0})", "ops.relu({0})", "ops.gelu({0})", "ops.silu({0})", "ops.exp(-ops.abs({0}))",
    "ops.square({0})", "-{0}", "ops.sqrt({0} * {0} + 0.5)", "ops.rsqrt(1.0 + {0} ** 2)", "ops.erf({0})",
    "ops.softplus({0})", "ops.clamp({0}, -0.5, 0.75)", "ops.leaky_relu({0}, 0.1)", "ops.elu({0})",
    "ops.where({0} > 0, {0}, 0.3 * {0})", "ops.log(1.5 + ops.abs({0}))", "ops.sin({0}) * 0.5", "ops.hardswish({0})",
    "ops.mish({0})", "ops.reciprocal(2.0 + ops.sigmoid({0}))", "ops.gelu({0}, approximate='tanh')",
)  # fmt: skip
BINARY = ("{0} + {1}", "{0} - {1}", "{0} * {1}", "ops.maximum({0}, {1})", "ops.minimum({0}, {1})",
          "{0} / (1.5 + ops.abs({1}))", "ops.where({0} > {1}, {0}, {1} * 0.5)", "ops.lerp({0}, {1}, 0.25)",
          "ops.addcmul({0}, {0}, {1}, 0.5)", "{0} + 0.5 * {1}")  # fmt: skip


def chain(script: Script, x: Written) -> Written:
    """Functions of elements, one after the other, some with a weight that is broadcast or with what came before."""
    rng, before = script.rng, x
    for _ in range(rng.randint(2, 5)):
        kind = rng.random()
        if kind < 0.5:
            x = script.say(rng.choice(UNARY).format(x.name), x.shape)
            continue
        other = before.name if kind < 0.65 else script.weight(*_broadcast(script, x.shape))
        x = script.say(rng.choice(BINARY).format(x.name, other), x.shape)
    return x


def _broadcast(script: Script, shape: Sequence[int]) -> tuple[int, ...]:
    """A shape that is broadcast to this one."""
    found = tuple(n if script.rng.random() < 0.6 else 1 for n in shape)
    return found[script.rng.choice((0, 0, 1, len(shape) - 1)) :]


def there_and_back(script: Script, x: Written) -> Written:
    """Pieces in halves."""
    if script.precise or script.kind == "HALF":
        return chain(script, x)
    half = script.cast(x, "HALF")
    with script.in_halves():
        for _ in range(script.rng.randint(1, 2)):
            half = script.rng.choice((chain, linear, softmax, move, bias))(script, half)
    return script.cast(half, "FLOAT")


def bias(script: Script, x: Written) -> Written:
    return script.say(f"{x.name} + {script.weight(x.shape[-1])}", x.shape)


# Moves


def move(script: Script, x: Written) -> Written:
    """The same or other elements at other places; the sizes stay."""
    return script.rng.choice(MOVES)(script, x)


def _slices(script: Script, x: Written) -> Written:
    """Both parts of a dimension change places, one of them changed."""
    axis = script.rng.randrange(len(x.shape))
    size = x.shape[axis]
    at = script.rng.randint(1, max(1, size - 1))
    index = ":, " * axis
    left = script.say(f"{x.name}[{index}:{at}]", x.shape)
    right = script.say(f"{x.name}[{index}{at}:]", x.shape)
    changed = script.rng.choice(UNARY).format(right.name)
    return script.say(f"ops.cat(({changed}, {left.name}), axis={axis})", x.shape)


def _strided(script: Script, x: Written) -> Written:
    """Every other element is one half, as in rotary positions."""
    if x.shape[-1] % 2:
        return chain(script, x)
    even, odd = (script.say(f"{x.name}[..., {i}::2]", x.shape) for i in (0, 1))
    angle = script.weight(x.shape[-1] // 2)
    first = script.say(f"{even.name} * ops.cos({angle}) - {odd.name} * ops.sin({angle})", x.shape)
    second = script.say(f"{odd.name} * ops.cos({angle}) + {even.name} * ops.sin({angle})", x.shape)
    if script.rng.random() < 0.5:
        return script.say(f"ops.cat(({first.name}, {second.name}), axis=-1)", x.shape)
    sizes = ", ".join(map(str, x.shape))
    return script.say(f"ops.stack(({first.name}, {second.name}), axis=-1).reshape({sizes})", x.shape)


def _split(script: Script, x: Written) -> Written:
    """Gates: a half of the last dimension gates the other, and both are there again."""
    if x.shape[-1] % 2:
        return chain(script, x)
    half = x.shape[-1] // 2
    left, right = script.named("left"), script.named("right")
    text = script.rng.choice((f"ops.split({x.name}, {half}, axis=-1)", f"ops.chunk({x.name}, 2, axis=-1)",
                              f"ops.split({x.name}, ({half}, {half}), -1)"))  # fmt: skip
    script.lines.append(f"{left}, {right} = {text}")
    gated = script.say(f"{left} * ops.sigmoid({right})", x.shape)
    other = script.rng.choice((right, gated.name, f"ops.tanh({left})"))
    return script.say(f"ops.cat(({gated.name}, {other}), -1)", x.shape)


def _transposed(script: Script, x: Written) -> Written:
    """There and back, with something between."""
    perm = script.rng.sample(range(len(x.shape)), len(x.shape))
    back = [perm.index(i) for i in range(len(perm))]
    there = script.say(f"ops.transpose({x.name}, {tuple(perm)})", [x.shape[i] for i in perm])
    between = chain(script, there)
    return script.say(f"{between.name}.transpose({', '.join(map(str, back))})", x.shape)


def _reshaped(script: Script, x: Written) -> Written:
    count = math.prod(x.shape)
    divisor = script.rng.choice([n for n in (1, 2, 4, 5, 8, 10) if count % n == 0])
    rows = script.say(f"ops.reshape({x.name}, ({divisor}, -1))", (divisor, count // divisor))
    between = script.rng.choice((chain, softmax, moments))(script, rows)
    return script.say(f"{between.name}.reshape({x.name}.shape)", x.shape)


def _padded(script: Script, x: Written) -> Written:
    """A shift by one place, as of the token before, in one of several forms."""
    axis = script.rng.randrange(len(x.shape))
    size, front = x.shape[axis], script.rng.random() < 0.5
    index = ":, " * axis + (f":{size}" if front else "1:")
    pads = [0] * (2 * (len(x.shape) - axis))
    pads[-2 if front else -1] = 1
    value = script.rng.choice((0.0, 0.5))
    padded = script.say(f"ops.pad({x.name}, {pads}, mode='constant', value={value})", x.shape)
    shifted = script.say(f"{padded.name}[{index}]", x.shape)
    return script.say(f"{x.name} + 0.5 * {shifted.name}", x.shape)


def _repeated(script: Script, x: Written) -> Written:
    """More of a dimension than there is, and a mean over what was repeated."""
    axis = script.rng.randrange(len(x.shape))
    times = script.rng.choice((2, 3))
    sizes = [times if i == axis else 1 for i in range(len(x.shape))]
    inside = script.rng.random() < 0.5
    text = f"ops.repeat_interleave({x.name}, {times}, {axis})" if inside else f"ops.tile({x.name}, {tuple(sizes)})"
    longer = tuple(n * t for n, t in zip(x.shape, sizes, strict=True))
    many = chain(script, script.say(text, longer))
    n = x.shape[axis]
    shown = [*x.shape[:axis], *((n, times) if inside else (times, n)), *x.shape[axis + 1 :]]
    return script.say(f"{many.name}.reshape({tuple(shown)}).mean({axis + inside})", x.shape)


def _turned(script: Script, x: Written) -> Written:
    axis = script.rng.randrange(len(x.shape))
    text = script.rng.choice((f"ops.flip({x.name}, ({axis},))", f"ops.roll({x.name}, 1, {axis})",
                              f"ops.roll({x.name}, -2, {axis})"))  # fmt: skip
    return chain(script, script.say(text, x.shape))


def _gathered(script: Script, x: Written) -> Written:
    """Rows in another order, some twice."""
    axis = script.rng.randrange(len(x.shape))
    places = script.constant(f"random.integers(0, {x.shape[axis]}, {x.shape[axis]}).astype(np.int32)")
    text = script.rng.choice((f"ops.gather({x.name}, {places}, {axis})",
                              f"ops.index_select({x.name}, {axis}, {places})"))  # fmt: skip
    return script.say(f"{x.name} - 0.5 * {script.say(text, x.shape).name}", x.shape)


def _expanded(script: Script, x: Written) -> Written:
    """A row that is shown at all places."""
    axis = script.rng.randrange(len(x.shape))
    sizes = [1 if i == axis else n for i, n in enumerate(x.shape)]
    one = script.say(f"ops.mean({x.name}, {axis}, keep_dims=True)", sizes)
    shown = script.say(f"ops.broadcast_to({one.name}, {x.shape})", x.shape)
    return script.say(f"{x.name} + ops.tanh({shown.name})", x.shape)


def _positions(script: Script, x: Written) -> Written:
    """Weights of positions, of `arange`, or of a triangle."""
    length = x.shape[-2]
    choice = script.rng.randrange(3)
    if choice == 0:
        steps = script.say(f"ops.arange({length}).astype({script.kind}).reshape({length}, 1) * 0.1", (length, 1))
        return script.say(f"{x.name} + ops.sin({steps.name} * {script.weight(x.shape[-1])})", x.shape)
    if choice == 1:
        table = script.weight(length, x.shape[-1])
        return script.say(f"{x.name} + {table}", x.shape)
    triangle = script.rng.choice((f"ops.tril(ops.ones(({length}, {length}), {script.kind}))",
                                  script.constant(f"np.tri({length}) / {length}", script.kind)))  # fmt: skip
    return script.say(f"ops.matmul({triangle}, {x.name}) * 0.3", x.shape)


def _classes(script: Script, x: Written) -> Written:
    """Classes of the places, looked up or as ones, are added."""
    ids = script.feed(f"whole({x.shape[0]}, end=5)")
    sizes = (x.shape[0], *[1] * (len(x.shape) - 2), x.shape[-1])
    table = script.weight(5, x.shape[-1])
    if script.rng.random() < 0.5:
        found = script.say(f"ops.gather({table}, {ids}, 0)", sizes)
    else:
        ones = script.say(f"ops.one_hot({ids}, 5, Tensor(1, {script.kind}), Tensor(0, {script.kind}))", sizes)
        found = script.say(f"ops.matmul({ones.name}, {table})", sizes)
    return script.say(f"{x.name} + {found.name}.reshape({sizes})", x.shape)


MOVES: tuple[Callable[[Script, Written], Written], ...] = (
    _slices, _strided, _split, _transposed, _reshaped, _padded, _repeated, _turned, _gathered, _expanded, _positions,
    _classes,
)  # fmt: skip


# Rows


def softmax(script: Script, x: Written) -> Written:
    """Shares of a row, or their logarithms, by the operator or written out."""
    form = script.rng.randrange(5)
    axis = script.rng.choice((-1, -1, -1, len(x.shape) - 2))
    if form == 0:
        return script.say(f"ops.softmax({x.name}, {axis})", x.shape)
    if form == 1:
        return script.say(f"ops.log_softmax({x.name}, {axis}) * 0.2", x.shape)
    if form == 2:
        return script.say(f"{script.cell(f'nn.Softmax({axis})')}({x.name})", x.shape)
    most = script.say(f"{x.name}.max(axis={axis}, keepdims=True)", x.shape)
    if form == 3:
        up = script.say(f"ops.exp({x.name} - {most.name})", x.shape)
        return script.say(f"{up.name} / ops.sum({up.name}, {axis}, keepdim=True)", x.shape)
    total = script.say(f"ops.logsumexp({x.name}, {axis}, keepdim=True)", x.shape)
    return script.say(f"({x.name} - {total.name}) * 0.2", x.shape)


def norm(script: Script, x: Written) -> Written:
    """Norms of a row by operators, cells or reductions."""
    return script.rng.choice((_layer_norm, _rms_norm, moments, _group_norm))(script, x)


def _layer_norm(script: Script, x: Written) -> Written:
    width = x.shape[-1]
    if script.kind == "FLOAT" and script.rng.random() < 0.4:
        cell = script.cell(f"nn.LayerNorm(({width},), epsilon=1e-3, dtype=FLOAT)")
        return script.say(f"{cell}({x.name})", x.shape)
    gamma, beta = script.weight(width, low=0.5, high=1.5), script.weight(width)
    if script.rng.random() < 0.4:
        return script.say(f"ops.layer_norm({x.name}, ({width},), {gamma}, {beta}, 1e-3)", x.shape)
    mean = script.say(f"ops.mean({x.name}, -1, keep_dims=True)", x.shape)
    apart = script.say(f"{x.name} - {mean.name}", x.shape)
    square = script.rng.choice(("ops.square({0})", "{0} * {0}", "ops.pow({0}, 2)")).format(apart.name)
    variance = script.say(f"ops.mean({square}, -1, True)", x.shape)
    rest = script.rng.choice((f"{apart.name} * ops.rsqrt({variance.name} + 1e-3)",
                              f"{apart.name} / ops.sqrt({variance.name} + 1e-3)"))  # fmt: skip
    return script.say(f"{rest} * {gamma} + {beta}", x.shape)


def _rms_norm(script: Script, x: Written) -> Written:
    gamma = script.weight(x.shape[-1], low=0.5, high=1.5)
    form = script.rng.randrange(3)
    if form == 0:
        return script.say(f"ops.rms_norm({x.name}, {gamma}, 1e-3)[0]", x.shape)
    squares = script.rng.choice((f"ops.mean(ops.square({x.name}), -1, True)",
                                 f"({x.name} ** 2).mean(-1, keep_dims=True)"))  # fmt: skip
    means = script.say(squares, x.shape)
    if form == 1:
        return script.say(f"{gamma} * ({x.name} * ops.rsqrt({means.name} + 1e-3))", x.shape)
    return script.say(f"{x.name} / ops.sqrt({means.name} + 1e-3) * {gamma}", x.shape)


def moments(script: Script, x: Written) -> Written:
    """The deviation of a row from its mean, by `var`, `std` or sums, along the last or the first dimension."""
    axis = script.rng.choice((-1, -1, 0))
    mean = script.say(f"{x.name}.mean({axis}, keep_dims=True)", x.shape)
    apart = f"({x.name} - {mean.name})"
    form = script.rng.randrange(3)
    if form == 0:
        return script.say(f"{apart} / ops.sqrt(ops.var({x.name}, {axis}, keepdims=True) + 0.1)", x.shape)
    if form == 1:
        return script.say(f"{apart} / (ops.std({x.name}, {axis}, keepdims=True) + 0.5)", x.shape)
    squares = script.say(f"ops.mean({x.name} * {x.name}, {axis}, keep_dims=True)", x.shape)
    return script.say(f"{apart} / ops.sqrt({squares.name} - {mean.name} * {mean.name} + 0.1)", x.shape)


def _group_norm(script: Script, x: Written) -> Written:
    """Groups of the last dimension, which stand as channels while the norm is taken."""
    if script.kind == "HALF" or x.shape[-1] % 2 or len(x.shape) != 3:
        return _layer_norm(script, x)
    cell = script.cell(f"nn.GroupNorm(2, {x.shape[-1]}, eps=1e-3, dtype=FLOAT)")
    there = script.say(f"ops.expand_dims({x.name}.swapaxes(1, 2), -1)", x.shape)
    found = script.say(f"{cell}({there.name})", x.shape)
    return script.say(f"ops.squeeze({found.name}, -1).swapaxes(1, 2)", x.shape)


# Layers


def linear(script: Script, x: Written, out: int | None = None) -> Written:
    """A product with a weight, with or without a bias, in one of several forms."""
    width = x.shape[-1]
    out = width if out is None else out
    shape = (*x.shape[:-1], out)
    form = script.rng.randrange(4)
    if form == 0 and script.kind == "FLOAT":
        return script.say(f"{script.cell(f'nn.Dense({width}, {out}, dtype=FLOAT)')}({x.name})", shape)
    if form == 1:
        made = script.say(f"ops.dense({x.name}, {script.weight(out, width)}, {script.weight(out)})", shape)
    elif form == 2:
        flat = script.say(f"{x.name}.reshape(-1, {width})", (math.prod(x.shape[:-1]), width))
        found = script.say(f"ops.MatMul(transpose_b=True)({flat.name}, {script.weight(out, width)})", shape)
        made = script.say(f"{found.name}.reshape({shape})", shape)
    else:
        made = script.say(f"ops.matmul({x.name}, {script.weight(width, out)})", shape)
    return bias(script, made) if form != 1 and script.rng.random() < 0.7 else made


def feed_forward(script: Script, x: Written) -> Written:
    """Two products with something between, added to what goes in."""
    inside = linear(script, x, 2 * x.shape[-1])
    form = script.rng.random()
    if form < 0.3:
        half = x.shape[-1]
        inside = script.say(f"ops.silu({inside.name}[..., :{half}]) * {inside.name}[..., {half}:]", x.shape)
    else:
        what = script.rng.choice((
            "ops.gelu({0})", "ops.gelu({0}, approximate='tanh')", "ops.relu({0})", "nn.GELU()({0})",
            "ops.relu({0}) ** 2", "0.5 * {0} * (1 + ops.tanh(0.79788456 * ({0} + 0.044715 * {0} ** 3)))",
        ))  # fmt: skip
        inside = script.say(what.format(inside.name), inside.shape)
    if script.rng.random() < 0.3:
        inside = dropout(script, inside)
    out = linear(script, inside, x.shape[-1])
    return script.say(f"{x.name} + {out.name}", x.shape)


def dropout(script: Script, x: Written) -> Written:
    share = script.rng.choice((0.1, 0.5))
    text = f"{script.cell(f'nn.Dropout(p={share})')}({x.name})"
    if script.rng.random() < 0.3:
        text = f"ops.dropout({x.name}, p={share}, training=True)"
    return script.say(text, x.shape)


def residual(script: Script, x: Written) -> Written:
    """Norm, piece, perhaps dropout, and what went in."""
    inside = script.rng.choice((linear, chain, move))(script, norm(script, x))
    if script.rng.random() < 0.4:
        inside = dropout(script, inside)
    return script.say(f"{x.name} + {inside.name}", x.shape)


def joined(script: Script, x: Written) -> Written:
    """With what an earlier piece gave, where that has the same sizes."""
    earlier = [value for value in script.seen if value.shape == x.shape and value != x]
    if not earlier:
        return residual(script, x) if len(x.shape) == 3 else chain(script, x)
    return script.say(script.rng.choice(BINARY).format(x.name, script.rng.choice(earlier).name), x.shape)
