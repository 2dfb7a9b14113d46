"""Compiled attention and its gradients against NumPy's, which have tests of their own beside formulas written out."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mspc.ops.cpu import thread_pool
from mspc.ops.cpu.loops import kernel as loop_kernels
from mspc.ops.cpu.loops import library, program
from mspc.ops.nn.attention import FlashAttentionScore, FlashAttentionScoreGrad, FlashAttentionScoreShiftGrad
from tests.graphs import TensorType, dtype_of, element_types
from tests.ops.cuda.cuda_chains import NumPy
from tests.shares import share_of

pytestmark = [
    pytest.mark.skipif(not library.compiler(), reason="needs a C++ compiler"),
    pytest.mark.usefixtures("quick_compiler"),
]
DRAWS = share_of(40, 5)
LAYOUTS = ("BNSD", "BSND", "BSH", "SBH")


@dataclass(frozen=True)
class Case:
    """An attention. sizes: batch, heads, key_heads, queries, keys, depth, value_depth. optional: arrays by name."""

    sizes: tuple[int, int, int, int, int, int, int]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    optional: Mapping[str, Any] = field(default_factory=dict)
    layout: str = "BNSD"
    packed: bool = False

    def operator(self, kind: type[Any]) -> Any:
        given = {"scale_value": 0.3, "input_layout": self.layout, "optional": tuple(self.optional)}
        packed = self.sizes[2] if self.packed else 0
        return kind(self.sizes[1], packed=packed, **{**given, **self.attributes})

    def turned(self, x: Any) -> Any:
        """[batch, heads, sequence, depth] in the layout."""
        if self.layout == "BNSD":
            return x
        x = x.transpose(0, 2, 1, 3)
        if self.layout == "BSND":
            return np.ascontiguousarray(x)
        flat = x.reshape(*x.shape[:2], -1)
        return np.ascontiguousarray(flat if self.layout == "BSH" else flat.transpose(1, 0, 2))

    def heads(self, dtype: Any = np.float32) -> tuple[list[Any], Any]:
        """(query, key and value, or these in one, gradient of the result)."""
        batch, heads, key_heads, queries, keys, depth, value_depth = self.sizes
        random = np.random.default_rng(queries)
        shapes = ((heads, queries, depth), (key_heads, keys, depth), (key_heads, keys, value_depth),
                  (heads, queries, value_depth))  # fmt: skip
        *sides, g = (random.standard_normal((batch, *shape)).astype(dtype) for shape in shapes)
        if self.packed:
            sides = [np.concatenate(sides, 1)]
        return [self.turned(x) for x in sides], self.turned(g)


def wide(x: Any) -> Any:
    return x.astype(np.float64) if x.dtype.itemsize in (2, 4) and x.dtype.kind in "fV" else x


def typed(arrays: Sequence[Any]) -> list[TensorType]:
    return [TensorType(dtype_of(x.dtype), x.shape) for x in arrays]


def loops(calls: Sequence[tuple[Any, Sequence[Any]]]) -> dict[int, Any]:
    """Kernels of operators for operands as these."""
    made = {i: (op, typed(inputs), element_types(op.infer(*typed(inputs)))) for i, (op, inputs) in enumerate(calls)}
    return program.kernels(NumPy(), made).loops  # type: ignore[arg-type]


def calls_of(case: Case, dtype: Any = np.float32, kernel: Any = None) -> list[tuple[Any, list[Any]]]:
    """The operators of a case with their operands. Gradients take what `kernel(operator, inputs)` made of the operands,
    NumPy where there is none."""
    sides, g = case.heads(dtype)
    more = list(case.optional.values())
    forward = case.operator(FlashAttentionScore), [*sides, *more]
    top, _, _, result = (kernel or numpy_result)(*forward)
    inputs = [*sides, g, *more, top, result]
    kinds = [FlashAttentionScoreGrad]
    if "real_shift" in case.optional:
        kinds.append(FlashAttentionScoreShiftGrad)
    return [forward, *((case.operator(kind), inputs) for kind in kinds)]


def numpy_result(op: Any, inputs: Sequence[Any]) -> Any:
    return op.kernel(NumPy())(*inputs)


def in_float64(op: Any, inputs: Sequence[Any]) -> Any:
    return numpy_result(op, list(map(wide, inputs)))


def arrays_of(found: Any) -> list[Any]:
    return list(found) if isinstance(found, tuple) else [found]


def check(cases: Sequence[Case], dtype: Any = np.float32, bound: float = 4e-6) -> None:
    """Every operator is compiled, and equals NumPy's Float64 but for rounding: by `bound` of the largest result, or of
    what sums are made of that vanish: 1, and for gradients of what is added to scores products of a gradient's and a
    value's rows, whose sums over keys are weighted by 1 in all."""
    with np.errstate(all="ignore"):
        calls = [call for case in cases for call in calls_of(case, dtype)]
        made = loops(calls)
        assert sorted(made) == list(range(len(calls)))
        exact = [call for case in cases for call in calls_of(case, dtype, in_float64)]
        for number, ((op, inputs), (_, finer)) in enumerate(zip(calls, exact, strict=True)):
            found = arrays_of(made[number](*inputs))
            wanted = arrays_of(in_float64(op, finer))
            for one, other in zip(found, wanted, strict=True):
                terms = inputs[2].shape[-1] ** 0.5 if op.name == "FlashAttentionScoreShiftGrad" else 1.0
                scale = np.abs(other[np.isfinite(other)]).max(initial=terms)
                np.testing.assert_allclose(
                    wide(one), other, rtol=bound, atol=bound * scale, err_msg=f"{op} {typed(inputs)}"
                )


def drawn_bool(share: float, *shape: int) -> Any:
    return np.random.default_rng(sum(shape)).random(shape) < share


def drawn(*shape: int) -> Any:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


PLAIN = (2, 4, 2, 150, 140, 24, 40)
NAMED: dict[str, Case] = {
    "several blocks": Case(PLAIN),
    "one query": Case((3, 4, 1, 1, 200, 16, 16)),
    "one key": Case((3, 2, 2, 70, 1, 8, 1)),
    "few pairs, many blocks": Case((1, 1, 1, 700, 130, 32, 16)),
    "causal": Case(PLAIN, {"sparse_mode": 2}),
    "causal from the ends": Case(PLAIN, {"sparse_mode": 3}),
    "more queries than keys, causal from the ends": Case((1, 2, 1, 300, 70, 16, 16), {"sparse_mode": 3}),
    "a band": Case(PLAIN, {"sparse_mode": 4, "pre_tokens": 20, "next_tokens": 3}),
    "a band beside a mask": Case(
        PLAIN, {"pre_tokens": 30, "next_tokens": 90}, {"attn_mask": drawn_bool(0.3, 150, 140)}
    ),
    "a mask that hides rows": Case(PLAIN, {}, {"attn_mask": drawn_bool(0.5, 2, 1, 150, 1)}),
    "a mask of keys, in numbers": Case(PLAIN, {}, {"attn_mask": drawn_bool(0.5, 2, 1, 1, 140).astype(np.uint8) * 7}),
    "a slice of the queries": Case(PLAIN, {"sparse_mode": 2, "first_query": 100, "all_queries": 300}),
    "a slice of the keys": Case(
        PLAIN, {"sparse_mode": 2, "first_query": 300, "all_queries": 450, "key_slice": (280, 420)}
    ),
    "keys behind all queries": Case(
        PLAIN, {"sparse_mode": 2, "first_query": 150, "all_queries": 450, "key_slice": (280, 420)}
    ),
    "keys ahead of all queries": Case(
        PLAIN, {"sparse_mode": 3, "first_query": 300, "all_queries": 450, "key_slice": (0, 420)}
    ),
    "a band over a corner of a slice": Case(
        PLAIN, {"sparse_mode": 4, "pre_tokens": 40, "next_tokens": 0, "first_query": 150, "all_queries": 450,
                "key_slice": (0, 420)},
    ),
    "drawn of a slice of the keys": Case(
        PLAIN, {"keep_prob": 0.6, "shape": (2, 4, 300, 420), "begin": (0, 0, 150, 0), "key_slice": (140, 420)},
    ),
    "documents over slices": Case(
        PLAIN, {"first_query": 150, "all_queries": 450, "key_slice": (140, 420)},
        {"actual_seq_qlen": np.array([170, 240]), "actual_seq_kvlen": np.array([200, 260])},
    ),
    "shift of a head": Case(PLAIN, {"sparse_mode": 2}, {"real_shift": drawn(1, 4, 150, 140)}),
    "shift of all": Case(
        PLAIN, {}, {"real_shift": drawn(2, 4, 150, 140), "attn_mask": drawn_bool(0.2, 1, 1, 150, 140)}
    ),
    "shift of keys": Case(PLAIN, {}, {"real_shift": drawn(2, 1, 1, 140)}),
    "shift of queries": Case(PLAIN, {}, {"real_shift": drawn(1, 4, 150, 1)}),
    "shift that hides": Case(
        PLAIN, {}, {"real_shift": np.where(drawn_bool(0.6, 2, 1, 1, 140), -np.inf, 0).astype(np.float32)}
    ),
    "documents": Case(PLAIN, {}, {"actual_seq_qlen": np.array([40, 149]), "actual_seq_kvlen": np.array([90, 140])}),
    "dropped by a mask": Case(PLAIN, {"keep_prob": 0.7}, {"drop_mask": drawn_bool(0.7, 2, 4, 150, 140)}),
    "dropped by a mask of rows": Case(PLAIN, {"keep_prob": 0.7}, {"drop_mask": drawn_bool(0.7, 4, 150, 1)}),
    "drawn": Case(PLAIN, {"keep_prob": 0.8, "Seed0": 4, "Seed1": 9}),
    "drawn in groups": Case((2, 4, 2, 150, 144, 24, 40), {"keep_prob": 0.8, "sparse_mode": 2}),
    "drawn of a slice": Case(
        PLAIN, {"keep_prob": 0.3, "shape": (8, 12, 300, 140), "begin": (2, 4, 150, 0)}, {"real_shift": drawn(150, 140)}
    ),
    "drawn of rows in parts": Case(
        PLAIN, {"keep_prob": 0.3, "shape": (2, 2, 4, 150, 140), "begin": (1, 0, 0, 0, 0), "local": (2, 1, 4, 150, 140)},
    ),
}  # fmt: skip


def in_all_layouts(case: Case) -> list[Case]:
    """The case in every layout, and with its operands in one where they have one depth."""
    batch, heads, key_heads, queries, _, depth, _ = case.sizes
    sizes = batch, heads, key_heads, queries, queries, depth, depth
    alone = [] if case.optional else [Case(sizes, case.attributes, packed=True)]
    return [replace(each, layout=layout) for each in (case, *alone) for layout in LAYOUTS]


@pytest.mark.share(6)
@pytest.mark.parametrize("name", NAMED)
def test_named_forms_equal_numpy(name: str) -> None:
    check([NAMED[name]])


@pytest.mark.thorough
def test_all_layouts_equal_numpy() -> None:
    check([*in_all_layouts(NAMED["several blocks"]), *in_all_layouts(NAMED["shift of a head"])])


def any_case(random: np.random.Generator) -> Case:
    """A case of any sizes and operands that fit each other."""
    batch, key_heads, group = (int(n) for n in random.integers(1, 4, 3))
    queries, keys = (int(n) for n in random.integers((1, 10), 200))  # of few keys gradients vanish beside their terms
    depth, value_depth = (int(n) for n in random.integers(1, 90, 2))
    sizes = batch, key_heads * group, key_heads, queries, keys, depth, value_depth
    weights = batch, key_heads * group, queries, keys

    def some() -> tuple[int, ...]:
        shape = tuple(n if random.random() < 0.6 else 1 for n in weights)
        return shape[int(random.integers(0, 3)) :]

    optional: dict[str, Any] = {}
    attributes: dict[str, Any] = {"sparse_mode": int(random.integers(0, 5))}
    if random.random() < 0.5:
        shape = (*some()[:-1], keys)  # with one number for all keys the gradient's sums vanish
        optional["real_shift"] = random.standard_normal(shape).astype(np.float32)
    dropping = random.integers(0, 3)
    if dropping:
        attributes["keep_prob"] = 0.6
    if dropping == 1:
        optional["drop_mask"] = random.random(some()) < 0.6
    if random.random() < 0.4 or attributes["sparse_mode"] == 1:
        optional["attn_mask"] = random.random(some()) < 0.3
    attributes |= {"pre_tokens": int(random.integers(0, 90)), "next_tokens": int(random.integers(0, 90))}
    return Case(sizes, attributes, optional, str(random.choice(LAYOUTS)))


def test_drawn_forms_equal_numpy() -> None:
    random = np.random.default_rng(11)
    check([any_case(random) for _ in range(DRAWS)])


@pytest.mark.share(2)
@pytest.mark.parametrize(("dtype", "bound"), [(np.float16, 2e-3), (ml_dtypes.bfloat16, 2e-2)])
def test_halves_are_rounded_once(dtype: Any, bound: float) -> None:
    check([NAMED[name] for name in ("causal", "drawn", "shift of a head")], dtype, bound)


def test_the_number_of_threads_changes_no_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop_kernels, "SHARED", 1)
    names = ("several blocks", "few pairs, many blocks", "shift of keys", "shift of a head", "drawn")
    calls = [call for name in names for call in calls_of(NAMED[name])]
    found: list[list[Any]] = []
    for threads in (1, 2, 5):
        monkeypatch.setattr(thread_pool, "thread_count", lambda count=threads: count)
        made = loops(calls)
        found.append([array for i, (_, inputs) in enumerate(calls) for array in arrays_of(made[i](*inputs))])
    for one in found[1:]:
        for array, other in zip(one, found[0], strict=True):
            np.testing.assert_array_equal(array, other)


def check_as_numpy(case: Case) -> None:
    """A value that is not finite is so where NumPy's is, and the rest equals NumPy's of the same element types."""
    with np.errstate(all="ignore"):
        calls = calls_of(case)
        made = loops(calls)
        for number, (op, inputs) in enumerate(calls):
            for one, other in zip(arrays_of(made[number](*inputs)), arrays_of(numpy_result(op, inputs)), strict=True):
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5, err_msg=str(op))


@pytest.mark.share(5)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("operand", ["query", "key", "value", "gradient", "real_shift"])
def test_what_is_not_finite_shows_where_it_does_in_numpy(
    operand: str, value: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = replace(NAMED["shift of a head"], optional={"real_shift": drawn(1, 4, 150, 140)})
    heads = case.heads

    def changed(dtype: Any = np.float32) -> tuple[list[Any], Any]:
        sides, g = heads(dtype)
        arrays = {"query": sides[0], "key": sides[1], "value": sides[2], "gradient": g, **case.optional}
        arrays[operand][0, 1, 100, 7] = value
        return sides, g

    monkeypatch.setattr(Case, "heads", lambda _, dtype=np.float32: changed(dtype))
    check_as_numpy(case)


def test_rows_that_are_shifted_by_far_have_even_weights() -> None:
    far = np.float32(-1e9) * drawn_bool(0.5, 2, 1, 150, 1)
    check_as_numpy(Case(PLAIN, {"sparse_mode": 2}, {"real_shift": far}))


def test_an_operand_that_is_not_finite_is_forgotten_at_the_next_call() -> None:
    calls = calls_of(NAMED["causal"])
    for number, kernel in loops(calls).items():
        inputs = calls[number][1]
        wanted = arrays_of(kernel(*inputs))
        with np.errstate(invalid="ignore"):
            kernel(np.full_like(inputs[0], np.nan), *inputs[1:])
        for one, other in zip(arrays_of(kernel(*inputs)), wanted, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("name", ["shift of a head", "several blocks", "a mask that hides rows", "shift of keys"])
def test_operands_and_results_may_lie_anywhere(name: str) -> None:
    calls = calls_of(NAMED[name])
    for number, kernel in loops(calls).items():
        inputs = calls[number][1]
        wanted = arrays_of(kernel(*inputs))
        apart = [np.full((*x.shape, 2), np.nan, x.dtype)[..., 0] for x in wanted]
        turned = [np.ascontiguousarray(x.T).T for x in inputs]
        kernel(*turned, out=tuple(apart) if len(apart) > 1 else apart[0])
        for one, other in zip(apart, wanted, strict=True):
            np.testing.assert_array_equal(one, other)


def test_what_stays_with_numpy() -> None:
    assert loops(calls_of(NAMED["causal"], np.float64)) == {}
    op, inputs = calls_of(Case((0, 2, 2, 3, 3, 4, 4)))[0]
    assert loops([(op, inputs)]) == {}


@pytest.mark.thorough
def test_two_functions_serve_all_forms(compiled: list[int]) -> None:
    loops(list(itertools.chain(*map(calls_of, NAMED.values()))))
    assert compiled == [2]
