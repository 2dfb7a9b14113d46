"""Random networks as people write them: a script's text, drawn from a seed."""

from __future__ import annotations

from collections.abc import Callable

from tests.written.attention import attention
from tests.written.images import activated, as_tokens, convolution, image, image_block, image_norm, resized
from tests.written.script import BATCH, Script, Written
from tests.written.tokens import (
    chain,
    dropout,
    feed_forward,
    joined,
    linear,
    move,
    norm,
    residual,
    softmax,
    there_and_back,
)  # fmt: skip
from tests.written.training import ending, loss

LENGTHS, WIDTHS, WORDS = (5, 8, 8, 33), (8, 8, 12, 16, 16, 10, 40), 9
PIECES: tuple[Callable[[Script, Written], Written], ...] = (
    attention, attention, attention, chain, move, move, norm, softmax, feed_forward, residual, linear, dropout,
    there_and_back, joined,
)  # fmt: skip
IMAGE_PIECES: tuple[Callable[[Script, Written], Written], ...] = (
    image_block, image_block, resized, convolution, image_norm, activated, chain, joined,
)  # fmt: skip
HALVES = ("float16", "bfloat16")


class Network:
    """A random network. precise: whether it computes in Float64 alone. jumps: whether rounding may
    change a gradient wholly.

    text: its script, which makes `step`, the cell of a training step, and its `arguments`. exact: the same in Float64.
    """

    def __init__(self, seed: int) -> None:
        script = Script(seed)
        rng = script.rng
        x = self._images(script) if rng.random() < 0.3 else self._tokens(script)
        for _ in range(rng.randint(1, 4)):
            script.seen.append(x)
            x = rng.choice(PIECES)(script, x)
        loss(script, x)
        end = ending(script)
        self.precise, self.jumps = script.precise, script.jumps
        kinds = ("float64", "float64") if script.precise else ("float32", rng.choice(HALVES))
        self.text = script.text(seed, kinds, end)
        self.exact = script.text(seed, ("float64", "float64"), end)

    def _tokens(self, script: Script) -> Written:
        rng = script.rng
        shape = (BATCH, rng.choice(LENGTHS), rng.choice(WIDTHS))
        if rng.random() < 0.4:
            return Written(script.feed(f"drawn{shape}"), shape)
        ids = script.feed(f"whole{shape[:2]}".replace(")", f", end={WORDS})"))
        if rng.random() < 0.5:
            return script.say(f"{script.cell(f'nn.Embedding({WORDS}, {shape[2]}, dtype=FLOAT)')}({ids})", shape)
        return script.say(f"ops.gather({script.weight(WORDS, shape[2])}, {ids}, 0)", shape)

    def _images(self, script: Script) -> Written:
        x = convolution(script, image(script), script.rng.choice((4, 8)))
        for _ in range(script.rng.randint(1, 3)):
            script.seen.append(x)
            x = script.rng.choice(IMAGE_PIECES)(script, x)
        while x.shape[2] > 4 and x.shape[2] % 2 == 0:
            cell = script.cell("nn.AvgPool2d(2, 2)")
            x = script.say(f"{cell}({x.name})", (*x.shape[:2], x.shape[2] // 2, x.shape[3] // 2))
        return as_tokens(script, x)
