"""A layer of experts in MindSpore's style, its gradients, and what each launch of a step takes."""

from __future__ import annotations

import statistics
from typing import Any

import mspc as ms
from benchmarks.gpu.expert_layer.sizes import Sizes, values
from benchmarks.gpu.networks.program import Program, resident
from mspc import Parameter, Tensor, nn, ops
from mspc.api.call_handler import current
from mspc.runtime.profile import Timed, costs

ON, OFF = Tensor(1.0, ms.float32), Tensor(0.0, ms.float32)
TIMED = 5
"""Steps in which launches are timed."""
LISTED = 40


class Layer(nn.Cell):
    """Every token goes to the experts that its router prefers, however many choose one."""

    def __init__(self, sizes: Sizes, given: dict[str, Any], dtype: Any) -> None:
        super().__init__()
        self.experts, self.chosen = sizes.experts, sizes.chosen
        self.router, self.gate, self.up, self.down = (Parameter(Tensor(given[name], dtype)) for name in sizes.shapes)
        self.gating, self.opening, self.closing = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(3))

    def construct(self, x):
        scores = ops.softmax(ops.matmul(x, self.router).astype(ms.float32), -1)
        weights, experts = ops.topk(scores, self.chosen)
        weights = weights / weights.sum(-1, keepdims=True)
        rows, back = ops.moe_token_permute(x, experts)
        ends = ops.cumsum(ops.one_hot(experts.reshape(-1), self.experts, ON, OFF).sum(0), 0).astype(ms.int64)
        gate = self.gating([rows], [self.gate], None, None, None, None, None, ends)[0]
        up = self.opening([rows], [self.up], None, None, None, None, None, ends)[0]
        found = self.closing([ops.silu(gate) * up], [self.down], None, None, None, None, None, ends)[0]
        out = ops.moe_token_unpermute(found, back, weights)
        return ops.square(out.astype(ms.float32)).mean()


class Launches:
    """Stands where a job's profile stands: runs steps launch by launch, and keeps their times."""

    def __init__(self) -> None:
        self.graph: Any = None
        self.steps: list[list[Timed]] = []

    def run(self, executor: Any, inputs: Any, origins: Any) -> Any:
        """A step of an executor."""
        self.graph = executor.graph
        results, times = executor.run_timed(inputs, origins)
        self.steps.append(times)
        return results

    def step_done(self, job: Any) -> None:
        """A step has ended."""

    def end(self, job: Any) -> None:
        """The job has ended."""


def built(sizes: Sizes, device: str, dtype: str) -> Program:
    """The program of mspc."""
    ms.set_context(mode=ms.GRAPH_MODE, device_target=device.upper())
    given = values(sizes)
    kind = ms.bfloat16 if dtype == "bf16" else ms.float32
    layer = Layer(sizes, given, kind).set_train()
    x = Tensor(given.pop("tokens"), kind)
    parameters = layer.trainable_params()
    gradients = ms.value_and_grad(layer, 0, parameters)

    @ms.jit
    def step(x):
        loss, (of_tokens, others) = gradients(x)
        # A few elements of each gradient make the step compute all of it and leave it on the device.
        return loss, of_tokens[0, :8], [gradient.reshape(-1)[:8] for gradient in others]

    @ms.jit
    def norms(x):
        _, (of_tokens, others) = gradients(x)
        return [ops.sqrt(ops.square(gradient.astype(ms.float32)).sum()) for gradient in (*others, of_tokens)]

    peak = ms.runtime.max_memory_allocated if device == "gpu" else resident

    def ending() -> dict[str, Any]:
        held, launches, job = peak(), Launches(), current().job
        job.profile = launches
        for _ in range(TIMED):
            step(x)
        ms.runtime.synchronize()
        job.profile = None
        found = [
            (cost.label, cost.type, cost.seconds, cost.line)
            for cost in costs(launches.steps, launches.graph, most=LISTED)
        ]
        whole = statistics.median(sum(timed.own for timed in times) for times in launches.steps) / 1000
        plain = sorted({launches.graph.nodes[t.index].label for times in launches.steps for t in times if t.plain})
        names = [*sizes.shapes, "tokens"]
        return {
            "peak": held, "launches": found, "launched": whole, "plain": plain,
            "norms": dict(zip(names, [float(norm.asnumpy()) for norm in norms(x)], strict=True)),
        }  # fmt: skip

    return Program(
        lambda: step(x)[0], lambda loss: float(loss.asnumpy()), ms.runtime.synchronize, peak, sizes.shapes,
        ending=ending,
    )  # fmt: skip
