"""Random networks beside what the search says of them.

Every network is searched as `mspc search` does it, without a limit and within one, and by bytes alone as scripts ask
for it, and is then cut at random: no plan may be quicker than the stated gap allows, nor send less than the stated
bound where its products are shared by all ranks, and a limit may not bring a quicker plan.
"""

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from docs.site.samples_on_ranks import random_strategy
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.machine import H200
from mspc.analysis.cost.nodes import least_seconds
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import DumpPoint, TracedCall, compile_traced, trace_call
from mspc.compiler.program_figures import sent_by_ranks
from mspc.engine.capture import CapturedCall
from mspc.ir.graph import Parameter as GraphParameter
from mspc.mindspore_api.context import freeze
from mspc.passes.lib.choices import composite_conflict, rule_of
from mspc.passes.lib.placement import work_of
from mspc.plans.operator_names import LAYOUTS
from mspc.search.plans.alternatives import WAYS, PlanRequest
from mspc.search.plans.row import SEARCH
from mspc.search.plans.table import plans_for
from mspc.sharding.rules import Rule
from tests.graphs import FLOAT32, INT32, Graph, MspcError, TensorType, operand_types

RANKS = (2, 2, 4, 4, 8)
ROWS, WIDTHS = (8, 16, 32, 64, 256, 1024), (8, 16, 32, 64, 256, 2048)
LARGEST = 1 << 23
"""Elements of a product's tensors at most."""
TRIALS = 8
"""How often a strategy of an operator is drawn until one is legal."""
ROUNDING, BYTES = 1e-9, 1.0
"""The share of a time, and the bytes, that do not count."""
LIMIT = 0.8
"""Shares of the memory that the search's plan takes."""
KINDS = ("product", "product", "norm", "rms", "relu", "scaled", "centred", "joined", "halves", "turned", "softmax",
         "branch")  # fmt: skip


class Drawn(nn.Cell):
    """A network of a few operators. takes: the type of its input."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.rng = rng = random.Random(seed)
        self.ranks = rng.choice(RANKS)
        self.trained = rng.random() < 0.5
        self.rows, self.width = rng.choice(ROWS), rng.choice(WIDTHS)
        self.takes = TensorType(FLOAT32, (self.rows, self.width))
        self.steps: list[tuple[str, Any, int]] = []
        self.count = 0
        if rng.random() < 0.25:
            words = rng.choice((32, 64, 512, 4096))
            self.takes = TensorType(INT32, (self.rows,))
            self._add("lookup", ops.Gather(), words, self.width)
        for _ in range(rng.randint(1 if self.steps else 2, 4)):
            getattr(self, f"_{rng.choice(KINDS)}")()
        self.loss = rng.choice(["mean", "sum", "square"] if self.trained else ["mean", "sum", "rows", "none"])
        self.trained = self.trained and self.count > 0

    def _add(self, kind: str, cell: Any, *sizes: int) -> None:
        number = -1
        if sizes:
            number = self.count
            self.count += 1
            setattr(self, f"weight{number}", Parameter(Tensor(np.zeros(sizes, np.float32))))
        setattr(self, f"step{len(self.steps)}", cell)
        self.steps.append((kind, cell, number))

    def _product(self) -> None:
        fitting = [w for w in WIDTHS if max(w, self.rows) * max(self.width, w) <= LARGEST]
        wider = self.rng.choice(fitting)
        self._add("weighted", ops.MatMul(), self.width, wider)
        self.width = wider

    def _norm(self) -> None:
        self._add("alone", nn.LayerNorm((self.width,)))

    def _rms(self) -> None:
        self._add("first", ops.RmsNorm(1e-5), self.width)

    def _relu(self) -> None:
        self._add("alone", self.rng.choice([ops.ReLU(), ops.Tanh(), ops.Square()]))

    def _scaled(self) -> None:
        self._add("weighted", ops.Mul(), self.width)

    def _centred(self) -> None:
        kind = self.rng.choice([ops.ReduceSum, ops.ReduceMean, ops.ReduceMax])
        self._add("centred", kind(keep_dims=True))

    def _joined(self) -> None:
        self._add("joined", ops.Concat(axis=1))
        self.width *= 2

    def _halves(self) -> None:
        self._add("halves", ops.Split(axis=1, output_num=2))
        self.width //= 2

    def _turned(self) -> None:
        self._add("turned", ops.Transpose())
        self.rows, self.width = self.width, self.rows

    def _softmax(self) -> None:
        self._add("alone", ops.Softmax(-1))

    def _branch(self) -> None:
        self._add("branch", ops.Add())

    def construct(self, x: Tensor) -> Tensor:
        earlier = x
        for kind, cell, number in self.steps:
            before = x
            if kind == "lookup":
                x = cell(self.weight0, x, 0)
                earlier = x
            elif kind == "weighted":
                x = cell(x, getattr(self, f"weight{number}"))
            elif kind == "first":
                x = cell(x, getattr(self, f"weight{number}"))[0]
            elif kind == "centred":
                x = x * cell(x, 1)
            elif kind == "joined":
                x = cell((x, ops.tanh(x)))
            elif kind == "halves":
                left, right = cell(x)
                x = left * right
            elif kind == "turned":
                x = cell(x, (1, 0))
            elif kind == "branch":
                x = cell(x, earlier) if x.shape == earlier.shape else cell(x, ops.tanh(x))
            else:
                x = cell(x)
            earlier = before if kind in ("alone", "weighted") and before.shape == x.shape else x
        if self.loss == "mean":
            return ops.reduce_mean(x)
        if self.loss == "sum":
            return ops.reduce_sum(x)
        if self.loss == "square":
            return ops.reduce_sum(ops.square(x))
        return ops.reduce_sum(x, 0) if self.loss == "rows" else x


@dataclass
class Found:
    """The results of some networks. false: what was stated and is not so. slower, dearer: networks of which a drawn
    plan is quicker, or sends less, than the search's; worst: by which share."""

    networks: int = 0
    plans: int = 0
    false: int = 0
    slower: int = 0
    dearer: int = 0
    worst: dict[str, float] = field(default_factory=dict[str, float])
    lines: list[str] = field(default_factory=list[str])

    def say(self, seed: int, net: Drawn, what: str) -> None:
        operators = ", ".join(type(cell).__name__ for _, cell, _ in net.steps)
        trained = ", trained" if net.trained else ""
        self.lines.append(f"seed {seed}: {what} ({operators} of {net.takes} on {net.ranks} ranks, {net.loss}{trained})")


@dataclass(frozen=True)
class Cut:
    """The cost of a plan. sent: bytes in the mean over ranks; shared: all ranks share its products."""

    step: float
    sent: float
    shared: bool


def launched(seed: int) -> tuple[Drawn, CapturedCall]:
    """A network and its call."""
    net = Drawn(seed)
    target: Any = net
    if net.trained:
        target = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    return net, CapturedCall(target, (net.takes,), freeze(target), Path("drawn.py"), True)


def read(seed: int, **settings: Any) -> TracedCall:
    """A network's graph, read."""
    net, captured = launched(seed)
    config = Config(ranks=net.ranks, dataset_strategy="full_batch", **settings)
    return trace_call(captured.target, describe_call(captured.args, []), config)


def cut_at_random(graph: Graph, ranks: int, rng: random.Random) -> None:
    """Strategies for the operators of a graph that was read: of some plans each operator whole or along one factor, of
    others anything."""
    seen: set[Any] = set()
    usual, whole = rng.choice([0.0, 0.5, 1.0, 1.0]), rng.choice([0.0, 0.3, 1.0, 0.9])
    for node in graph.nodes:
        rule = rule_of(node)
        parameters = {v for v in node.inputs if isinstance(v, GraphParameter)}
        if rule is None or parameters & seen:
            continue
        for _ in range(TRIALS):
            if rng.random() < usual:
                product = bool(node.op.operations(operand_types(node)))
                strategy = one_factor(node.op, rule, ranks, rng, 0.1 * whole if product else whole)
            else:
                strategy = random_strategy(node.op, rule, ranks, rng)
            if strategy is not None:
                node.in_strategy = strategy
                break
        seen |= parameters


def one_factor(op: Any, rule: Rule, ranks: int, rng: random.Random, whole: float) -> Any:
    """A strategy that cuts nothing, or one factor as often as there are ranks; None where the draw is not legal."""
    legal = [f for f, size in enumerate(rule.sizes) if f not in rule.frozen and size % ranks == 0]
    cuts = [1] * len(rule.sizes)
    if legal and rng.random() >= whole:
        cuts[rng.choice(legal)] = ranks
    if composite_conflict(rule, tuple(cuts), [(i,) if c > 1 else () for i, c in enumerate(cuts)]):
        return None
    return tuple(tuple(math.prod(cuts[f] for f in dim) for dim in dims) for dims in op.strategy_dims(rule))


def shares_products(graph: Graph, ranks: int) -> bool:
    """Whether every product of a graph whose layouts are decided is shared by all ranks."""
    for node in graph.nodes:
        rule = rule_of(node)
        if rule is None or node.phase == "update" or not node.op.operations(operand_types(node)):
            continue
        if work_of(node, rule) > math.prod(rule.sizes) / ranks * 1.0001:
            return False
    return True


def drawn_plans(seed: int, count: int) -> Iterator[Cut]:
    """Plans with random strategies; those that are refused are left out."""
    rng = random.Random(seed + 1)
    for _ in range(count):
        call = read(seed, mode="semi_auto_parallel")
        ranks = call.config.ranks
        cut_at_random(call.traced.graph, ranks, rng)
        shared: list[bool] = []

        def look(stage: DumpPoint, shared: list[bool] = shared, ranks: int = ranks) -> None:
            if stage.name == LAYOUTS:
                shared.append(shares_products(stage.graph, ranks))

        try:
            compiled = compile_traced(call, look)
        except MspcError:
            continue
        sent = sent_by_ranks(compiled)
        yield Cut(StreamTimeline(compiled.rank_graph(sent.rank), H200).total, sent.mean, shared[0])


def check_bytes(seed: int, drawn: Sequence[Cut], found: Found) -> None:
    """A search by bytes: what it states of bytes and of the step's least."""
    net, _ = launched(seed)
    compiled = compile_traced(read(seed, mode="auto_parallel", search_mode="dynamic_programming"))
    cost, bound = compiled.graph.attrs["search_cost"], compiled.graph.attrs.get("search_bound", 0)
    least = least_seconds(compiled.graph.nodes, net.ranks, H200)
    quickest = min((cut.step for cut in drawn), default=math.inf)
    cheapest = min((cut.sent for cut in drawn if cut.shared), default=math.inf)
    if quickest < least * (1 - ROUNDING):
        found.false += 1
        found.say(seed, net, f"FALSE: no step takes less than {least:.3g} s, and one takes {quickest:.3g} s")
    if cheapest < bound - BYTES:
        found.false += 1
        found.say(seed, net, f"FALSE: no plan sends less than {bound} bytes, and one sends {cheapest:.0f}")
    if cheapest < cost - BYTES:
        found.dearer += 1
        found.worst["bytes"] = max(found.worst.get("bytes", 0.0), 1 - cheapest / cost)
        found.say(seed, net, f"dearer: {cost} bytes, {cheapest:.0f} are possible")


def check_steps(seed: int, drawn: Sequence[Cut], found: Found) -> None:
    """`mspc search`, without a limit of memory and within one."""
    net, captured = launched(seed)
    asked = PlanRequest(net.ranks, H200, free=True)
    plans = plans_for(captured, asked).plans
    own = next(plan for plan in plans if plan.name == SEARCH)
    quickest = min((cut.step for cut in drawn), default=math.inf)
    if own.gap is not None and quickest < own.step * (1 - own.gap) * (1 - ROUNDING):
        found.false += 1
        found.say(seed, net, f"FALSE: {own.step:.3g} s with a gap of {own.gap:.1%}, and one takes {quickest:.3g} s")
    if min(plan.step for plan in plans) < own.step:
        found.false += 1
        found.say(seed, net, "FALSE: the search is not the quickest of the table")
    if quickest < own.step * (1 - ROUNDING):
        found.slower += 1
        found.worst["step"] = max(found.worst.get("step", 0.0), 1 - quickest / own.step)
        found.say(seed, net, f"slower: {own.step * 1e6:.2f} us, {quickest * 1e6:.2f} us are possible")
    try:
        within = plans_for(launched(seed)[1], replace(asked, memory=int(own.memory * LIMIT)), ways=WAYS[:1]).plans[0]
    except MspcError:
        return  # there may be none
    if within.step < own.step * (1 - ROUNDING):
        found.false += 1
        found.say(seed, net, f"FALSE: a limit brings {within.step * 1e6:.2f} us in place of {own.step * 1e6:.2f} us")


def check(seed: int, count: int, found: Found, steps: bool = True) -> None:
    """Everything of one network. steps: search it as `mspc search` does, too."""
    drawn = [*drawn_plans(seed, count)]
    found.networks += 1
    found.plans += len(drawn)
    check_bytes(seed, drawn, found)
    if steps:
        check_steps(seed, drawn, found)
