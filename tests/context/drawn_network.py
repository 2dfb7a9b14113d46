"""Draws a transformer whose sequences are sharded: scripts for all ranks and for one device.

Both scripts write to `rank_R.npz` in their folder the losses of all steps, and the parameters, which plain descent by
the whole gradient changes.
"""

import math
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

LAYERS = (Path(__file__).parent / "layers.py").read_text(encoding="utf-8")
STEPS = 2
WAYS = ("flash", "written", "hidden", "searched")
"""The way in which sequences are sharded: the strategy of an attention in one operator or operator by operator, or of
the sum of residuals, with products sharded as Megatron-LM does or not; or nothing, and a search finds it, of sequences
so long that it pays."""
LONG = 4, 8
"""How many times as long these are."""
_WRITTEN = {"flash": 0.0, "written": 0.6, "hidden": 0.6, "searched": 0.1}
_RANKS = (2, 2, 3, 4, 4, 4, 6, 8, 8, 12, 16)

_TEXT = """
from mspc import Layout
from mspc.communication import get_rank, init

ms.set_context(mode=ms.GRAPH_MODE)
init()
ms.set_seed(1)
ms.set_auto_parallel_context({settings})
layout = Layout({mesh}, ("dp", "cp", "mp"))
layers = [{layers}]
net = Net(layers, {width})
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1)).set_train()
drawn = np.random.RandomState(7)
values = {{}}
for i in range({steps}):
    shift = drawn.randn(*{shift})
    hidden = drawn.rand(*{hidden}) < 0.3
    hidden[..., 0] = False
    found = step(
        Tensor(drawn.randn({batch}, {queries}, {width}), ms.float64),
        Tensor(drawn.randn({batch}, {keys}, {width}), ms.float64), Tensor(shift, ms.float64), Tensor(hidden),
        Tensor(drawn.randn({batch}, {queries}, {width}), ms.float64),
    )
    values[f"step {{i}}"] = found.asnumpy()
values |= {{p.name: p.asnumpy() for p in net.get_parameters()}}
np.savez({folder!r} + f"/rank_{{get_rank()}}.npz", **values)
"""


class DrawnNetwork:
    """A network that a seed draws. only: what says that sequences are sharded. about: what was drawn."""

    tolerance = 1e-10

    def __init__(self, seed: int, only: Sequence[str] = WAYS) -> None:
        self._r = r = random.Random(seed)
        self._way = r.choice(only)
        self.ranks = r.choice(_RANKS)
        self._context = r.choice([n for n in range(2, self.ranks + 1) if self.ranks % n == 0])
        if self._way == "searched":  # nothing but sequences to share
            self._context = self.ranks
        rest = self.ranks // self._context
        self._model = r.choice([n for n in range(1, rest + 1) if rest % n == 0])
        self._data = rest // self._model
        self._batch = self._data * r.choice((1, 2))
        self._crossed = r.random() < 0.2
        self._queries = self.ranks * r.choice((1, 1, 2, 3)) if self.ranks < 8 else self.ranks
        if self._way == "searched":
            self._queries *= r.choice(LONG)
        self._keys = self._context * r.choice((1, 2, 3)) if self._crossed else self._queries
        self._heads = self._model * r.choice((1, 2, 2, 4))
        self._key_heads = self._model * r.choice(_divisors(self._heads // self._model))
        self._width = self._model * r.choice((2, 4))
        self._drop = r.choice((0.0, 0.0, 0.3))
        self._mode = r.choice(("semi_auto_parallel", "semi_auto_parallel", "auto_parallel"))
        if self._way == "searched":
            self._mode = "auto_parallel"
        self._layouts = r.random() < 0.4
        places = r.choice(((1, 1), (self._batch, 1), (self._batch, self._heads)))
        self._hidden = (*places, r.choice((1, self._queries)), self._keys)
        self._shift = (*r.choice(((1, 1), (self._batch, 1))), r.choice((1, self._queries)), self._keys)
        self._layers = [self._layer() for _ in range(r.choice((1, 1, 2)))]
        self.about = (
            f"{self._way}, {self._data} x {self._context} x {self._model}, {self._mode}, "
            + " | ".join(layer[1] for layer in self._layers)
        )

    def sharded(self, folder: str) -> str:
        """The script for all ranks."""
        search = "dynamic_programming" if self._way == "searched" else "sharding_propagation"
        more = f", search_mode={search!r}" if self._mode == "auto_parallel" else ""
        settings = f"parallel_mode={self._mode!r}, dataset_strategy='full_batch'{more}"
        return self._text(folder, settings, [layer[0] for layer in self._layers])

    def alone(self, folder: str) -> str:
        """The script for one device."""
        return self._text(folder, "parallel_mode='stand_alone'", [layer[2] for layer in self._layers])

    def on_rank(self, name: str, rank: int, wanted: np.ndarray) -> np.ndarray:
        """A rank has everything that one device has."""
        return wanted

    def _text(self, folder: str, settings: str, layers: Sequence[str]) -> str:
        return LAYERS + _TEXT.format(
            settings=settings, mesh=(self._data, self._context, self._model), layers=", ".join(layers),
            width=self._width, steps=STEPS, batch=self._batch, queries=self._queries, keys=self._keys, folder=folder,
            shift=self._shift, hidden=self._hidden,
        )  # fmt: skip

    def _layer(self) -> tuple[str, str, str]:
        """(text for all ranks, what it is, text for one device)."""
        r = self._r
        attention, about, alone = self._written() if r.random() < _WRITTEN[self._way] else self._flash()
        rest = f"{r.random() < 0.5}, {self._drop}"
        ahead = f"Layer({self._width}, {(self._heads, self._key_heads)}"
        cuts = self._cuts()
        return (
            f"{ahead}, {attention}, {rest}, {cuts}, {self._crossed})",
            about,
            f"{ahead}, {alone}, {rest}, (None,) * 3, {self._crossed})",
        )

    def _cuts(self) -> str:
        """Strategies of products of columns, of rows, and of the sum of residuals."""
        r, n, m = self._r, self._data * self._context, self._model
        columns = rows = add = None
        if self._way == "searched":
            return "(None, None, None)"
        if r.random() < 0.5:
            columns, rows = ((self._data, 1), (1, m)), ((self._data, m), (m, 1))
            if self._batch % n == 0 or self._data == 1:
                columns, rows = ((n, 1), (1, m)), ((n, m), (m, 1))
        if self._way == "hidden":
            by = self._context * (m if r.random() < 0.5 else 1)
            add = ((self._data, by, 1),) * 2
        return f"({columns}, {rows}, {add})"

    def _causal(self) -> bool:
        return self._r.random() < 0.6

    def _masks(self, ends: bool) -> dict[str, Any]:
        r = self._r
        found: dict[str, Any] = {}
        if r.random() < 0.35:
            found["hidden"] = True
        if r.random() < 0.15:
            found["shift"] = True
        if ends and r.random() < 0.25 and not self._crossed:
            found["ends"] = tuple(sorted({*(r.randint(1, self._queries) for _ in range(2)), self._queries}))
        return found

    def _entries(self, kinds: Sequence[str]) -> str:
        """A strategy whose entries have these dimensions: b, s, n, f for b and n in one, and anything else that is not
        sharded."""
        if self._layouts:
            names = {"b": "'dp'", "s": "'cp'", "n": "'mp'", "f": "('dp', 'mp')"}
            return "(" + "".join(f"layout({', '.join(names.get(d, repr('None')) for d in k)}), " for k in kinds) + ")"
        counts = {"b": self._data, "s": self._context, "n": self._model, "f": self._data * self._model}
        return repr(tuple(tuple(counts.get(d, 1) for d in k) for k in kinds))

    def _flash(self) -> tuple[str, str, str]:
        r = self._r
        layout = r.choice(("BSH", "BNSD", "BSND", "SBH"))
        masks = self._masks(ends=True)
        mode, window = 0, (2147483647, 2147483647)
        if self._causal():
            mode = r.choice((2, 2, 3, 4))
            if mode == 3 and self._keys < self._queries:
                mode = 2
            if mode == 4:
                window = r.choice(((3, 0), (self._queries, 1), (5, 2))) if not self._crossed else (self._queries * 9, 0)
            if mode == 4 and self._keys < self._queries:
                mode = 2
        if "hidden" in masks and mode:
            del masks["hidden"]
        sides = {"BSH": "bsn", "BNSD": "bns.", "BSND": "bsn.", "SBH": "sbn"}[layout]
        kinds = [sides] * 3
        at = {"hidden": self._hidden, "shift": self._shift}
        for name in ("shift", "hidden"):
            if name in masks:
                kinds.append("".join(d if n > 1 else "." for d, n in zip("bns.", at[name], strict=True)))
        cut = self._entries(kinds)
        if "ends" in masks:
            empty = "layout('None'), " * 2 if self._layouts else "(1,), (1,)"
            cut = f"{cut[:-1]}{', ' if not cut.endswith(', )') else ''}{empty})"
        attributes = self._attributes()
        heads = f"{self._heads}/{self._key_heads}"
        said = f"{layout} {mode} {window if mode == 4 else ''} {sorted(masks)} {heads} {attributes}"
        if self._way in ("hidden", "searched"):
            cut = "None"
        rest = f"{attributes}, {masks}, {window})"
        ahead = f"Flash({self._heads}, {layout!r}, {mode}"
        return f"{ahead}, {cut}, {rest}", said, f"{ahead}, None, {rest}"

    def _attributes(self) -> dict[str, Any]:
        r, heads, keys = self._r, self._heads // self._model, self._key_heads // self._model
        degrees = [n for n in _divisors(self._context) if heads % n == 0 and (keys % n == 0 or n % keys == 0)]
        return r.choice(({}, {}, {"enable_ring_attention": True}, {"ulysses_degree": r.choice(degrees)}))

    def _written(self) -> tuple[str, str, str]:
        r = self._r
        causal = r.choice(("added", "filled")) if self._causal() else ""
        masks, drop = self._masks(ends=False), r.choice((0.0, 0.0, 0.4))
        flat = r.random() < 0.25 and not masks  # masks have four dimensions
        product = self._entries(("fs.", "f..") if flat else ("bns.", "bn.."))
        given = [product, self._entries(("fs.",) if flat else ("bns.",)), product]
        kept = r.choice(((0,), (2,), (1,), (0, 2), (0, 1, 2)))
        cuts = ", ".join(given[i] if i in kept and self._way == "written" else "None" for i in range(3))
        group = self._heads // self._key_heads
        scaled = r.choice(("", "query", "scores"))
        rest = f"{causal!r}, {masks}, {drop}, {scaled!r}, {group}, {flat})"
        heads = f"{self._heads}/{self._key_heads}"
        said = f"written {'flat ' * flat}{kept} {causal} {sorted(masks)} {drop} {scaled} {heads}"
        return f"Written(({cuts}), {rest}", said, f"Written((None,) * 3, {rest}"


def _divisors(n: int) -> list[int]:
    return [i for i in range(1, n + 1) if math.gcd(i, n) == i]
