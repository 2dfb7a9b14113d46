"""Pieces of networks on images [batch, channels, height, width]."""

from __future__ import annotations

from tests.written.script import BATCH, Script, Written
from tests.written.tokens import UNARY

ACTIVATIONS = ("ops.relu({0})", "ops.silu({0})", "ops.gelu({0})", "ops.relu6({0})", "ops.leaky_relu({0}, 0.1)",
               "ops.hardswish({0})", "ops.tanh({0})")  # fmt: skip


def image(script: Script) -> Written:
    """The network's input."""
    channels, size = script.rng.choice((3, 4)), script.rng.choice((6, 8))
    shape = (BATCH, channels, size, size)
    return Written(script.feed(f"drawn{shape}"), shape)


def convolution(script: Script, x: Written, out: int | None = None, stride: int = 1) -> Written:
    """A convolution as a cell or a function, with or without a bias."""
    rng = script.rng
    channels = x.shape[1]
    out = channels if out is None else out
    size = rng.choice((1, 3, 3))
    groups = channels if out == channels and rng.random() < 0.2 else 1
    sides = [-(-n // stride) for n in x.shape[2:]]
    shape = (BATCH, out, *sides)
    if rng.random() < 0.6:
        pad = rng.choice(("pad_mode='same'", f"pad_mode='pad', padding={size // 2}"))
        rest = f"group={groups}, has_bias={rng.random() < 0.5}, dtype=FLOAT"
        text = f"nn.Conv2d({channels}, {out}, {size}, {stride}, {pad}, {rest})"
        return script.say(f"{script.cell(text)}({x.name})", shape)
    weight = script.weight(out, channels // groups, size, size)
    bias = rng.choice(("None", script.weight(out)))
    pad = f"pad_mode='pad', padding={size // 2}"
    text = f"ops.conv2d({x.name}, {weight}, {bias}, stride={stride}, {pad}, groups={groups})"
    return script.say(text, shape)


def image_norm(script: Script, x: Written) -> Written:
    channels = x.shape[1]
    forms = [f"nn.BatchNorm2d({channels}, eps=1e-3, dtype=FLOAT)", f"nn.BatchNorm2d({channels}, eps=1e-3, dtype=FLOAT)",
             f"nn.InstanceNorm2d({channels}, eps=1e-3, dtype=FLOAT)"]  # fmt: skip
    if channels % 2 == 0:
        forms.append(f"nn.GroupNorm(2, {channels}, eps=1e-3, dtype=FLOAT)")
    if script.rng.random() < 0.2:
        return _channels_last_norm(script, x)
    return script.say(f"{script.cell(script.rng.choice(forms))}({x.name})", x.shape)


def _channels_last_norm(script: Script, x: Written) -> Written:
    """LayerNorm over channels, between two transposes."""
    cell = script.cell(f"nn.LayerNorm(({x.shape[1]},), epsilon=1e-3, dtype=FLOAT)")
    return script.say(f"{cell}({x.name}.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)", x.shape)


def activated(script: Script, x: Written) -> Written:
    return script.say(script.rng.choice(ACTIVATIONS).format(x.name), x.shape)


def image_block(script: Script, x: Written) -> Written:
    """Convolution, norm and activation, with a residual or a join."""
    rng = script.rng
    stride = 2 if rng.random() < 0.25 and x.shape[2] >= 6 else 1
    inside = convolution(script, x, rng.choice((x.shape[1], 4, 8)), stride)
    if rng.random() < 0.7:
        inside = image_norm(script, inside)
    if inside.shape == x.shape and rng.random() < 0.6:
        inside = script.say(f"{inside.name} + {x.name}", x.shape)
    inside = activated(script, inside)
    if inside.shape[2:] == x.shape[2:] and inside.shape[1] + x.shape[1] <= 12 and rng.random() < 0.3:
        channels = inside.shape[1] + x.shape[1]
        return script.say(f"ops.cat(({inside.name}, {x.name}), axis=1)", (BATCH, channels, *x.shape[2:]))
    return inside


def resized(script: Script, x: Written) -> Written:
    """Larger or smaller by two, or moved within the image."""
    rng = script.rng
    batch, channels, height, width = x.shape
    larger, smaller = (batch, channels, 2 * height, 2 * width), (batch, channels, height // 2, width // 2)
    forms = [
        ("ops.pad({0}, (1, 1, 1, 1))[:, :, :-2, 1:-1]", x.shape),
        ("nn.MaxPool2d(3, 1, pad_mode='same')({0})", x.shape),
        ("nn.AvgPool2d(3, 1, pad_mode='same')({0})", x.shape),
        ("ops.flip({0}, (3,))", x.shape),
        ("ops.roll({0}, 1, 2)", x.shape),
        ("{0} * ops.sigmoid(ops.mean({0}, (2, 3), keep_dims=True))", x.shape),
        ("{0} * ops.softmax(ops.mean({0}, (2, 3)), 1).reshape(" + f"{batch}, {channels}, 1, 1)", x.shape),
        ("ops.softmax({0}, 1)", x.shape),
        (rng.choice(UNARY), x.shape),
    ]
    if height <= 6:
        forms += [
            (f"ops.interpolate({{0}}, size={larger[2:]}, mode='nearest')", larger),
            (f"ops.interpolate({{0}}, size={larger[2:]}, mode='bilinear', align_corners={rng.random() < 0.5})", larger),
            ("{0}.repeat_interleave(2, 2).repeat_interleave(2, 3)", larger),
            ("ops.tile({0}, (1, 1, 2, 2))", larger),
        ]
    if height % 2 == 0 and height >= 4:
        forms += [
            ("nn.MaxPool2d(2, 2)({0})", smaller), ("nn.AvgPool2d(2, 2)({0})", smaller),
            (f"ops.adaptive_avg_pool2d({{0}}, {smaller[2:]})", smaller), ("{0}[:, :, ::2, ::2]", smaller),
            (f"{{0}}.reshape({batch}, {channels}, {height // 2}, 2, {width // 2}, 2).mean((3, 5))", smaller),
        ]  # fmt: skip
    text, shape = rng.choice(forms)
    cell = text.partition("(")[0] in ("nn.MaxPool2d", "nn.AvgPool2d")
    made = f"{script.cell(text.removesuffix('({0})'))}({x.name})" if cell else text.format(x.name)
    return script.say(made, shape)


def as_tokens(script: Script, x: Written) -> Written:
    """The image's places as a sequence."""
    batch, channels, height, width = x.shape
    shape = (batch, height * width, channels)
    form = script.rng.choice((f"{x.name}.reshape({batch}, {channels}, -1).swapaxes(1, 2)",
                              f"ops.transpose(ops.flatten({x.name}, start_dim=2), (0, 2, 1))",
                              f"{x.name}.transpose(0, 2, 3, 1).reshape({shape})"))  # fmt: skip
    return script.say(form, shape)
