"""One sample of an operator: recorded as the graph that `torch.export` gives, compiled, and compared with PyTorch."""

from __future__ import annotations

import math
import operator
import signal
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from mspc.checkpoint.files import Files
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import dtype_of
from mspc.mindspore_api.common.gradient import GradientFunction, grad
from mspc.mindspore_api.common.tensor import Tensor
from mspc.readers.pytorch.exported_program import (
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramOutput,
    TensorPlace,
)
from mspc.readers.pytorch.network import ImportedNetwork

TOLERANCES = {"float32": 1e-5, "float64": 1e-8, "bfloat16": 2e-2, "complex64": 1e-5, "complex128": 1e-8,
              "float16": 2e-3}  # fmt: skip
"""Allowed differences per type: relative to an element ten times as much, and to the largest one."""
LESS_EXACT = frozenset(f"special.bessel_{name}" for name in ("j0", "j1", "y0", "y1"))
"""Operators that PyTorch itself computes with errors of up to 9e-7 next to 5: in Float64 1e-6 is allowed."""
UNSET = ("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided", "resize_",
         "resize_as_")  # fmt: skip
"""Operators whose results, in part, are whatever memory has."""
OTHER_GRADIENT = ("as_strided_scatter",)
"""Operators whose gradient in PyTorch 2.13 is not that of their values."""
TIES = frozenset(f"aten.{name}" for name in (
    "sort.default", "sort.stable", "argsort.default", "argsort.stable", "topk.default", "kthvalue.default",
    "median.dim", "nanmedian.dim", "mode.default"))  # fmt: skip
"""Kinds whose places of equal elements are in no certain order."""
SECONDS = 60
"""The time limit of a sample."""


class SampleOutcome(NamedTuple):
    """The comparison of one sample: of its values, and of its gradients ("" if there are none), with the reason. kinds:
    of its nodes."""

    name: str
    dtype: str
    values: str
    gradients: str
    reason: str
    kinds: tuple[str, ...] = ()


class NotRecorded(Exception):
    """PyTorch does not record the sample as a graph of tensors."""


class OperatorSample:
    """One sample of an operator: a function of its tensors. each: the operator. given: its arguments."""

    def __init__(self, each: Any, given: Any) -> None:
        from torch import Tensor as TorchTensor
        from torch.utils import _pytree

        self.each, self.given, self.tree = each, given, _pytree
        self.leaves, self.spec = _pytree.tree_flatten((given.input, given.args, given.kwargs))
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, TorchTensor)]
        self.tensors = [self.leaves[i].detach() for i in self.places]

    def __call__(self, *tensors: Any) -> list[Any]:
        """Return the tensors in the results."""
        import torch

        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        first, args, named = self.tree.tree_unflatten(leaves, self.spec)
        found = self.each(first.clone() if self.each.name.endswith("_") else first, *args, **named)
        found = self.given.output_process_fn_grad(found)
        return [each for each in self.tree.tree_leaves(found) if isinstance(each, torch.Tensor)]

    def widened(self) -> list[Any]:
        """Return the results that PyTorch computes in Float32."""
        import torch

        return self(*[t.float() if t.dtype == torch.bfloat16 else t for t in self.tensors])

    @property
    def trained(self) -> list[int]:
        """The numbers of the tensors that are differentiated."""
        return [i for i, tensor in enumerate(self.tensors)
                if tensor.is_floating_point() and self.leaves[self.places[i]].requires_grad]  # fmt: skip

    def step(self, *tensors: Any) -> list[Any]:
        """Return the results, and the gradients of a sum of the first one that has any."""
        import torch

        given = [tensor.detach() for tensor in tensors]
        trained = [given[i].requires_grad_() for i in self.trained]
        with torch.enable_grad():
            results = self(*given)
            first = next(each for each in results if each.requires_grad and each.is_floating_point())
            total = (first * torch.from_numpy(scales_of(first)).to(first.dtype)).sum()
        found = torch.autograd.grad(total, trained, allow_unused=True)
        return [each.detach() for each in (*results, *found) if each is not None]

    def recorded(self, is_step: bool = False) -> tuple[ExportedProgram, list[Any], bool]:
        """Return its graph as `torch.export` writes it, its constants, and whether its numbers are drawn. is_step: the
        graph of `step`, of the operators that autograd calls. Raise NotRecorded if PyTorch cannot record it."""
        import torch
        from torch.fx.experimental.proxy_tensor import make_fx

        call = self.step if is_step else self
        try:
            with torch.no_grad():
                module = make_fx(lambda *given: call(*given), pre_dispatch=not is_step)(*self.tensors)
            return *_program(module.graph), _is_drawn(module.graph)
        except MspcError:
            raise
        except Exception as error:  # whatever PyTorch raises
            raise NotRecorded(f"{type(error).__name__}: {error}"[:200]) from None


def _program(graph: Any) -> tuple[ExportedProgram, list[Any]]:
    """Return a recorded graph of PyTorch as a program of mspc, and its constants, which are its last inputs."""
    import torch

    inputs, nodes, names = list[ProgramInput](), list[ExportedNode](), dict[Any, str]()
    constants = list[Any]()
    outputs: tuple[Any, ...] = ()

    def argument(value: Any) -> Argument:
        if isinstance(value, torch.fx.Node):
            return NodeResult(names[value])
        if isinstance(value, list | tuple):
            return tuple(map(argument, value))
        if isinstance(value, torch.dtype):
            return dtype_of(str(value)[6:])
        if isinstance(value, torch.device | torch.layout | torch.memory_format):
            return TensorPlace(str(value).removeprefix("torch."))
        return value

    for node in graph.nodes:
        value, names[node] = node.meta.get("val"), node.name
        if node.op == "get_attr":
            constants.append(getattr(graph.owning_module, node.target))
            value = constants[-1]
        if node.op in ("placeholder", "get_attr"):
            inputs.append(ProgramInput("user", node.name, node.name, _type(value)))
        elif node.op == "output":
            outputs = tuple(map(argument, node.args[0]))
        elif node.target is operator.getitem:
            names[node] = f"{names[node.args[0]]}_{node.args[1]}"
        elif isinstance(node.target, torch._ops.OpOverload):
            schema = [each.name for each in node.target._schema.arguments]
            given = [*zip(schema, map(argument, node.args), strict=False)]
            given += [(name, argument(each)) for name, each in node.kwargs.items()]
            found = _named(node.name, value)
            results, kinds = tuple(name for name, _ in found), tuple(_type(each) for _, each in found)
            target = str(node.target)
            nodes.append(ExportedNode(node.name, target, tuple(given), results, kinds, given_by_name=len(node.kwargs)))
        else:
            raise NotRecorded(f"a call of {node.target}")
    users = tuple(ProgramOutput("user", each, str(i)) for i, each in enumerate(outputs))
    whole = ExportedGraph(tuple(nodes), tuple((each.name, each.type) for each in inputs), outputs)
    program = ExportedProgram("sample", whole, tuple(inputs), users, Checkpoint("none", Files([], []), {}))
    return program, constants


def _named(name: str, value: Any) -> list[tuple[str, Any]]:
    """Return the results of a node with their names, also those in lists of lists."""
    if not isinstance(value, list | tuple):
        return [(name, value)]
    return [each for i, inner in enumerate(value) for each in _named(f"{name}_{i}", inner)]


def _type(value: Any) -> ExportedType | None:
    if not hasattr(value, "dtype"):
        return None
    return ExportedType(dtype_of(str(value.dtype)[6:]), tuple(map(int, value.shape)), False)


class RecordedSample:
    """A sample with its graph. expected: PyTorch's results. program: the graph. own: the arrays that it takes.
    is_drawn: whether its numbers are random. kinds: of its nodes. is_step: with its gradients, as a graph that was
    recorded with autograd. Raise NotRecorded if PyTorch cannot record it."""

    def __init__(self, each: Any, given: Any, is_step: bool = False) -> None:
        import torch

        self.name, self.sample = each.name, OperatorSample(each, given)
        self.program, constants, self.is_drawn = self.sample.recorded(is_step)
        torch.manual_seed(0)
        found = (self.sample.step if is_step else self.sample)(*[t.clone() for t in self.sample.tensors])
        self.expected = [result.detach().clone() for result in found]
        self.own = [_array(tensor) for tensor in (*self.sample.tensors, *constants)]
        self.kinds = tuple(node.target for node in self.program.graph.nodes)
        if not self.program.outputs:
            raise NotRecorded("it has no result that is a tensor")

    @cached_property
    def network(self) -> ImportedNetwork:
        """The graph as a cell."""
        return ImportedNetwork(self.program)

    def results(self) -> tuple[Tensor, ...]:
        """Return the results of one rank."""
        found = self.network(*map(Tensor, self.own))
        return found if isinstance(found, tuple) else (found,)

    def gradient(self, result: int, scales: Tensor) -> GradientFunction:
        """Return the gradients of the sum of a result times `scales`, in tensors that are `trained`."""

        def total(*inputs: Any) -> Any:
            values = self.network(*inputs)
            return ((values[result] if isinstance(values, tuple) else values) * scales).sum()

        return grad(total, tuple(self.sample.trained))


def scales_of(result: Any) -> np.ndarray:
    """Return different numbers in the shape of a result."""
    return np.cos(np.arange(math.prod(result.shape))).reshape(tuple(result.shape))


def compared(each: Any, given: Any, dtype: str, with_gradients: bool) -> SampleOutcome | None:
    """Compare one sample; None if PyTorch does not record it."""
    try:
        recorded = RecordedSample(each, given)
    except NotRecorded:
        return None
    except Exception as error:  # element types that mspc or NumPy does not have
        return SampleOutcome(each.name, dtype, "refused", "", f"{type(error).__name__}: {error}"[:200])
    verdict, reason = judged(lambda: _values_differ(recorded, dtype))
    if verdict != "right" or not with_gradients or recorded.is_drawn or each.name in OTHER_GRADIENT:
        return SampleOutcome(each.name, dtype, verdict, "", reason, recorded.kinds)
    gradients, reason = judged(lambda: _gradients_differ(recorded))
    return SampleOutcome(each.name, dtype, verdict, gradients, reason, recorded.kinds)


def compared_step(each: Any, given: Any, dtype: str) -> SampleOutcome | None:
    """Compare one sample and its gradients in the graph that autograd leaves; None if PyTorch does not record it."""
    try:
        recorded = RecordedSample(each, given, is_step=True)
    except (NotRecorded, MspcError):
        return None
    verdict, reason = judged(lambda: _differs(recorded.results(), recorded.expected, recorded.is_drawn, 10.0))
    return SampleOutcome(each.name, dtype, verdict, "", reason, recorded.kinds)


def _values_differ(recorded: RecordedSample, dtype: str) -> str:
    """Return which result differs, "" if none does."""
    results, expected = recorded.results(), recorded.expected
    factor = 100.0 if dtype == "float64" and recorded.name in LESS_EXACT else 1.0
    wrong = _differs(results, expected, recorded.is_drawn, factor)
    if wrong and dtype == "bfloat16":  # PyTorch rounds more often: Float32 judges
        rounded = [w.to(own.dtype) for w, own in zip(recorded.sample.widened(), expected, strict=True)]
        wrong = _differs(results, rounded, recorded.is_drawn)
    if wrong and TIES.intersection(recorded.kinds):
        wrong = _other_places(recorded.program, recorded.own, results, expected)
    return wrong


def judged(differs: Callable[[], str | None]) -> tuple[str, str]:
    """Return the verdict on a comparison that returns the differences, and the reason."""
    try:
        signal.alarm(SECONDS)
        found = differs()
        return ("", "") if found is None else ("wrong", found) if found else ("right", "")
    except MspcError as error:
        return "unknown" if error.code == "E0702" else "refused", str(error).replace("\n", " ")[:300]
    except Exception as error:
        return "crash", f"{type(error).__name__}: {error}".replace("\n", " ")[:300]
    finally:
        signal.alarm(0)


def _array(tensor: Any) -> np.ndarray:
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    if tensor._is_zerotensor():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype)
    if tensor.dtype == torch.bfloat16:
        return tensor.float().numpy().astype(dtype_of("bfloat16").numpy)
    return tensor.numpy().copy()


def _is_drawn(graph: Any) -> bool:
    """Return whether operators of the graph draw their numbers, or leave them unset."""
    import torch

    called = [node.target for node in graph.nodes if isinstance(node.target, torch._ops.OpOverload)]
    names = [target._schema.name.removeprefix("aten::") for target in called]
    is_seeded = any(torch.Tag.nondeterministic_seeded in target.tags for target in called)
    return is_seeded or not set(UNSET).isdisjoint(names)


def _differs(found: Sequence[Any], expected: Sequence[Any], is_drawn: bool, factor: float = 1.0) -> str:
    """Return the differences; "" if there are none. factor: of the allowed differences."""
    for place, (mine, theirs) in enumerate(zip(found, expected, strict=True)):
        if mine is None:
            return f"result {place} is not computed"
        value, other = mine.asnumpy(), _array(theirs)
        if value.shape != other.shape or value.dtype != other.dtype:
            return f"result {place} is {value.dtype}{value.shape}, PyTorch's {other.dtype}{other.shape}"
        if not is_drawn and not close(value, other, factor):
            return f"result {place} is {shown(value)}, PyTorch's {shown(other)}"
    return ""


def _other_places(
    program: ExportedProgram, own: Sequence[np.ndarray], found: Sequence[Any], expected: Sequence[Any]
) -> str:  # fmt: skip
    """Return the differences except for places of equal elements."""
    given = dict(program.graph.nodes[0].arguments)
    x = np.atleast_1d(own[0].astype(np.float64))
    dim = int(given.get("dim", -1))  # type: ignore[call-overload]  # of these kinds it is a number
    if len(found) > 1 and _differs(found[:-1], expected[:-1], False):
        return "values differ"
    both = [found[-1].asnumpy(), _array(expected[-1])]
    both = [np.atleast_1d(np.expand_dims(each, dim) if each.ndim < own[0].ndim else each) for each in both]
    if both[0].shape != both[1].shape or both[0].dtype.kind != "i":
        return "places differ"
    if not np.array_equal(*(np.take_along_axis(x, each, dim) for each in both), equal_nan=True):
        return f"places {shown(both[0])} have other elements than PyTorch's {shown(both[1])}"
    return ""


def shown(value: np.ndarray) -> str:
    return " ".join(str(value.ravel()[:6]).split())


def close(value: np.ndarray, other: np.ndarray, factor: float = 1.0, relative: float = 10.0) -> bool:
    """Return whether numbers are within `factor` times the allowed difference; relative: how many times as far as of
    the largest one of each element."""
    tolerance = TOLERANCES.get(other.dtype.name, 0.0) * factor
    if not tolerance:
        return np.array_equal(value, other)
    wide = complex if other.dtype.kind == "c" else float
    value, other = value.astype(wide), other.astype(wide)
    largest = float(np.abs(other[np.isfinite(other)]).max(initial=1.0))
    return np.allclose(value, other, rtol=relative * tolerance, atol=tolerance * largest, equal_nan=True)


def _gradients_differ(recorded: RecordedSample, is_wide: bool = False) -> str | None:
    """Return which gradient differs from autograd's, "" if none does, None if PyTorch has none. is_wide: in Float64,
    which judges those of Float32."""
    import torch

    own, places = recorded.own, recorded.sample.trained
    given = [t.double() if is_wide and t.is_floating_point() else t.clone() for t in recorded.sample.tensors]
    for place in places:
        given[place].requires_grad_()
    try:
        results = recorded.sample(*given)
        first = next(i for i, each in enumerate(results) if each.requires_grad and each.is_floating_point())
        scale = torch.from_numpy(scales_of(results[first])).to(results[first].dtype)
        theirs = torch.autograd.grad((results[first] * scale).sum(), [given[i] for i in places], allow_unused=True)
    except (StopIteration, RuntimeError, NotImplementedError, TypeError):
        return None
    mine = recorded.gradient(first, Tensor(_array(scale.to(recorded.expected[first].dtype))))(*map(Tensor, own))
    for place, a, b in zip(places, mine if isinstance(mine, tuple) else (mine,), theirs, strict=True):
        other = np.zeros_like(own[place]) if b is None else _array(b).astype(own[place].dtype)
        if not is_wide and other.dtype == np.float32 and not close(a.asnumpy(), other, 10.0):
            return _gradients_differ(recorded, True)
        if not close(a.asnumpy(), other, 10.0):
            return f"of operand {place} is {shown(a.asnumpy())}, PyTorch's {shown(other)}"
    return ""
