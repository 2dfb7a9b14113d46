"""Attention on [batch, length, width] in the forms that people write: scale, masks, biases, heads, dropout, casts."""

from __future__ import annotations

from itertools import pairwise

from tests.written.script import BATCH, Script, Written
from tests.written.tokens import dropout, linear


class Attention:
    """Writes one attention of a value over itself or over another one.

    heads, own: of the query, and of key and value, which are repeated. depth: elements of a head. length, keys: rows.
    """

    def __init__(self, script: Script, x: Written) -> None:
        rng = script.rng
        self.script, self.x = script, x
        width = x.shape[-1]
        self.heads = rng.choice([n for n in (1, 2, 2, 4) if width % n == 0])
        self.depth = width // self.heads
        self.own = rng.choice([n for n in (self.heads, self.heads, 1, 2) if self.heads % n == 0])
        self.memory = x
        if rng.random() < 0.25:
            rows = rng.choice((3, 5))
            given = Written(script.feed(f"drawn({BATCH}, {rows}, {width})"), (BATCH, rows, width))
            self.memory = given if script.kind == "FLOAT" else script.cast(given, script.kind)
        self.length, self.keys = x.shape[1], self.memory.shape[1]
        self.scores_shape = (BATCH, self.heads, self.length, self.keys)

    def write(self) -> Written:
        """The attention of x, projected, added to x."""
        script, rng = self.script, self.script.rng
        query, key, value = self._projected()
        scale = rng.choice((self.depth**-0.5, 0.3))
        where = rng.choice(("query", "query", "scores", "scores", "divided", "both", "key", "none"))
        if where == "query":
            query = script.say(f"{query.name} * {scale}", query.shape)
        if where in ("key", "both"):
            key = script.say(f"{key.name} * {scale if where == 'key' else scale**0.5}", key.shape)
        if where == "both":
            query = script.say(f"{query.name} * {scale**0.5}", query.shape)
        scores = self._product(query, key)
        if where in ("scores", "divided"):
            by = f"* {scale}" if where == "scores" else f"/ {1 / scale}"
            scores = script.say(f"{scores.name} {by}", scores.shape)
        for _ in range(rng.choice((0, 1, 1, 2))):
            masks = (
                self._bias, self._causal, self._causal, self._padding, self._padding, self._biased_padding,
                self._constant,
            )  # fmt: skip
            scores = rng.choice(masks)(scores)
        weights = self._shares(scores)
        if rng.random() < 0.3:
            weights = dropout(script, weights)
        mixed = script.say(f"ops.matmul({weights.name}, {value.name})", query.shape)
        return self._merged(mixed)

    def _projected(self) -> tuple[Written, Written, Written]:
        script, rng = self.script, self.script.rng
        width, inner = self.x.shape[-1], self.own * self.depth
        if self.memory is self.x and rng.random() < 0.35:
            packed = linear(script, self.x, width + 2 * inner)
            if inner == width and rng.random() < 0.5:
                sizes = (BATCH, self.length, 3, self.heads, self.depth)
                turned = script.say(f"{packed.name}.reshape({sizes}).transpose(2, 0, 3, 1, 4)", sizes)
                shape = (BATCH, self.heads, self.length, self.depth)
                query, key, value = (script.say(f"{turned.name}[{i}]", shape) for i in range(3))
                return query, key, value
            at = pairwise((0, width, width + inner, width + 2 * inner))
            parts = [script.say(f"{packed.name}[..., {a}:{b}]", (BATCH, self.length, b - a)) for a, b in at]
        else:
            parts = [linear(script, self.x), linear(script, self.memory, inner), linear(script, self.memory, inner)]
        query = self._in_heads(parts[0], self.heads)
        key, value = (self._repeated(self._in_heads(part, self.own)) for part in parts[1:])
        return query, key, value

    def _in_heads(self, x: Written, heads: int) -> Written:
        rows = x.shape[1]
        shape = (BATCH, heads, rows, self.depth)
        apart = f"{x.name}.reshape({BATCH}, {rows}, {heads}, {self.depth})"
        turned = self.script.rng.choice((".transpose(0, 2, 1, 3)", ".swapaxes(1, 2)"))
        return self.script.say(apart + turned, shape)

    def _repeated(self, x: Written) -> Written:
        if self.own == self.heads:
            return x
        times, (batch, own, rows, depth) = self.heads // self.own, x.shape
        shape = (batch, self.heads, rows, depth)
        form = self.script.rng.randrange(3 if self.own > 1 else 4)
        if form == 0:
            return self.script.say(f"ops.repeat_interleave({x.name}, {times}, 1)", shape)
        if form == 3:
            return x
        apart = f"{x.name}.reshape({batch}, {own}, 1, {rows}, {depth})"
        wide = (batch, own, times, rows, depth)
        shown = f"ops.broadcast_to({apart}, {wide})" if form == 1 else f"ops.tile({apart}, (1, 1, {times}, 1, 1))"
        return self.script.say(f"{shown}.reshape({shape})", shape)

    def _product(self, query: Written, key: Written) -> Written:
        forms = ["ops.matmul({0}, {1}.swapaxes(-1, -2))", "ops.matmul({0}, {1}.transpose(0, 1, 3, 2))",
                 "ops.matmul({0}, ops.transpose({1}, (0, 1, 3, 2)))"]  # fmt: skip
        if query.shape[1] == key.shape[1]:
            forms.append("ops.BatchMatMul(transpose_b=True)({0}, {1})")
        return self.script.say(self.script.rng.choice(forms).format(query.name, key.name), self.scores_shape)

    # Masks and addends

    def _bias(self, scores: Written) -> Written:
        """A relative bias, with a gradient or without."""
        shape = self.script.rng.choice((
            (self.heads, self.length, self.keys), (1, self.heads, self.length, self.keys), (self.length, self.keys),
            (self.heads, 1, 1), (1, 1, 1, self.keys),
        ))  # fmt: skip
        return self.script.say(f"{scores.name} + {self.script.weight(*shape)}", scores.shape)

    def _causal(self, scores: Written) -> Written:
        """Hides the future by a constant, or by comparing positions."""
        script, rng = self.script, self.script.rng
        shape = f"({self.length}, {self.keys})"
        after = max(0, self.keys - self.length) if rng.random() < 0.5 else 0
        lowest = self._lowest()
        form = rng.randrange(6)
        if form == 0:
            addend = script.constant(f"np.triu(np.full({shape}, {lowest}), {after + 1})", script.kind)
            return script.say(f"{scores.name} + {addend}", scores.shape)
        if form == 1:
            seen = script.constant(f"np.tri({self.length}, {self.keys}, {after}, dtype=np.bool_)")
            return script.say(f"ops.where({seen}, {scores.name}, {lowest})", scores.shape)
        if form == 2:
            hidden = script.constant(f"~np.tri({self.length}, {self.keys}, {after}, dtype=np.bool_)")
            return script.say(f"ops.masked_fill({scores.name}, {hidden}, {lowest})", scores.shape)
        if form == 3:
            seen = f"ops.tril(ops.ones({shape}, {script.kind}), {after})"
            return script.say(f"ops.masked_fill({scores.name}, {seen} == 0, {lowest})", scores.shape)
        if form == 4:
            hidden = f"ops.triu(ops.ones({shape}, {script.kind}), {after + 1})"
            return script.say(f"{scores.name} + {hidden} * {lowest}", scores.shape)
        rows, columns = f"ops.arange({self.length}).reshape(-1, 1)", f"ops.arange({self.keys})"
        seen = script.say(f"{columns} <= {rows} + {after}", self.scores_shape)
        window = rng.choice(("", f"ops.logical_and({seen.name}, {columns} > {rows} - 3)"))
        if window:
            seen = script.say(window, self.scores_shape)
        return script.say(f"ops.where({seen.name}, {scores.name}, {lowest})", scores.shape)

    def _padding(self, scores: Written) -> Written:
        """Hides keys behind the end of each sequence; the first always stays."""
        script, rng = self.script, self.script.rng
        lowest = self._lowest()
        if rng.random() < 0.5:
            lengths = script.feed(f"whole({BATCH}, end={self.keys}) + 1")
            seen = script.say(f"ops.arange({self.keys}) < {lengths}.reshape(-1, 1, 1, 1)", self.scores_shape)
        else:
            given = script.feed(f"Tensor(np.arange({self.keys}) < random.integers(1, {self.keys + 1}, ({BATCH}, 1)))")
            seen = script.say(f"{given}.reshape({BATCH}, 1, 1, {self.keys})", self.scores_shape)
        form = rng.randrange(4)
        if form == 0:
            return script.say(f"ops.where({seen.name}, {scores.name}, {lowest})", scores.shape)
        if form == 1:
            return script.say(f"ops.masked_fill({scores.name}, ops.logical_not({seen.name}), {lowest})", scores.shape)
        if form == 2:
            return script.say(f"{scores.name} + (1.0 - {seen.name}.astype({script.kind})) * {lowest}", scores.shape)
        whole = (BATCH, 1, self.length, self.keys)
        shown = script.say(f"ops.broadcast_to({seen.name}, {whole})", self.scores_shape)
        return script.say(f"ops.masked_fill({scores.name}, ~{shown.name}, {lowest})", scores.shape)

    def _biased_padding(self, scores: Written) -> Written:
        """The sum of a relative bias of heads and of numbers that hide keys behind the end of each sequence."""
        script = self.script
        bias = script.weight(self.heads, self.length, self.keys)
        given = script.feed(f"Tensor(np.arange({self.keys}) < random.integers(1, {self.keys + 1}, ({BATCH}, 1)))")
        absent = f"(1.0 - {given}.astype({script.kind}).reshape({BATCH}, 1, 1, {self.keys}))"
        both = script.say(f"{bias} + {absent} * {self._lowest()}", self.scores_shape)
        return script.say(f"{scores.name} + {both.name}", scores.shape)

    def _constant(self, scores: Written) -> Written:
        """Any mask, that may hide all keys of a query."""
        script = self.script
        shape = script.rng.choice(((self.length, self.keys), (BATCH, 1, self.length, self.keys)))
        hidden = script.constant(f"random.random({shape}) < 0.4")
        return script.say(f"ops.masked_fill({scores.name}, {hidden}, -1e4)", scores.shape)

    def _lowest(self) -> str:
        """The number that hides: one that all types have."""
        if self.script.kind == "HALF":
            return self.script.rng.choice(("-1e4", "-3e4"))
        return self.script.rng.choice(("-1e9", "-1e9", "-10000.0", "-1e30"))

    # Softmax and what follows

    def _shares(self, scores: Written) -> Written:
        script = self.script
        half = script.kind == "HALF" and script.rng.random() < 0.7
        if half:
            scores = script.say(f"{scores.name}.astype(FLOAT)", scores.shape)
        form = script.rng.randrange(5)
        if form == 0:
            found = script.say(f"{script.cell('nn.Softmax(-1)')}({scores.name})", scores.shape)
        elif form == 1:
            most = f"ops.amax({scores.name}, -1, keepdims=True)"
            up = script.say(f"ops.exp({scores.name} - {most})", scores.shape)
            found = script.say(f"{up.name} / {up.name}.sum(-1, keepdims=True)", scores.shape)
        else:
            found = script.say(f"ops.softmax({scores.name}, axis=-1)", scores.shape)
        return script.cast(found, "HALF") if half else found

    def _merged(self, mixed: Written) -> Written:
        script = self.script
        turned = script.rng.choice((f"{mixed.name}.transpose(0, 2, 1, 3)", f"ops.swapaxes({mixed.name}, 1, 2)"))
        out = script.say(f"{turned}.reshape({self.x.shape})", self.x.shape)
        if script.rng.random() < 0.7:
            out = linear(script, out)
        if script.rng.random() < 0.3:
            out = dropout(script, out)
        return script.say(f"{self.x.name} + {out.name}", self.x.shape)


def attention(script: Script, x: Written) -> Written:
    """See `Attention`; in halves where the network has some."""
    if script.precise or script.kind == "HALF" or script.rng.random() < 0.3:
        return Attention(script, x).write()
    half = script.cast(x, "HALF")
    with script.in_halves():
        half = Attention(script, half).write()
    return script.cast(half, "FLOAT")
