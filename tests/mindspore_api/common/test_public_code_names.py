"""Names that public networks, trainers and scripts use: operators, cells, settings and private modules of MindSpore."""

import importlib
import logging
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
import mspc as ms
from mspc import Parameter, Tensor, context, mint, nn, ops
from mspc import dataset as ds
from mspc.dataset import vision
from mspc.ir.diagnostics import MspcError
from mspc.mindspore_api import state
from mspc.mindspore_api.ops.primitive import Primitive
from mspc.mindspore_api.parallel import queries
from mspc.mindspore_api.state import Session
from mspc.ops import operations as P

DRAWS = np.random.default_rng(5)
IMAGES = DRAWS.random((2, 3, 9, 12)).astype(np.float32)
OTHERS = DRAWS.random((2, 3, 9, 12)).astype(np.float32)
ROWS = np.log(DRAWS.dirichlet(np.ones(5), 4)).astype(np.float32)
WEIGHTS = np.arange(1.0, 6.0, dtype=np.float32)
LABELS = np.array([1, 2, 0, 4], np.int32)


def in_graph(function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a network that calls the function."""

    class Net(nn.Cell):
        def construct(self, *given):
            return function(*given)

    return Net()(*map(Tensor, arguments))


def test_operators_that_are_functions() -> None:
    x, y = np.array([1, 2], np.int32), np.array([3, 4, 5], np.int32)
    for indexing in ("xy", "ij"):
        found = in_graph(lambda a, b, way=indexing: P.Meshgrid(way)((a, b)), x, y)
        for one, other in zip(found, np.meshgrid(x, y, indexing=indexing), strict=True):
            np.testing.assert_array_equal(one.asnumpy(), other)
    loss, total = in_graph(lambda a, b, w: P.NLLLoss("sum", ignore_index=2)(a, b, w), ROWS, LABELS, WEIGHTS)
    kept = LABELS != 2
    wanted = WEIGHTS[LABELS] * kept
    np.testing.assert_allclose(loss.asnumpy(), -np.sum(ROWS[range(4), LABELS] * wanted), rtol=1e-5)
    assert total.asnumpy() == wanted.sum()
    found = in_graph(lambda a, b: P.BCEWithLogitsLoss("sum")(a, b, b, b), ROWS, np.full_like(ROWS, 0.5)).asnumpy()
    log = np.log1p(np.exp(-ROWS))
    np.testing.assert_allclose(found, np.sum(0.5 * (0.5 * 0.5 * log + 0.5 * (ROWS + log))), rtol=1e-5)
    found = in_graph(lambda a: P.ReverseSequence(1)(a, Tensor([1, 2, 3, 4])), ROWS).asnumpy()
    np.testing.assert_array_equal(found[2], ROWS[2, [2, 1, 0, 3, 4]])
    np.testing.assert_allclose(in_graph(lambda a: P.Einsum("ij,kj->ik")((a, a)), ROWS).asnumpy(), ROWS @ ROWS.T, 1e-5)
    np.testing.assert_array_equal(in_graph(lambda a: P.Diag()(a), WEIGHTS).asnumpy(), np.diag(WEIGHTS))
    np.testing.assert_array_equal(in_graph(lambda a: P.DiagPart()(a), ROWS[:, :4]).asnumpy(), np.diag(ROWS))
    found = in_graph(lambda a: P.Scatter()(a, 0, Tensor([[0, 0, 1, 1, 2]]), a[:1], 1), ROWS).asnumpy()
    wanted = ROWS.copy()
    wanted[[0, 0, 1, 1, 2], range(5)] += ROWS[0]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)
    assert P.ScalarToTensor()(3, mspc.int32).asnumpy() == 3
    assert P.ScalarToArray()(2.5).dtype == mspc.float32
    assert P.ScalarCast()(3.7, mspc.int32) == 3


def test_drawn_numbers() -> None:
    drawn = P.StandardNormal(seed=2)((4000,)).asnumpy()
    assert abs(drawn.mean()) < 0.06
    assert abs(drawn.std() - 1) < 0.05
    numbers, counts = np.unique(P.UniformInt(seed=2)((3000,), 2, 5).asnumpy(), return_counts=True)
    assert numbers.tolist() == [2, 3, 4]
    assert counts.min() > 900


def test_cells_of_gates_that_scripts_write() -> None:
    from mspc.nn.layer.rnn_cells import RNNCellBase

    cell = RNNCellBase(4, 5, True, num_chunks=3)
    assert [(p.name, p.shape) for p in cell.get_parameters()] == [
        ("weight_ih", (15, 4)), ("weight_hh", (15, 5)), ("bias_ih", (15,)), ("bias_hh", (15,))
    ]  # fmt: skip


def test_a_part_of_a_file_is_decoded() -> None:
    import io

    from PIL import Image

    file = io.BytesIO()
    Image.fromarray((IMAGES[0].transpose(1, 2, 0) * 255).astype(np.uint8)).save(file, "PNG")
    raw = np.frombuffer(file.getvalue(), np.uint8)
    whole = vision.RandomCropDecodeResize((9, 12), (1.0, 1.0), (12 / 9, 12 / 9))(raw)
    np.testing.assert_array_equal(whole, vision.Decode()(raw))


TOKENS = np.random.default_rng(0).standard_normal((5, 3)).astype(np.float32)
EXPERTS = np.array([[2, 0], [1, 2], [2, 1], [0, 2], [2, 0]], np.int32)
PROBS = np.random.default_rng(1).random((5, 2)).astype(np.float32)


def rows_of(experts: np.ndarray) -> list[tuple[int, int]]:
    """(token, which of its choices) row by row: expert after expert, in the order of tokens and their choices."""
    table = experts.reshape(len(experts), -1)
    choices = [(table[token, choice], token, choice) for token in range(len(table)) for choice in range(table.shape[1])]
    return [(token, choice) for _, token, choice in sorted(choices)]


@pytest.mark.parametrize("left_out", [0, 3])
def test_what_experts_give_is_added_up_for_every_token(left_out: int) -> None:
    _, places = ops.moe_token_permute(Tensor(TOKENS), Tensor(EXPERTS))
    given = np.random.default_rng(2).standard_normal((10 - left_out, 3)).astype(np.float32)
    expected = np.zeros((5, 3), np.float32)
    for row, (token, choice) in enumerate(rows_of(EXPERTS)[: len(given)]):
        expected[token] += given[row] * PROBS[token, choice]
    found = ops.moe_token_unpermute(Tensor(given), places, Tensor(PROBS))
    np.testing.assert_allclose(found.asnumpy(), expected, rtol=1e-6)
    halves = ops.moe_token_unpermute(Tensor(given, ms.bfloat16), places, Tensor(PROBS))
    assert halves.dtype == ms.bfloat16


def test_gradients_of_tokens_and_probabilities() -> None:
    weight = np.random.default_rng(3).standard_normal((5, 3)).astype(np.float32)

    def network(tokens: Any, probs: Any) -> Any:
        permuted, places = ops.moe_token_permute(tokens, Tensor(EXPERTS))
        return (ops.moe_token_unpermute(permuted * permuted, places, probs) * Tensor(weight)).sum()

    of_tokens, of_probs = ms.grad(network, (0, 1))(Tensor(TOKENS), Tensor(PROBS))
    # Every choice of a token gives back its square: sum over t, c of probs[t, c] * tokens[t]^2 . weight[t].
    np.testing.assert_allclose(of_tokens.asnumpy(), 2 * TOKENS * weight * PROBS.sum(1)[:, None], rtol=1e-5)
    expected = np.repeat((TOKENS**2 * weight).sum(1)[:, None], 2, 1)
    np.testing.assert_allclose(of_probs.asnumpy(), expected, rtol=1e-5, atol=1e-6)


def test_marks_of_operators_that_are_several_here(capsys: pytest.CaptureFixture[str]) -> None:
    x = Tensor(np.array([3, 1, 3], np.int32))
    assert ops.Unique().shard(((1,),))(x)[0].asnumpy().tolist() == [3, 1]
    assert not capsys.readouterr().err
    before = state.swap(state.Session())
    assert ops.Unique().shard(((2,),)).add_prim_attr("kind", 3)(x)[0].asnumpy().tolist() == [3, 1]
    state.swap(before)
    said = capsys.readouterr().err
    assert "Unique.shard() changes nothing here" in said
    assert "Unique.add_prim_attr('kind') changes nothing here" in said
    before = state.swap(state.Session())
    assert ops.Einsum("i,i->").shard(((2,), (2,)))((x, x)).asnumpy() == 19
    state.swap(before)
    assert "Einsum.shard() changes nothing here" in capsys.readouterr().err
    for wrong in (lambda: ops.Unique().shard(3), lambda: ops.Unique().add_prim_attr(3, 4)):
        with pytest.raises(MspcError):
            wrong()


@pytest.mark.parametrize("make", [ops.Dropout, ops.Dropout2D, ops.Dropout3D])
def test_facts_of_dropouts(make: Any) -> None:
    operator = make(keep_prob=0.5).add_prim_attr("recompute_comm_op", True)
    assert operator.attrs["recompute_comm_op"] is True
    extended = importlib.import_module("mspc.ops.auto_generate").DropoutExt()
    assert extended.add_prim_attr("recompute_comm_op", True) is extended


def test_dot_by_its_older_names() -> None:
    x, y = Tensor(TOKENS), Tensor(TOKENS.T.copy())
    for found in (ops.dot(x1=x, x2=y), ops.dot(x, y), ops.dot(input=x, other=y), ops.dot(x, x2=y)):
        np.testing.assert_allclose(found.asnumpy(), TOKENS @ TOKENS.T, rtol=1e-5)
    with pytest.raises(MspcError, match=r"dot\(\)"):
        ops.dot(x1=x)


class Scaled(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.w = Parameter(Tensor(np.ones((4, 4), np.float32)), name="w")
        self.product = ops.MatMul().shard(((2, 1), (1, 4)))

    def construct(self, x: Any, scale: float = 2.0) -> Any:
        return self.product(x, self.w) * scale


def test_a_network_is_compiled_ahead() -> None:
    x = Tensor(np.ones((8, 4), np.float32))
    before = state.swap(state.Session())
    try:
        ms.communication.init()
        plain = Scaled()
        plain.compile(x, scale=3.0)
        assert "parameter_layout_dict" in vars(plain)  # a compile has left it
        ms.set_auto_parallel_context(device_num=8)
        network = ms.parallel.AutoParallel(Scaled(), parallel_mode="semi_auto")
        network.dataset_strategy("full_batch")
        network.compile(x)
        assert network.parameter_layout_dict["w"][0] == [2, 4]
        with pytest.raises(MspcError, match="construct"):
            plain.compile()
        plain.product.shard(((3, 1), (1, 4)))
        with pytest.raises(MspcError):
            ms.parallel.AutoParallel(plain, parallel_mode="semi_auto").compile(x)
    finally:
        state.swap(before)


def test_a_process_for_a_part_is_taken_and_said_to_change_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for part in (Scaled(), ops.Add(), ops.Unique()):
        before = state.swap(state.Session())
        part.place("MS_WORKER", 0)
        state.swap(before)
        assert "place('MS_WORKER', 0) changes nothing here" in capsys.readouterr().err
        for wrong in ((3, 0), ("MS_WORKER", -1), ("MS_WORKER", "0")):
            with pytest.raises(MspcError, match="place"):
                part.place(*wrong)


X = Tensor(np.array([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], np.float32))


def test_the_place_of_a_generator_moves_on() -> None:
    generator = ms.Generator()
    generator.manual_seed(7)
    assert [int(part.asnumpy()) for part in generator._step(Tensor(12))] == [7, 0]
    seed, place = generator._step(3)
    assert (int(seed.asnumpy()), int(place.asnumpy()), place.shape, place.dtype) == (7, 12, (), ms.int64)
    assert generator.get_state().asnumpy().tolist() == [7, 15]


def test_a_parameter_is_given_a_stage(capsys: pytest.CaptureFixture[str]) -> None:
    parameter = Parameter(X, name="weight")
    for stage, said in ((0, ""), (1, "add_pipeline_stage(1) changes nothing here: there is one pipeline stage")):
        before = state.swap(state.Session())
        parameter.add_pipeline_stage(stage)
        nn.ReLU()(X)
        state.swap(before)
        assert said in (found := capsys.readouterr().err)
        assert bool(found) == bool(said)
    for wrong in ("1", -1):
        with pytest.raises(MspcError):
            parameter.add_pipeline_stage(wrong)


@pytest.mark.parametrize("make", [lambda: nn.Dense(3, 2).offload, lambda: ops.Add()._offload])
def test_what_offload_is_told(make: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for prefetch in ((), ("Auto",), (20,)):
        make()(*prefetch)
    assert capsys.readouterr().err == ""
    for wrong, message in (("CPU", "'Auto'"), (0, "backward_prefetch=0 must be at least 1"), (1.5, "an integer")):
        with pytest.raises(MspcError, match=message):
            make()(wrong)
    assert isinstance(ops.Add()._offload(), Primitive)


def test_uniform_tensors_take_their_operands_by_name() -> None:
    for operator, value in ((ops.Zeros(), 0), (ops.Ones(), 1)):
        for made in (operator(shape=(2, 3), dtype=ms.float16), operator((2, 3), dtype=ms.float16)):
            assert (made.shape, made.dtype) == ((2, 3), ms.float16)
            assert (made.asnumpy() == value).all()
    with pytest.raises(MspcError, match="no operand of this name"):
        ops.Zeros()(shape=(2, 3), kind=ms.float16)


def test_cells_have_the_operator_cast() -> None:
    class Half(nn.Cell):
        def construct(self, x: Any) -> Any:
            return self.cast(x, ms.float16)

    class Own(Half):
        def __init__(self) -> None:
            super().__init__()
            self.cast = ops.Cast()

    for cell in (Half(), Own()):
        assert cell(X).dtype == ms.float16
    assert Half().cast is not Half().cast  # a strategy that one cell sets is not another's


def test_modules_and_ranks_under_other_names() -> None:
    module = importlib.import_module("mspc.mint.distributed.distributed")
    assert module.all_reduce is importlib.import_module("mspc.mint.distributed").all_reduce
    from mspc.parallel import rank_list_for_convert

    assert rank_list_for_convert(3) == [0]


PAIRS = Tensor(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))


def near(found: Tensor, expected: object) -> None:
    np.testing.assert_allclose(found.asnumpy(), np.asarray(expected, np.float32), rtol=1e-5, atol=1e-6)


def test_norms_are_cut() -> None:
    near(ops.clip_by_norm(PAIRS, 2.0), [[1.2, 1.6], [0, 0]])
    near(ops.clip_by_norm(PAIRS, 10.0), PAIRS.asnumpy())
    near(ops.clip_by_norm(PAIRS, 2.0, 1.0), [[6 / 7, 8 / 7], [0, 0]])
    near(ops.clip_by_norm([PAIRS, PAIRS], 2.0, float("inf"))[1], [[1.5, 2.0], [0, 0]])
    with pytest.raises(MspcError, match="error_if_nonfinite=True: contents are not known"):
        ops.clip_by_norm(PAIRS, 2.0, error_if_nonfinite=True)
    for axis in (None, 1):
        near(nn.ClipByNorm(axis)(PAIRS, Tensor([2.0], ms.float32)), [[1.2, 1.6], [0, 0]])
    gradient = ms.grad(lambda x: nn.ClipByNorm()(x, Tensor([2.0], ms.float32)).sum())
    near(gradient(PAIRS * 0), np.ones((2, 2)))


def test_cells_of_arrays() -> None:
    near(nn.OneHot(depth=3)(Tensor([0, 2], ms.int32)), [[1, 0, 0], [0, 0, 1]])
    assert nn.Dense(2, 3, has_bias=False).bias is None


def test_words_of_overflow() -> None:
    near(ops.FloatStatus()(PAIRS), [0.0])
    near(ops.FloatStatus()(Tensor([1.0, float("nan")], ms.float32)), [1.0])


def test_operators_of_mint() -> None:
    assert ops.StackExt(dim=1)((PAIRS, PAIRS)).shape == (2, 2, 2)
    assert ops.MatMulExt()(PAIRS[None], PAIRS).shape == (1, 2, 2)
    out, mask = ops.DropoutExt()(PAIRS, 0.0)
    near(out, PAIRS.asnumpy())
    assert mask.shape == PAIRS.shape


def test_statements() -> None:
    assert ops.make_range(3) == (0, 1, 2)
    assert ops.make_range(1, 6, 2) == (1, 3, 5)
    assert ops.identity(PAIRS) is PAIRS
    cell = ops.add_flags(nn.ReLU(), has_effect=True)
    assert cell.get_flags() == {"has_effect": True}
    with pytest.raises(MspcError, match="add_flags takes a Cell or a function, not 1"):
        ops.add_flags(1)


def test_modules_of_training_steps() -> None:
    from mspc.nn.wrap import DistributedGradReducer, TrainOneStepWithLossScaleCell, cell_wrapper, grad_reducer
    from mspc.nn.wrap.loss_scale import _grad_overflow, _grad_scale

    assert grad_reducer.DistributedGradReducer is DistributedGradReducer is nn.DistributedGradReducer
    assert cell_wrapper.TrainOneStepCell is nn.TrainOneStepCell
    assert TrainOneStepWithLossScaleCell is nn.TrainOneStepWithLossScaleCell
    near(ops.HyperMap(ops.partial(_grad_scale, Tensor(2.0, ms.float32)))((PAIRS,))[0], PAIRS.asnumpy() / 2)
    near(ops.HyperMap(_grad_overflow)((PAIRS,))[0], [0.0])


def test_kinds_of_element_types() -> None:
    from mspc.common import dtype as mstype

    assert isinstance(PAIRS.dtype, mstype.Float)
    assert not isinstance(PAIRS.dtype, mstype.Int)
    assert isinstance(ms.bool_, mstype.Bool)
    assert isinstance(ms.uint8, (mstype.UInt, mstype.Complex))
    assert isinstance(ms.complex64, mstype.number)
    assert [mstype.get_py_obj_dtype(value) for value in (1, PAIRS, ms.int8, bool)] == [
        ms.int64, ms.float32, ms.int8, ms.bool_,
    ]  # fmt: skip
    assert ms.is_tensor(PAIRS)
    assert ms.mutable(PAIRS) is PAIRS


def test_rows_of_a_tensor_have_a_kind() -> None:
    scale = ops.MultitypeFuncGraph("scale")
    scale.register("Tensor", "Tensor")(lambda s, grad: "tensor")
    scale.register("Tensor", "RowTensor")(lambda s, grad: "rows")
    assert scale(PAIRS, PAIRS) == "tensor"
    rows = ms.RowTensor(indices=PAIRS, values=PAIRS, shape=(4, 2))
    assert scale(PAIRS, rows) == "rows"
    assert (rows.dense_shape, rows.dtype) == ((4, 2), PAIRS.dtype)


def said(call: object, capsys: pytest.CaptureFixture[str]) -> str:
    from mspc.mindspore_api import state

    before = state.swap(state.Session())
    try:
        call()  # type: ignore[operator]
    finally:
        state.swap(before)
    return capsys.readouterr().err


class Placed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.active = ops.ReLU().add_pipeline_stage(1)

    def construct(self, x: Any) -> Any:
        return self.active(x)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: ops.Reshape().add_prim_attr("skip_redistribution", True),
            "skip_redistribution=True changes nothing here: tensors are redistributed if layouts differ",
        ),
        (
            lambda: Placed()(PAIRS),
            "ReLU.set_stage(1) changes nothing here: there is one pipeline stage",
        ),
        (
            lambda: setattr(net := nn.ReLU(), "pipeline_stage", 2) or net(PAIRS),
            "Cell.pipeline_stage = 2 changes nothing here: there is one pipeline stage",
        ),
        (lambda: ops.ScalarSummary()("loss", PAIRS), "ScalarSummary changes nothing here: no summary is written"),
        (lambda: ms.mutable((1, 2)), "mutable() changes nothing here: another number, or another length"),
        (lambda: ops.add_flags(lambda x: x, core=True), "add_flags() changes nothing here: flags of functions"),
    ],
)
def test_what_changes_nothing_says_so(call: object, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in said(call, capsys)


def test_places_in_a_permutation() -> None:
    assert ops.InvertPermutation()((2, 0, 1)) == (1, 2, 0)
    with pytest.raises(MspcError, match=r"InvertPermutation: \(0, 2\) is no permutation of 0 to 1"):
        ops.InvertPermutation()((0, 2))


def test_methods_give_values_before_their_places() -> None:
    values, places = Tensor([[2, 5, 1, 6], [3, -7, -2, 4]]).argmin_with_value()
    assert (values.asnumpy().tolist(), places.asnumpy().tolist()) == ([2, -7, -2, 4], [0, 1, 1, 1])
    whole, place = Tensor([[1.0, 5.0], [7.0, 2.0]]).argmax_with_value(None, True)
    assert (whole.item(), place.item(), place.dtype, place.shape) == (7.0, 2, ms.int64, ())


def test_element_types_of_what_is_made() -> None:
    assert (Tensor(1 + 2j).dtype, ms.tensor([1 + 1j, 2], ms.complex64).dtype) == (ms.complex128, ms.complex64)
    assert ms.bool == ms.bool_
    assert "bool" not in dir(ms)


def test_images_without_a_batch_are_averaged() -> None:
    image = np.arange(27, dtype=np.float32).reshape(3, 3, 3)
    found = ops.adaptive_avg_pool2d(Tensor(image), (None, 2))
    np.testing.assert_allclose(found.asnumpy(), np.stack([image[..., :2].mean(-1), image[..., 1:].mean(-1)], -1))


def test_an_infinite_gradient_does_not_pass_where_relu_gives_nothing() -> None:
    x = Tensor([-1.0, 1.0, 0.0], ms.float32)
    for activation in (ops.relu, ops.relu6):
        near(ms.grad(lambda x, function=activation: ops.sqrt(function(x)).sum())(x), [0.0, 0.5, 0.0])
    halves = ms.grad(lambda x: ops.log(ops.relu(x)).sum())(x.astype(ms.float16))
    assert halves.asnumpy().tolist() == [0.0, 1.0, 0.0]


def test_floating_point_tensors_alone_are_cast() -> None:
    @ms.jit
    def cast(x: Tensor, places: Tensor) -> Any:
        return ops.functional.mixed_precision_cast(ms.float16, (x, [places, 3, {"x": x}]))

    first, (places, number, rest) = cast(Tensor([1.5]), Tensor([1], ms.int32))
    assert (first.dtype, places.dtype, number, rest["x"].dtype) == (ms.float16, ms.int32, 3, ms.float16)


def test_names_of_modules() -> None:
    assert (
        importlib.import_module("mspc.version").__version__
        == importlib.import_module("mspc.mindspore_api.alias").API_LEVEL
    )
    assert ms.log.logging is logging
    assert ms.nn.Linear is ms.mint.nn.Linear


NUMBERS = np.random.default_rng(6)
FIRST = NUMBERS.standard_normal((3, 4)).astype(np.float32)
SECOND = NUMBERS.standard_normal((3, 4)).astype(np.float32)
V = NUMBERS.standard_normal((3, 3)).astype(np.float32)
TILES = NUMBERS.standard_normal((4, 1, 2, 2)).astype(np.float32)
COUNTS = np.array([3, 1, 4, 1], np.int32)
RISING = np.sort(NUMBERS.standard_normal((3, 6)), 1).astype(np.float32)
HALF = np.fft.rfft(FIRST[:, :3]).astype(np.complex64)

CASES: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "Cross": (P.Cross(1), (V, V[::-1].copy()), np.cross(V, V[::-1])),
    "Dense": (P.Dense(), (FIRST, SECOND), FIRST @ SECOND.T),
    "GLU": (P.GLU(1), (FIRST,), FIRST[:, :2] / (1 + np.exp(-FIRST[:, 2:]))),
    "LogSigmoid": (ops.auto_generate.LogSigmoid(), (FIRST,), -np.log1p(np.exp(-FIRST))),
    "SearchSorted": (P.SearchSorted(right=True), (RISING, RISING), np.tile(np.arange(1, 7), (3, 1))),
    "MatrixBandPart": (P.MatrixBandPart(), (V, 0, 1), np.triu(V) - np.triu(V, 2)),
    "ReduceStd": (P.ReduceStd(1), (FIRST,), (FIRST.std(1, ddof=1), FIRST.mean(1))),
    "ResizeNearestNeighborV2": (P.ResizeNearestNeighborV2(), (TILES, (4, 4)), TILES.repeat(2, 2).repeat(2, 3)),
    "Roll": (P.Roll(1, 0), (FIRST,), np.roll(FIRST, 1, 0)),
    "TensorScatterElements": (P.TensorScatterElements(1), (FIRST, np.array([[1], [0], [3]]), SECOND[:, :1]),
                              np.where(np.arange(4) == [[1], [0], [3]], SECOND[:, :1], FIRST)),
    "TensorShape": (P.TensorShape(), (FIRST,), [3, 4]),
}  # fmt: skip


def test_operators_of_a_network() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.operators = [operator for operator, _, _ in CASES.values()]
            self.operands = [tensors(operands) for _, operands, _ in CASES.values()]

        def construct(self, x):
            return [operator(*given) for operator, given in zip(self.operators, self.operands, strict=True)]

    results = Net()(Tensor(FIRST))
    for (name, (operator, operands, wanted)), found in zip(CASES.items(), results, strict=True):
        for result in (found, operator(*tensors(operands))):
            many = result if isinstance(result, tuple | list) else (result,)
            for one, other in zip(many, wanted if isinstance(result, tuple) else (wanted,), strict=True):
                np.testing.assert_allclose(one.asnumpy(), other, rtol=2e-5, atol=2e-6, err_msg=name)


def tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(tensors, value)) if any(isinstance(v, np.ndarray | np.generic) for v in value) else value
    return Tensor(value) if isinstance(value, np.ndarray | np.generic) else value


def test_drawn() -> None:
    ones = P.Bernoulli(seed=3)(Tensor(np.zeros(4000, np.float32)), 0.25).asnumpy()
    assert abs(ones.mean() - 0.25) < 0.03
    assert sorted(P.RandomShuffle(1)(Tensor(np.arange(9))).asnumpy()) == list(range(9))
    assert sorted(P.RandpermV2()(6).asnumpy()) == list(range(6))
    assert P.Multinomial(1)(Tensor([0.0, 3.0, 1.0]), 50).asnumpy().min() == 1


def test_changes_of_parameters() -> None:
    held = mspc.Parameter(Tensor(FIRST), name="held")
    ops.scatter_nd_max(held, Tensor([[0], [2]]), Tensor(np.zeros((2, 4), np.float32)))
    wanted = np.stack([np.maximum(FIRST[0], 0), FIRST[1], np.maximum(FIRST[2], 0)])
    np.testing.assert_array_equal(held.asnumpy(), wanted)
    P.IndexAdd(1)(held, Tensor(np.array([3], np.int32)), Tensor(SECOND[:, :1]))
    np.testing.assert_allclose(held.asnumpy()[:, 3], wanted[:, 3] + SECOND[:, 0], rtol=1e-6)


def test_names_of_the_files_of_functions() -> None:
    from mspc.ops.auto_generate import expand_dims
    from mspc.ops.function.array_func import chunk_view, max_ext

    assert float(max_ext(Tensor(FIRST)).asnumpy()) == FIRST.max()
    assert [part.shape for part in chunk_view(Tensor(FIRST), 2, 1)] == [(3, 2), (3, 2)]
    assert expand_dims(Tensor(FIRST), 0).shape == (1, 3, 4)
    with pytest.raises(AttributeError):
        _ = ops.function.array_func.none_ext
    assert not hasattr(ops, "max_ext")


def test_a_script_asks_how_it_runs() -> None:
    assert (queries._get_parallel_mode(), queries._get_device_num()) == ("stand_alone", 1)
    assert not queries._is_in_auto_parallel_mode()
    context.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
    assert (queries._get_device_num(), queries._get_pipeline_stages()) == (8, 1)
    assert queries._is_in_auto_parallel_mode()
    context.set_auto_parallel_context(parallel_mode="data_parallel")
    assert queries._get_parallel_mode() == "data_parallel"


def test_whether_ranks_are_known(session: Session) -> None:
    from mspc.mindspore_api.communication import _is_initialized

    assert not _is_initialized()
    session.initialized = True
    assert _is_initialized()


def test_private_names_that_packages_import() -> None:
    from mspc.common.initializer import Initializer, _register, initializer
    from mspc.ops.auto_generate import Chunk

    @_register("twos")
    class Two(Initializer):
        def _initialize(self, arr: Any) -> None:
            arr[...] = 2

    assert [initializer(name, (2,)).asnumpy().tolist() for name in ("two", "twos")] == [[2.0, 2.0]] * 2
    assert [part.shape for part in Chunk()(Tensor([[1.0], [2.0], [3.0]]), 2)] == [(2, 1), (1, 1)]


def chooser():
    add = ops.MultitypeFuncGraph("add")
    add.register("Tensor", "Tensor")(lambda x, y: ("tensors", x + y))
    add.register("Number", "Number")(lambda x, y: ("numbers", x + y))
    add.register("Int", "Int")(lambda x, y: ("integers", x + y))
    add.register("Tuple", "None")(lambda x, y: ("tuple", x))
    return add


def test_the_last_function_that_fits_is_chosen():
    add = chooser()
    assert add(1, 2) == ("integers", 3)
    assert add(1, 2.5) == ("numbers", 3.5)
    assert add((1,), None) == ("tuple", (1,))
    assert add(Tensor(1.0), Tensor(2.0))[0] == "tensors"


def test_what_nobody_takes_is_refused():
    with pytest.raises(TypeError, match=r"MultitypeFuncGraph 'add' has no function for \(Tensor, str\)") as caught:
        chooser()(Tensor(1.0), "x")
    assert caught.value.notes == ("registered are Tensor, Tensor; Number, Number; Int, Int; Tuple, None",)
    with pytest.raises(TypeError, match="MultitypeFuncGraph 'add': there is no kind 'Tensors'"):
        ops.MultitypeFuncGraph("add").register("Tensors")


def test_maps_keep_the_structure():
    assert ops.HyperMap()(lambda x, y: x + y, (1, (2, 3)), [10, [20, 30]]) == (11, (22, 33))
    seen: list[int] = []
    assert ops.HyperMap(lambda x: seen.append(x) or -x, reverse=True)((1, (2, 3))) == (-1, (-2, -3))
    assert seen == [3, 2, 1]
    assert ops.Map(ops.partial(max, 2))((1, 3)) == (2, 3)


def test_an_operation_of_a_script() -> None:
    class Twice(ds.vision.transforms.PyTensorOperation):
        def _execute_py(self, value: Any) -> Any:
            return value * 2

    class Negated(ds.transforms.py_transforms.PyTensorOperation):
        def __call__(self, value: Any) -> Any:
            return -value

    rows = ds.NumpySlicesDataset([1, 2, 3], ["x"], shuffle=False).map([Twice(), Negated()], ["x"])
    assert [int(x) for (x,) in rows.create_tuple_iterator(output_numpy=True)] == [-2, -4, -6]
    with pytest.raises(NotImplementedError, match="PyTensorOperation"):
        ds.transforms.py_transforms.PyTensorOperation()(3)


def test_entries_of_settings_that_are_dicts() -> None:
    before = state.swap(state.Session())
    assert ms.get_auto_parallel_context("pipeline_scheduler") == "1f1b"
    assert ms.get_auto_parallel_context("parallel_optimizer_threshold") == 64
    ms.set_auto_parallel_context(parallel_optimizer_config={"parallel_optimizer_threshold": 7})
    assert ms.get_auto_parallel_context("parallel_optimizer_threshold") == 7
    state.swap(before)
    with pytest.raises(MspcError, match="pipeline_schedulers"):
        ms.get_auto_parallel_context("pipeline_schedulers")


def test_what_is_said_of_a_parameter_is_taken_over() -> None:
    old = Parameter(Tensor(1.0), "w", requires_grad=False, layerwise_parallel=True, parallel_optimizer=False)
    old.comm_fusion = 3
    new = Parameter(Tensor(2.0))
    new.param_info = old.param_info.clone()
    assert (new.name, new.requires_grad, new.layerwise_parallel, new.parallel_optimizer, new.comm_fusion) == (
        "w", False, True, False, 3,
    )  # fmt: skip
    assert float(new.asnumpy()) == 2.0
    with pytest.raises(MspcError, match="param_info"):
        new.param_info = "w"


def test_reductions_of_mint_by_names() -> None:
    x = Tensor(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
    assert ops.MeanExt()(x, -1, keepdim=True).asnumpy().tolist() == [[1.5], [4.5]]
    assert ops.SumExt()(x, dim=0).asnumpy().tolist() == [4.0, 8.0]
    assert ops.auto_generate.DropoutExt()(input=x, p=0.0)[0].asnumpy().tolist() == x.asnumpy().tolist()
    assert nn.TrainOneStepCell(nn.Dense(2, 2), nn.SGD(nn.Dense(2, 2).trainable_params())).use_graceful_exit is False


LARGE = (np.random.default_rng(0).uniform(-1, 1, (4, 32)) * 6000).astype(np.float16)
FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "std": lambda x: ops.std(x, 1),
    "mint.std": lambda x: mint.std(x, dim=1),
    "method std": lambda x: x.std(1, 1),
    "norm": lambda x: ops.norm(x, dim=1),
    "norm of third powers": lambda x: mint.norm(x, 3, 1),
    "cosine_similarity": lambda x: ops.cosine_similarity(x, x * 0.5, 1),
    "renorm": lambda x: ops.renorm(x, 2, 0, 1.0),
    "clip_by_global_norm": lambda x: ops.clip_by_global_norm([x, x], 1.0)[1],
    "variance of tens": lambda x: ops.var(x * 0.04, 1),
    "matmul of a vector": lambda x: mint.matmul((x * 1e-4)[0], (x * 1e-4).expand_dims(0).swapaxes(1, 2)),
    "operator @": lambda x: (x * 1e-4) @ (x * 1e-4).swapaxes(0, 1),
}


class Net(nn.Cell):
    def __init__(self, function: Callable[[Any], Any]) -> None:
        super().__init__()
        self.function = function

    def construct(self, x: Any) -> Any:
        return self.function(x)


@pytest.mark.parametrize("dtype", [ms.float16, ms.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_sums_of_squares_do_not_overflow(name: str, dtype: Any) -> None:
    x = Tensor(LARGE).astype(dtype)
    expected = FUNCTIONS[name](x.astype(ms.float64)).asnumpy()
    tolerance = 4e-3 if dtype == ms.float16 else 3e-2
    for found in (FUNCTIONS[name](x), Net(FUNCTIONS[name])(x)):
        assert found.dtype == dtype
        scale = np.abs(expected).max()
        np.testing.assert_allclose(found.astype(ms.float64).asnumpy(), expected, rtol=tolerance, atol=tolerance * scale)


def test_gradients_of_a_deviation_are_finite() -> None:
    found = ops.grad(lambda x: ops.std(x, 1).sum())(Tensor(LARGE)).asnumpy()
    expected = ops.grad(lambda x: ops.std(x, 1).sum())(Tensor(LARGE.astype(np.float64))).asnumpy()
    np.testing.assert_allclose(found, expected, rtol=5e-3, atol=1e-3)
