"""Operators between a column-wise and a row-wise layer: a plan is refused if PyTorch on slices gives other numbers."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.readers.pytorch.exporting import export_made
from mspc.readers.pytorch.graph_reader import read_program
from mspc.readers.pytorch.plans.strategies import planned
from mspc.readers.pytorch.plans.written_plan import plan_of

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")
nn, F = torch.nn, torch.nn.functional
RANKS, ROWS, IN, HIDDEN, OUT = 2, 3, 8, 16, 5

OPERATORS: Mapping[str, Callable[[Any], Any]] = {
    "halves": lambda h: h.chunk(2, -1)[0] * h.chunk(2, -1)[1], "glu": lambda h: F.glu(h, -1),
    "pairs": lambda h: h.unflatten(-1, (-1, 2)).prod(-1), "first": lambda h: h[..., : h.shape[-1] // 2],
    "rows": lambda h: h[:2].repeat(2, 1)[:ROWS], "every second": lambda h: h[..., 1::2],
    "twice": lambda h: torch.cat([h, h.tanh()], -1), "stacked": lambda h: torch.stack([h, h.tanh()], -1).flatten(1),
    "flip": lambda h: h.flip(-1), "flip rows": lambda h: h.flip(0), "roll": lambda h: h.roll(2, -1),
    "roll rows": lambda h: h.roll(1, 0), "sort": lambda h: h.sort(-1).values, "sort rows": lambda h: h.sort(0).values,
    "top": lambda h: h.topk(4, -1).values, "repeat": lambda h: h.repeat(1, 2),
    "interleave": lambda h: h.repeat_interleave(2, -1),
    "length": lambda h: F.normalize(h, dim=-1), "lengths": lambda h: F.normalize(h, dim=0),
    "heads": lambda h: F.layer_norm(h.view(ROWS, -1, 4), (4,)).view(ROWS, -1),
    "all": lambda h: F.layer_norm(h, h.shape[-1:]),
    "groups": lambda h: F.group_norm(h, 4), "channels": lambda h: F.batch_norm(h, None, None, training=True),
    "turned": lambda h: h.view(ROWS, -1, 4).transpose(1, 2).reshape(ROWS, -1),
    "rotated": lambda h: torch.cat([-h[..., h.shape[-1] // 2 :], h[..., : h.shape[-1] // 2]], -1),
    "rotated heads": lambda h: torch.cat([-h.view(ROWS, -1, 4)[..., 2:], h.view(ROWS, -1, 4)[..., :2]], -1).flatten(1),
    "differences": lambda h: h.diff(dim=-1, prepend=h[..., :1]), "pooled": lambda h: F.max_pool1d(h[:, None], 2)[:, 0],
    "windows": lambda h: F.max_pool1d(h[:, None], 3, 1, 1)[:, 0], "running": lambda h: h.cumsum(0),
    "scores": lambda h: (lambda x: torch.einsum("bhd,chd->bhc", x, x).flatten(1))(h.view(ROWS, -1, 4)),
    "mixed": lambda h: h @ h.T, "median": lambda h: h - h.median(-1, keepdim=True).values,
    "complex": lambda h: torch.view_as_real(torch.view_as_complex(h.view(ROWS, -1, 2)) ** 2).flatten(1),
    "padded": lambda h: F.pad(h, (1, -1)), "margins": lambda h: F.pad(h, (0, 0, 1, 1))[1:-1],
}  # fmt: skip


class Net(nn.Module):
    """Two layers around an operator, as one rank of several has them: with slices of their weights."""

    def __init__(self, operator: Callable[[Any], Any], rank: int | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        up, bias = torch.randn(HIDDEN, IN), torch.randn(HIDDEN)
        down = torch.randn(OUT, operator(torch.randn(ROWS, HIDDEN)).shape[-1])
        if rank is not None:
            up, bias, down = up.chunk(RANKS)[rank], bias.chunk(RANKS)[rank], down.chunk(RANKS, 1)[rank]
        self.operator = operator
        self.up, self.down = nn.Linear(IN, len(up)), nn.Linear(down.shape[1], OUT, bias=False)
        self.up.weight, self.up.bias, self.down.weight = map(nn.Parameter, (up, bias, down))

    def forward(self, x: Any) -> Any:
        return self.down(self.operator(self.up(x)))


def is_right_by_hand(operator: Callable[[Any], Any], x: Any) -> bool:
    try:
        total = sum(Net(operator, rank)(x) for rank in range(RANKS))
    except RuntimeError:
        return False
    return torch.allclose(total, Net(operator)(x), 1e-4, 1e-4)


def test_what_is_wrong_by_hand_is_refused(tmp_path: Path) -> None:
    plan = plan_of("plan", {"layers": {"up": "colwise", "down": "rowwise"}}, RANKS)
    x = torch.randn(ROWS, IN, generator=torch.Generator().manual_seed(1))
    found: dict[str, str] = {}
    right = {name for name, operator in OPERATORS.items() if is_right_by_hand(operator, x)}
    assert 10 < len(right) < len(OPERATORS) - 10
    for name, operator in OPERATORS.items():
        program = read_program(export_made((Net(operator), (x,)), tmp_path / "net.pt2", "net.py:make").path)
        try:
            planned(program, plan)
        except MspcError as error:
            found[name] = str(error)
    assert OPERATORS.keys() - found.keys() == right
    assert "flip reads slices along dimension 1 of the result of up" in found["flip"]
    assert "make up row-wise, or column-wise with a gather" in found["flip"]
    assert "test_plans_by_hand.py" in found["flip"]


HEADS, PAIRS, DEPTH, LENGTH, WIDTH = 4, 2, 8, 6, 32
PLAN = {
    "words": "RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1))",
    "norm": "SequenceParallel()", "head": "ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())",
    "block.first": "SequenceParallel()", "block.second": "SequenceParallel()",
    "block.attention": "PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())",
    "block.attention.q": "ColwiseParallel()", "block.attention.k": "ColwiseParallel()",
    "block.attention.v": "ColwiseParallel()", "block.attention.o": "RowwiseParallel(output_layouts=Shard(1))",
    "block.mlp": "PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())",
    "block.mlp.gate": "ColwiseParallel()", "block.mlp.up": "ColwiseParallel()",
    "block.mlp.down": "RowwiseParallel(output_layouts=Shard(1))",
}  # fmt: skip
"""Tensor and sequence parallel layers of a LLaMA, as trainers of it write them."""


class Attention(nn.Module):
    """Grouped heads, which are views of what layers give, and places as complex numbers or as rotated halves."""

    def __init__(self, is_complex: bool) -> None:
        super().__init__()
        self.is_complex = is_complex
        self.q, self.o = nn.Linear(WIDTH, HEADS * DEPTH, bias=False), nn.Linear(HEADS * DEPTH, WIDTH, bias=False)
        self.k, self.v = (nn.Linear(WIDTH, PAIRS * DEPTH, bias=False) for _ in range(2))

    def placed(self, x: Any) -> Any:
        angles = torch.arange(LENGTH * DEPTH // 2).reshape(1, LENGTH, 1, DEPTH // 2) * 0.1
        if self.is_complex:
            pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            return torch.view_as_real(pairs * torch.polar(torch.ones_like(angles), angles)).flatten(3).type_as(x)
        angles = torch.cat([angles, angles], -1)
        turned = torch.cat([-x[..., DEPTH // 2 :], x[..., : DEPTH // 2]], -1)
        return x * angles.cos() + turned * angles.sin()

    def forward(self, x: Any) -> Any:
        q, k, v = (layer(x).view(x.shape[0], LENGTH, -1, DEPTH) for layer in (self.q, self.k, self.v))
        q, k = self.placed(q), self.placed(k)
        if self.is_complex:
            k, v = (t[:, :, :, None].expand(*t.shape[:3], HEADS // PAIRS, DEPTH).flatten(2, 3) for t in (k, v))
            y = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), is_causal=True)
            return self.o(y.transpose(1, 2).contiguous().view(x.shape[0], LENGTH, -1))
        k, v = (t.repeat_interleave(HEADS // PAIRS, 2) for t in (k, v))
        weights = torch.softmax(torch.einsum("bqhd,bkhd->bhqk", q, k), -1, dtype=torch.float32).to(q.dtype)
        return self.o((weights @ v.transpose(1, 2)).transpose(1, 2).reshape(x.shape[0], LENGTH, -1))


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate, self.up, self.down = nn.Linear(WIDTH, 64), nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    def __init__(self, is_complex: bool) -> None:
        super().__init__()
        self.first, self.second = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.attention, self.mlp = Attention(is_complex), Gated()

    def forward(self, x: Any) -> Any:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class Llama(nn.Module):
    def __init__(self, is_complex: bool) -> None:
        super().__init__()
        self.words, self.block = nn.Embedding(16, WIDTH), Block(is_complex)
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 16, bias=False)

    def forward(self, words: Any) -> Any:
        return self.head(self.norm(self.block(self.words(words))))


@pytest.mark.parametrize("is_complex", [True, False])
def test_right_plans_are_taken(is_complex: bool, tmp_path: Path) -> None:
    words = torch.zeros((2, LENGTH), dtype=torch.int64)
    program = read_program(export_made((Llama(is_complex), (words,)), tmp_path / "net.pt2", "net.py:make").path)
    names = {node.target.split(".")[1]: node.results[0] for node in program.graph.nodes if node.results}
    cuts = planned(program, plan_of("plan", {"layers": PLAN}, RANKS)).cuts
    assert cuts[names["view_as_complex" if is_complex else "einsum"]] == (2 if is_complex else 1)
