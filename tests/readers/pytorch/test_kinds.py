"""Every kind of the table beside PyTorch: its arguments, and what it computes."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any

import numpy as np
import pytest

import mspc
from docs.site.operator_database import operators_of_pytorch
from mspc import Tensor
from mspc.checkpoint.files import Files
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.types import DType, dtype_of
from mspc.readers.pytorch.exported_program import (
    ExportedGraph,
    ExportedNode,
    ExportedProgram,
    ExportedType,
    NodeResult,
    ProgramInput,
    ProgramOutput,
)
from mspc.readers.pytorch.kinds.aten_table import ALIASES, DEPENDENT, kind_of, kinds, related
from mspc.readers.pytorch.kinds.kind import NEEDED
from mspc.readers.pytorch.network import ImportedNetwork
from tests.drawn import Drawn, exactly
from tests.grouped import MANY, each, grouped
from tests.kind_samples import Call, calls, writing_calls
from tests.readers.pytorch.test_operators import KINDS

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")


@pytest.fixture(scope="module", autouse=True)
def _registered() -> None:
    pytest.importorskip("torch.distributed.fsdp", reason="registers kinds of FSDP and DTensor")
    pytest.importorskip("torch.distributed.tensor.experimental", reason="registers kinds of slices of sequences")


OTHERWISE = {
    "empty": "its numbers are whatever memory has", "rand": "its numbers are drawn", "normal": "its numbers are drawn",
    "bernoulli": "its numbers are drawn", "uniform": "its numbers are drawn", "exponential": "its numbers are drawn",
    "multinomial": "its numbers are drawn", "_assert": "it computes nothing", "_print": "it computes nothing",
    "sym_": "it computes nothing",
    "detach_.": "PyTorch refuses it for what is no leaf", "to.device": "it takes a device of PyTorch",
    "transformers.": "test_experts.py", "torchtitan.": "test_experts.py", "torchvision.": "test_torchvision.py",
    "new_empty": "its numbers are whatever memory has", "bincount": "its size is data",
    "_batch_norm_with_update.default": "test_operators.py",
    "masked_select": "test_bounded_sizes.py", "_unique2": "test_bounded_sizes.py",
    "batch_norm.default": "test_written_values.py", "_native_batch_norm_legit.default": "test_written_values.py",
    "native_batch_norm.default": "test_written_values.py",
    "searchsorted": "test_written_values.py", "bucketize": "test_written_values.py",
    "_scaled_dot_product_flash_attention.": "test_attention_on_gpus",
    "_scaled_dot_product_flash_attention_backward": "test_gradients_of_attention_on_gpus",
    "_scaled_dot_product_efficient": "test_attention_on_gpus", "_scaled_dot_product_cudnn": "test_attention_on_gpus",
    "cudnn_batch_norm": "test_batch_norm_on_gpus",
    "_fused_rms_norm_backward": "test_gradients_of_an_rms_norm_on_gpus",
    "cplib.": "it needs several ranks: test_captured_runs.py",
    "c10d": "it needs several ranks: test_captures.py", "fsdp.": "it needs several ranks: test_captures.py",
    "mkldnn_rnn_layer_backward": "its operands have a form of oneDNN's own: test_gradients_of_an_lstm",
    "masked_scatter_backward": "test_gradients_of_elements_placed_by_a_mask",
    "_embedding_bag_backward": "test_gradients_of_bags",
    "_linalg_check_errors": "it computes nothing", "histogramdd.": "test_operators.py",
    "cauchy_": "its numbers are drawn", "log_normal_": "its numbers are drawn", "geometric_": "its numbers are drawn",
    "randint_like": "its numbers are drawn", "rrelu_with_noise.default": "its numbers are drawn",
    "_dtensor.": "it needs several ranks: test_captures.py",
}  # fmt: skip
"""Kinds without a call here, by a part of their names, and why."""

FIRST = {
    "aten.mkldnn_rnn_layer.default", "aten._embedding_bag.default", "aten.multilabel_margin_loss_forward.default",
    "aten._weight_norm_interface.default", "aten._native_batch_norm_legit_no_training.default",
    "aten.embedding_bag.default",
}  # fmt: skip
"""Kinds of whose results the first alone is computed: the others are for PyTorch's gradient."""


NO_GRADIENT = {
    "_batch_norm_no_update.default": "of its statistics", "linalg_pinv.rcond_tensor": "of its limit",
    "_batch_norm_with_update_functional.default": "of its statistics", "resize.default": "of any",
    "resize_as.default": "of any", "unique_dim.default": "of any", "histogram.bins_tensor": "of any",
    "scatter.reduce": "of any",
    "scatter.value_reduce": "of a product", "_native_batch_norm_legit_functional.default": "of its statistics",
    "copy.default": "of any", "_native_batch_norm_legit_no_training.default": "of its statistics",
    "native_channel_shuffle.default": "of any", "mkldnn_rnn_layer.default": "of its cell, given alone",
    "multilabel_margin_loss_forward.default": "of any", "special_zeta.other_scalar": "of any",
    "fake_quantize_per_channel_affine.default": "of its scales",
    "fake_quantize_per_tensor_affine.tensor_qparams": "of its scale",
    "_scaled_dot_product_flash_attention_for_cpu.default": "of its mask",
}  # fmt: skip
"""Kinds of which PyTorch has no gradient."""


def schema_of(kind: str) -> Any:
    library, operator, overload = kind.split(".")
    return getattr(getattr(getattr(torch.ops, library), operator), overload)._schema


def test_other_names_have_the_same_arguments() -> None:
    for other, name in ALIASES.items():
        for overload in getattr(torch.ops.aten, other).overloads():
            kind, plain = (kind_of(f"aten.{each}.{overload}") for each in (other, name))
            if kind is not None and plain is not None and "out" not in overload:
                schema = schema_of(f"aten.{other}.{overload}")
                assert [a.name for a in kind.arguments] == [a.name for a in schema.arguments], other
                assert kind.target is plain.target, other


def test_the_arguments_are_those_of_the_schema() -> None:
    each(compare_arguments, [(name,) for name in kinds() if not name.startswith(("transformers.", "torch"))])


def compare_arguments(name: str) -> None:
    schema, own = schema_of(name), [a for a in kinds()[name].arguments if a.name != "bound"]  # test_bounded_sizes.py
    assert [a.name for a in own] == [a.name for a in schema.arguments]
    for argument, said in zip(own, schema.arguments, strict=True):
        if argument.is_read:
            assert (argument.default is not NEEDED) == said.has_default_value(), argument.name
            assert argument.default is NEEDED or equal(argument.default, said.default_value), argument.name


def equal(default: Any, said: Any) -> bool:
    """A list of one number repeated is that number, and an empty list of sizes is none."""
    if isinstance(said, (list, tuple)):
        return tuple(said) in (default, (default,) * len(said)) or (not said and default in (None, ()))
    return default == said


def test_other_names_that_pytorch_declares_are_read() -> None:
    missing = [
        f"aten.{name}.{overload}" for each in operators_of_pytorch() for alias in each.aliases
        for name in (alias.name.replace(".", "_"), f"{alias.name.replace('.', '_')}_")
        for overload in getattr(getattr(torch.ops.aten, name, None), "overloads", list)()
        if "out" not in overload and kind_of(f"aten.{name}.{overload}") is None
    ]  # fmt: skip
    assert missing == []


READ_ELSEWHERE = {
    "sym_size.int": "a size in the arguments", "sym_stride.int": "a size in the arguments",
    "sym_numel.default": "a size in the arguments", "sym_storage_offset.default": "a size in the arguments",
    "sym_is_contiguous.default": "a truth in the arguments",
}  # fmt: skip
"""Kinds of core ATen whose results are numbers, which the reader has as expressions where they are used."""


def test_core_aten_is_read() -> None:
    names = (each.name for each in torch._C._jit_get_all_schemas() if each.name.startswith("aten::"))
    found = {
        f"{name}.{overload}" for name in (name.removeprefix("aten::") for name in names)
        for overload in getattr(getattr(torch.ops.aten, name, None), "overloads", list)()
        if torch.Tag.core in getattr(getattr(torch.ops.aten, name), overload).tags
    }  # fmt: skip
    assert len(found) > 190
    unread = {name for name in found if kind_of(f"aten.{name}") is None and f"aten.{name}" not in DEPENDENT}
    assert unread == READ_ELSEWHERE.keys() & found


@pytest.mark.parametrize(("name", "wanted"), [
    ("aten.sum.other", ["aten.sum.default", "aten.sum.dim_IntList"]), ("aten.grid_sampler_4d.default", [
        "aten.grid_sampler.default", "aten.grid_sampler_2d.default", "aten.grid_sampler_3d.default"]),
    ("aten.masked_choose.default", [
        "aten.masked_fill.Scalar", "aten.masked_fill.Tensor", "aten.masked_scatter.default"]),
    ("aten.special_mangoldt.default", []),
])  # fmt: skip
def test_related_kinds_compute_something_related(name: str, wanted: list[str]) -> None:
    assert related(name) == wanted


def test_every_kind_is_called() -> None:
    called = {call.kind for call in (*calls(), *writing_calls())}
    assert {call for call in called if kind_of(call) is None} == set()
    called |= {*KINDS.read_text().split()}  # test_operators.py
    assert [n for n in kinds() if n not in called and not any(part in n for part in OTHERWISE)] == []


def by_kind(found: Iterable[Call]) -> list[tuple[str, int, Call]]:
    """The calls of every kind, numbered: a call draws its operands from its number."""
    groups = groupby(sorted(found, key=lambda call: call.kind), key=lambda call: call.kind)
    return [(kind, number, call) for kind, group in groups for number, call in enumerate(group)]


CALLS = by_kind(calls())


@grouped(by_kind(writing_calls()), MANY)
def test_a_kind_writes_what_pytorch_does(kind: str, number: int, call: Call) -> None:
    """All operands after the call."""
    rng = np.random.default_rng(number)
    tensors, drawn = list[Any](), list[np.ndarray]()

    def of_torch(value: Any) -> Any:
        if isinstance(value, Drawn):
            drawn.append(value.array(rng))
            tensors.append(torch.from_numpy(drawn[-1].copy()))
            return tensors[-1]
        return [of_torch(each) for each in value] if isinstance(value, tuple) else value

    _, operator, overload = call.kind.split(".")
    args, named = [of_torch(arg) for arg in call.args], {name: of_torch(arg) for name, arg in call.named.items()}
    getattr(getattr(torch.ops.aten, operator), overload)(*args, **named)
    program = program_of(call, drawn, [])
    outputs = tuple(ProgramOutput("user", NodeResult(each.name), each.name) for each in program.inputs)
    found = ImportedNetwork(replace(program, outputs=outputs))(*map(Tensor, drawn))
    for result, tensor in zip(found if isinstance(found, tuple) else (found,), tensors, strict=True):
        np.testing.assert_allclose(result.asnumpy(), tensor.numpy(), rtol=1e-5, atol=2e-6)


@grouped(CALLS, MANY)
def test_a_kind_computes_what_pytorch_does(kind: str, number: int, call: Call) -> None:
    rng = np.random.default_rng(number)
    drawn: list[np.ndarray] = []

    def of_torch(value: Any) -> Any:
        if isinstance(value, Drawn):
            drawn.append(value.array(rng))
            return torch.from_numpy(drawn[-1].copy())
        if isinstance(value, tuple) and any(isinstance(each, Drawn) for each in value):
            return [of_torch(each) for each in value]
        return getattr(torch, value.name.lower()) if isinstance(value, DType) else value

    _, operator, overload = call.kind.split(".")
    args, named = [of_torch(arg) for arg in call.args], {name: of_torch(arg) for name, arg in call.named.items()}
    expected = getattr(getattr(torch.ops.aten, operator), overload)(*args, **named)
    wanted = [each.resolve_conj().numpy() for each in (expected if isinstance(expected, (list, tuple)) else [expected])]
    program = program_of(call, drawn, wanted)
    found = ImportedNetwork(program)(*map(Tensor, drawn))
    results = found if isinstance(found, tuple) else (found,)
    for result, array in zip(results, wanted[:1] if call.kind in FIRST else wanted, strict=True):
        value = result.asnumpy()
        assert value.dtype == array.dtype
        assert value.shape == array.shape
        np.testing.assert_allclose(value, array, rtol=1e-5, atol=2e-6)


DIFFERENTIATED = [
    case for case in CALLS
    if "_backward" not in case[0] and "_foreach" not in case[0] and case[0].removeprefix("aten.") not in NO_GRADIENT
]  # fmt: skip
"""A recorded step, whose gradients are nodes of its own, is never differentiated."""


@pytest.mark.share(2)
@grouped(DIFFERENTIATED, MANY)
def test_a_kind_has_pytorchs_gradients(kind: str, number: int, call: Call) -> None:
    """The gradients of the sum of the first result that has any, each element times another number."""
    rng = np.random.default_rng(number)
    drawn: list[Any] = []

    def of_torch(value: Any) -> Any:
        if isinstance(value, Drawn):
            drawn.append(torch.from_numpy(value.array(rng).copy()))
            return drawn[-1].requires_grad_(value.dtype == "float32")
        if isinstance(value, tuple) and any(isinstance(each, Drawn) for each in value):
            return [of_torch(each) for each in value]
        return getattr(torch, value.name.lower()) if isinstance(value, DType) else value

    _, operator, overload = call.kind.split(".")
    args, named = [of_torch(arg) for arg in call.args], {name: of_torch(arg) for name, arg in call.named.items()}
    if any(bool(each.isnan().any()) for each in drawn if each.is_floating_point()):
        return  # each operator of PyTorch has another gradient of NaN
    found = getattr(getattr(torch.ops.aten, operator), overload)(*args, **named)
    results = list(found) if isinstance(found, (list, tuple)) else [found]
    first = next((i for i, each in enumerate(results) if each.requires_grad and each.dtype == torch.float32), None)
    if first is None:
        return
    weights = np.cos(np.arange(results[first].numel(), dtype=np.float32)).reshape(tuple(results[first].shape))
    expected = torch.autograd.grad((results[first] * torch.from_numpy(weights)).sum(), [
        each for each in drawn if each.requires_grad], allow_unused=True)  # fmt: skip
    wanted = [each.detach().numpy() for each in results]
    program = program_of(call, [each.detach().numpy() for each in drawn], wanted)
    network, scales = ImportedNetwork(program), Tensor(weights)

    def total(*inputs: Any) -> Any:
        values = network(*inputs)
        return ((values[first] if isinstance(values, tuple) else values) * scales).sum()

    places = tuple(i for i, each in enumerate(drawn) if each.requires_grad)
    given = mspc.grad(total, places)(*[Tensor(each.detach().numpy()) for each in drawn])
    for mine, theirs in zip(given if isinstance(given, tuple) else (given,), expected, strict=True):
        other = np.zeros(mine.shape, np.float32) if theirs is None else theirs.numpy(force=True)
        np.testing.assert_allclose(mine.asnumpy(), other, rtol=1e-4, atol=1e-5)


def program_of(call: Call, arrays: list[np.ndarray], wanted: list[np.ndarray]) -> ExportedProgram:
    """A program of one node."""
    inputs: list[ProgramInput] = []

    def operand(value: Any) -> Any:
        if isinstance(value, Drawn):
            array = arrays[len(inputs)]
            name = f"x{len(inputs)}"
            inputs.append(ProgramInput("user", name, name, ExportedType(dtype_of(array.dtype), array.shape)))
            return NodeResult(name)
        return tuple(map(operand, value)) if isinstance(value, tuple) else value

    names = [argument.name for argument in schema_of(call.kind).arguments]
    given = [*zip(names, map(operand, call.args), strict=False), *((n, operand(v)) for n, v in call.named.items())]
    results = tuple(f"y{place}" for place in range(len(wanted)))
    types = tuple(ExportedType(dtype_of(array.dtype), array.shape) for array in wanted)
    node = ExportedNode("node", call.kind, tuple(given), results, types)
    graph = ExportedGraph((node,), tuple((each.name, each.type) for each in inputs), ())
    returned = results[:1] if call.kind in FIRST else results
    outputs = tuple(ProgramOutput("user", NodeResult(name), str(i)) for i, name in enumerate(returned))
    weights = Checkpoint("none", Files([], []), {})
    return ExportedProgram("program", graph, tuple(inputs), outputs, weights)


def compare_exactly(kind: str, args: Sequence[Any], wanted: Sequence[Any]) -> None:
    """Compare a call with these tensors of PyTorch with these results."""
    tensors = [each for each in args if isinstance(each, torch.Tensor)]
    given = iter(exactly(each.detach().tolist(), str(each.dtype)[6:]) for each in tensors)
    call = Call(kind, tuple(
        next(given) if isinstance(each, torch.Tensor) else tuple(each) if isinstance(each, list) else each
        for each in args), {})  # fmt: skip
    arrays = [each.detach().contiguous().numpy() for each in tensors]
    results = [each.detach().numpy() for each in wanted]
    found = ImportedNetwork(program_of(call, arrays, results))(*map(Tensor, arrays))
    for result, array in zip(found if isinstance(found, tuple) else (found,), results, strict=True):
        np.testing.assert_allclose(result.asnumpy(), array, rtol=1e-5, atol=2e-6)


def test_gradients_of_an_lstm() -> None:
    torch.manual_seed(0)
    layer, recorded = torch.nn.LSTM(3, 4, num_layers=2), list[Any]()

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found = function(*args, **(kwargs or {}))
            if str(function) == "aten.mkldnn_rnn_layer_backward.default":
                recorded.append((args, found))
            return found

    with Recorder():
        output, (hidden, _) = layer(torch.randn(5, 2, 3))
        (output.square().sum() + hidden.sum()).backward()
    if not recorded:
        pytest.skip("this PyTorch has no oneDNN")
    compare_exactly("aten.mkldnn_rnn_layer_backward.default", *recorded[0])


def test_gradients_of_an_rms_norm_on_gpus() -> None:
    torch.manual_seed(0)
    x, weight, dout = (torch.randn(2, 3, 4, requires_grad=True) for _ in range(3))
    weight = torch.randn(3, 4, requires_grad=True)
    _, rstd = torch.ops.aten._fused_rms_norm(x, [3, 4], weight, 1e-3)
    wanted = torch.autograd.grad(torch.nn.functional.rms_norm(x, (3, 4), weight, 1e-3), (x, weight), dout)
    args = (dout, x, [3, 4], rstd, weight, [True, True])
    compare_exactly("aten._fused_rms_norm_backward.default", args, wanted)


@pytest.mark.parametrize(("kind", "mask"), [("flash", ()), ("efficient", (None, True)), ("cudnn", (None, True))])
def test_attention_on_gpus(kind: str, mask: tuple[Any, ...]) -> None:
    """Statistics have the shapes that PyTorch gives them on a GPU: padded to 32 queries, or in a column."""
    query, key, value = (torch.randn(2, 2, 5, 4) for _ in range(3))
    out, total = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(query, key, value, 0.0, True)
    of_meta = getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention")
    shape = of_meta(*(each.to("meta") for each in (query, key, value)), *mask, 0.0, True)[1].shape
    padded = torch.nn.functional.pad(total, (0, 27 if kind == "efficient" else 0))
    wanted = (out, padded.reshape(shape))
    compare_exactly(f"{of_meta}.default".replace("aten::", "aten."), (query, key, value, *mask, 0.0, True), wanted)


def test_batch_norm_on_gpus() -> None:
    x, dout = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 4)
    weight, bias, mean, variance = (torch.rand(3) + 0.5 for _ in range(4))
    args = (x, weight, bias, mean, variance, True, 0.1, 1e-5)
    wanted = torch.ops.aten.native_batch_norm(x, weight, bias, mean.clone(), variance.clone(), True, 0.1, 1e-5)
    compare_exactly("aten.cudnn_batch_norm.default", args, wanted)
    args = (x, dout, weight, mean, variance, *wanted[1:], 1e-5, torch.zeros(4, dtype=torch.uint8))
    mask = [True, True, True]
    wanted = torch.ops.aten.native_batch_norm_backward(dout, x, weight, mean, variance, *wanted[1:], True, 1e-5, mask)
    compare_exactly("aten.cudnn_batch_norm_backward.default", args, wanted)


@pytest.mark.parametrize("kind", ["flash", "efficient", "cudnn"])
def test_gradients_of_attention_on_gpus(kind: str) -> None:
    """The kinds of GPUs beside that of CPUs. Statistics of more keys than a rank has are taken as they are."""
    torch.manual_seed(0)
    query, key, value, dout, out = (torch.randn(2, 2, 5, 4) for _ in range(5))
    total = torch.randn(2, 2, 5) + 3
    wanted = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
        dout, query, key, value, out, total, 0.0, True)
    none = torch.zeros(())
    if kind == "flash":
        args = (dout, query, key, value, out, total, None, None, 5, 5, 0.0, True, none, none)
    elif kind == "cudnn":
        args = (dout, query, key, value, out, total[..., None], none, none, None, None, None, 5, 5, 0.0, True)
    else:
        padded = torch.nn.functional.pad(total, (0, 27))
        args = (dout, query, key, value, None, out, padded, none, none, 0.0, [True, True, True, False], True)
    compare_exactly(f"aten._scaled_dot_product_{kind}_attention_backward.default", args, wanted)


def test_gradients_of_elements_placed_by_a_mask() -> None:
    torch.manual_seed(0)
    dout, mask = torch.randn(3, 4), torch.rand(3, 4) > 0.5
    function = torch.ops.aten.masked_scatter_backward.default
    compare_exactly(str(function), (dout, mask, [2, 7]), (function(dout, mask, [2, 7]),))


def test_gradients_of_bags() -> None:
    torch.manual_seed(0)
    weight, indices = torch.randn(5, 3, requires_grad=True), torch.tensor([0, 1, 4, 1, 2, 2, 1])
    offsets, dout = torch.tensor([0, 2, 4]), torch.randn(3, 3)
    for mode in (0, 1):
        out, *statistics = torch.ops.aten._embedding_bag(weight, indices, offsets, False, mode, False, None, False, 2)
        wanted = torch.autograd.grad(out, weight, dout)
        args = (dout, indices, offsets, *statistics, 5, False, mode, False, None, 2)
        compare_exactly("aten._embedding_bag_backward.default", args, wanted)
