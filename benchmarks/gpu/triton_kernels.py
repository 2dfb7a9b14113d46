"""Kernels that mspc makes of a script beside kernels in Triton that do the same, on one GPU.

    python -m benchmarks.gpu.triton_kernels [--rate 0.1] [--repeats 20]

Three: dropout, a residual sum and LayerNorm in one; the gradients of RMSNorm with the sum over rows for its scale;
causal attention with dropout. Numbers are BFloat16. First both are run without dropout and compared with PyTorch in
Float32, then timed with it, in a CUDA graph of many calls. Triton takes the fastest of several divisions of the work.
The table says the median of several times, and how many lines of source there are to keep: of the script, and of
kernels with what launches them.
"""

from __future__ import annotations

import argparse
import inspect
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np

import mspc as ms
from benchmarks.gpu.graph_time import microseconds
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.graph import Constant, Graph, Node, Value, element_types
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.op import Op
from mspc.ops.tensor.reshape import Reshape

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
ROWS, WIDTH = 8192, 1024
BATCH, HEADS, LENGTH, DEPTH = 8, 12, 1024, 64
TIMES = 5
Array = Any


class AddNorm(nn.Cell):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout, self.norm = nn.Dropout(p=rate), nn.LayerNorm((WIDTH,), epsilon=1e-5)

    def construct(self, x: Any, residual: Any) -> Any:
        return self.norm((self.dropout(x) + residual).astype(ms.float32)).astype(x.dtype)


class RmsNorm(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.gamma = Parameter(ops.ones((WIDTH,), ms.float32))

    def construct(self, x: Any) -> Any:
        wide = x.astype(ms.float32)
        return (wide * ops.rsqrt(wide.pow(2).mean(-1, keep_dims=True) + 1e-6) * self.gamma).astype(x.dtype)


class RmsNormGradients(nn.Cell):
    """In x and gamma; only what comes behind the reciprocal roots of the forward pass is timed."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = RmsNorm()

    def loss(self, x: Any, slope: Any) -> Any:
        return (self.norm(x).astype(ms.float32) * slope.astype(ms.float32)).sum()

    def construct(self, x: Any, slope: Any) -> Any:
        return ms.grad(self.loss, 0, self.norm.gamma)(x, slope)


class Attention(nn.Cell):
    def __init__(self, rate: float) -> None:
        super().__init__()
        self.dropout, self.scale = nn.Dropout(p=rate), DEPTH**-0.5
        self.future = Tensor(np.triu(np.ones((LENGTH, LENGTH), np.bool_), 1))

    def construct(self, q: Any, k: Any, v: Any) -> Any:
        scores = (ops.matmul(q, k.swapaxes(-1, -2)) * self.scale).astype(ms.float32)
        shares = ops.softmax(scores.masked_fill(self.future, -1e9), -1).astype(q.dtype)
        return ops.matmul(self.dropout(shares), v)


@dataclass(frozen=True)
class Compiled:
    """A script's kernels on arrays of the GPU: what to launch, and the arrays of the results."""

    launches: list[Callable[[], None]]
    timed: list[Callable[[], None]]
    results: list[Array]


def compiled(device: Any, network: Any, inputs: Sequence[Any]) -> Compiled:
    """The kernels of a network's graph; those of its gradients alone are timed where there are any."""
    network.set_train()
    found = compile_call(network, [Tensor(x) for x in inputs], Config(device="GPU"))
    graph = found.rank_graph(0)
    fed = iter(inputs)
    arrays: dict[Value, Any] = {}
    for parameter in graph.parameters:
        if parameter.kind == "input":
            value = next(fed)
        elif parameter.kind == "constant":
            value = found.traced.constants[parameter.name]
        else:
            value = found.traced.parameters[parameter.name].asnumpy()
        arrays[parameter] = put(device, np.asarray(value))
    launches = [(node, launch) for node in graph.nodes if (launch := _launched(device, graph, arrays, node))]
    backward = [launch for node, launch in launches if node.phase == "backward"]
    every = [launch for _, launch in launches]
    return Compiled(every, backward or every, [arrays[value] for value in graph.results])


def _launched(device: Any, graph: Graph, arrays: dict[Value, Any], node: Node) -> Callable[[], None] | None:
    """The launch of a node, whose results get arrays; None for one that only shows another's memory."""
    for value in node.inputs:
        if isinstance(value, Constant) and value not in arrays:
            arrays[value] = put(device, np.asarray(value.value, value.tensor_type.dtype.numpy))
    given = [arrays[value] for value in node.inputs]
    op = node.op
    assert isinstance(op, Op)
    if isinstance(op, TupleGetItem):
        arrays[node] = given[0][op.index]
        return None
    if isinstance(op, Reshape):
        arrays[node] = given[0].reshape(node.shape)
        return None
    made = tuple(device.empty(type.shape, type.dtype.numpy) for type in element_types(node.type))
    arrays[node] = made if len(made) > 1 else made[0]
    with device.stream("compute"):
        launch = op.launch(device, given, arrays[node])
    if launch is None:
        sys.exit(f"{node.label} has no kernel of its own in {graph.name}")
    return launch


def put(device: Any, array: Any) -> Array:
    host = np.ascontiguousarray(array).reshape(array.shape)
    found = device.empty(array.shape, array.dtype)
    device.send(host, found)
    device.synchronize()
    return found


def fetched(device: Any, array: Array) -> Any:
    found = np.empty(array.shape, array.dtype)
    device.synchronize()
    device.receive(array, found)
    device.synchronize()
    return found.astype(np.float32)


def lines(*parts: Any) -> int:
    """Of source, without empty ones and comments."""
    count = 0
    for part in parts:
        while hasattr(part, "fn"):  # Triton's decorators
            part = part.fn
        text = inspect.getsource(part).splitlines()
        count += sum(bool(line.strip()) and not line.strip().startswith(("#", '"""')) for line in text)
    return count


@dataclass(frozen=True)
class Work:
    """What is compared. network: of a rate of dropout. triton: (a call of Triton's kernels on tensors and a rate, its
    results). wanted: what PyTorch gives for the tensors in Float32 without dropout."""

    name: str
    network: Callable[[float], Any]
    inputs: list[Any]
    triton: Callable[..., tuple[Callable[[], None], list[Any]]]
    wanted: Callable[..., list[Any]]
    scripts: tuple[Any, ...]
    sources: tuple[Any, ...]


def works(torch: Any, sources: Any) -> list[Work]:
    draw = np.random.default_rng(1).standard_normal
    rows = [draw((ROWS, WIDTH), np.float32).astype(BFLOAT16) for _ in range(2)]
    heads = [draw((BATCH, HEADS, LENGTH, DEPTH), np.float32).astype(BFLOAT16) for _ in range(3)]
    ones, zeros = (make((WIDTH,), device="cuda") for make in (torch.ones, torch.zeros))

    def add_norm(rate: float, x: Any, residual: Any) -> tuple[Callable[[], None], list[Any]]:
        out = torch.empty_like(x)
        return lambda: sources.add_norm(x, residual, ones, zeros, out, rate), [out]

    def gradients(_: float, x: Any, slope: Any) -> tuple[Callable[[], None], list[Any]]:
        rstd = torch.rsqrt(x.float().square().mean(-1) + 1e-6)
        programs = 4 * torch.cuda.get_device_properties(0).multi_processor_count
        partial = torch.empty((programs, WIDTH), device="cuda")
        made = [torch.empty_like(x), torch.empty_like(ones)]
        return lambda: sources.rms_norm_gradients(x, slope, rstd, ones, *made, partial), made

    def attention(rate: float, q: Any, k: Any, v: Any) -> tuple[Callable[[], None], list[Any]]:
        out = torch.empty_like(q)
        return lambda: sources.attention(q, k, v, out, rate), [out]

    def gradients_wanted(x: Any, slope: Any) -> list[Any]:
        x, gamma = x.requires_grad_(), ones.clone().requires_grad_()
        y = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * gamma
        return list(torch.autograd.grad(y, (x, gamma), slope))

    functions = torch.nn.functional
    return [
        Work("dropout + residual + LayerNorm", AddNorm, rows, add_norm,
             lambda x, residual: [functions.layer_norm(x + residual, (WIDTH,))], (AddNorm,),
             (sources.add_norm_kernel, sources.add_norm)),
        Work("gradients of RMSNorm", lambda _: RmsNormGradients(), rows, gradients, gradients_wanted, (RmsNorm,),
             (sources.rms_norm_gradients_kernel, sources.sum_kernel, sources.rms_norm_gradients)),
        Work("causal attention with dropout", Attention, heads, attention,
             lambda q, k, v: [functions.scaled_dot_product_attention(q, k, v, is_causal=True)], (Attention,),
             (sources.look, sources.attention_kernel, sources.attention)),
    ]  # fmt: skip


def compared(device: Any, torch: Any, sources: Any, work: Work, rate: float, repeats: int) -> str:
    """A line of the table."""
    tensors = [torch.from_numpy(x.astype(np.float32)).to("cuda", torch.bfloat16) for x in work.inputs]
    wanted = [x.detach().cpu().numpy() for x in work.wanted(*(x.float() for x in tensors))]
    ours = compiled(device, work.network(0.0), work.inputs)
    for launch in ours.launches:
        launch()
    call, results = work.triton(0.0, *tensors)
    call()
    errors = [_error([fetched(device, x) for x in ours.results], wanted),
              _error([x.float().cpu().numpy() for x in results], wanted)]  # fmt: skip
    ours = compiled(device, work.network(rate), work.inputs)
    for launch in ours.launches:
        launch()
    call, _ = work.triton(rate, *tensors)
    times = [(microseconds(device, ours.timed, repeats), sources.microseconds(call, repeats)) for _ in range(TIMES)]
    mine, other = (statistics.median(column) for column in zip(*times, strict=True))
    return (f"{work.name:31} {mine:9.1f} {other:9.1f} {other / mine:7.2f} {lines(*work.scripts):6d} "
            f"{lines(*work.sources):7d} {errors[0]:9.1e} {errors[1]:9.1e}")  # fmt: skip


def _error(found: Sequence[Any], wanted: Sequence[Any]) -> float:
    """The largest root of the mean square of an error, over that of what is wanted."""
    pairs = zip(found, wanted, strict=True)
    return max(float(np.sqrt(np.mean((a - b) ** 2) / np.mean(b**2))) for a, b in pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--rate", type=float, default=0.1, help="of dropout")
    parser.add_argument("--repeats", type=int, default=20, help="calls in a CUDA graph")
    given = parser.parse_args()
    try:
        import torch

        from benchmarks.gpu import triton_sources
    except ImportError as error:
        sys.exit(f"this compares with Triton, and needs torch and triton beside a GPU: {error}")
    from mspc.runtime.gpu.device import open_device

    if not torch.cuda.is_available():
        sys.exit("this compares with Triton on a GPU, and PyTorch finds none")
    torch.backends.cuda.matmul.allow_tf32 = False
    ms.set_context(mode=ms.GRAPH_MODE, device_target="GPU")
    device = open_device()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton_sources.triton.__version__}")
    for head in (("", "mspc", "Triton", "Triton/", "script", "Triton", "error of", "error of"),
                 ("", "us", "us", "mspc", "lines", "lines", "mspc", "Triton")):  # fmt: skip
        print("{:31} {:>9} {:>9} {:>7} {:>6} {:>7} {:>9} {:>9}".format(*head))
    for work in works(torch, triton_sources):
        print(compared(device, torch, triton_sources, work, given.rate, given.repeats), flush=True)


if __name__ == "__main__":
    main()
