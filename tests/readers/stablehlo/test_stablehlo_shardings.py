"""Shardings in StableHLO programs, and their programs on ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.compile import CompileOptions, compile_target
from mspc.commands.options import ImportOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.readers.stablehlo.module import HloModule
from mspc.readers.stablehlo.partition_specs import spec_of
from mspc.readers.stablehlo.shardings import layout_of
from mspc.readers.stablehlo.text_reader import read_text
from tests.stablehlo_texts import STEP, module

QUIET = Loudness(False, True)


def with_sharding(text: str) -> tuple[HloModule, Any]:
    """Return a module, and the sharding that its argument has."""
    source = f'sdy.mesh @m = <["a"=2, "b"=4]>\n{module([f"%x: tensor<16x16xf32> {{{text}}}"], "", [("%x", "f32")])}'
    found = read_text(source.replace("f32 {\n    return", "f32 {\n    return"), "step.mlir")
    return found, next(iter(found.main.argument_attributes[0].values()))


@pytest.mark.parametrize(("text", "first", "last"), [
    ('sdy.sharding = #sdy.sharding<@m, [{"a"}, {"b"}]>', [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2),
    ('sdy.sharding = #sdy.sharding<@m, [{"b", "a"}, {}]>', [0, 2, 4, 6, 1, 3, 5, 7], [0] * 8),
    ('sdy.sharding = #sdy.sharding<@m, [{"b":(2)2}, {"a", ?}p1], replicated={"b":(1)2}>', [0, 1, 0, 1] * 2,
     [0, 0, 0, 0, 1, 1, 1, 1]),
    ('mhlo.sharding = "{devices=[2,4]<=[8]}"', [0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2),
    ('mhlo.sharding = "{devices=[4,1,2]<=[2,4]T(1,0) last_tile_dim_replicate}"', [0, 1, 2, 3] * 2, [0] * 8),
    ('mhlo.sharding = "{devices=[2,2,2]0,1,2,3,4,5,6,7 last_tile_dim_replicate}"', [0, 0, 0, 0, 1, 1, 1, 1],
     [0, 0, 1, 1] * 2),
    ('mhlo.sharding = "{devices=[2,4]<=[4,2]T(1,0)}"', [0, 1] * 4, [0, 0, 1, 1, 2, 2, 3, 3]),
])  # fmt: skip
def test_layouts(text: str, first: list[int], last: list[int]) -> None:
    """The number of the slice of both dimensions on each of 8 ranks."""
    layout = layout_of(*with_sharding(text), 2)
    assert layout is not None
    slices = [layout.to_layout().slice_index(rank) for rank in range(8)]
    assert [list(each) for each in zip(*slices, strict=True)] == [first, last]


def test_open_dimensions_and_wrong_shardings() -> None:
    assert layout_of(*with_sharding("sdy.sharding = #sdy.sharding<@m, [{?}, {?}]>"), 2) is None
    for text, message in (
        ('sdy.sharding = #sdy.sharding<@n, [{"a"}, {}]>', "there is no mesh @n"),
        ('sdy.sharding = #sdy.sharding<@m, [{"c"}, {}]>', "names 'c', which is no axis"),
        ('sdy.sharding = #sdy.sharding<@m, [{"a"}]>', "1 dimensions is given to a tensor of 2"),
        ('mhlo.sharding = "{devices=[3,1]<=[8]}"', "does not fit 3 devices"),
        ('mhlo.sharding = "{devices=[2,4]0,1,2,3,4,5,7,6}"', "lists devices otherwise"),
    ):
        with pytest.raises(MspcError, match=message):
            layout_of(*with_sharding(text), 2)


@pytest.fixture
def step(own_folder: Path) -> Path:
    (own_folder / "step.mlir").write_text(STEP)
    return own_folder


def test_ranks_compute_as_one_device(step: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On as many ranks as the text is for, in its shardings; on others by the batch."""
    verify_target("step.mlir", CompileOptions(), 0)
    assert "on 4 ranks" in capsys.readouterr().out
    verify_target("step.mlir", CompileOptions(ranks=2), 0)
    both = capsys.readouterr()
    assert "on 2 ranks" in both.out
    assert "its shardings are left out" in both.err


def test_compiled_files_have_the_layouts_of_the_text(step: Path) -> None:
    compile_target("step.mlir", CompileOptions(level=2, out=Path("made"), loudness=QUIET))
    (program,) = (step / "made" / "rank_3").glob("*_execute_*.ir")
    text = program.read_text()
    assert "%para1_x: <Tensor[Float32], (2, 8)>" in text
    assert "ref_key=params.up" in text
    assert "(8, 8)" in next(line for line in text.splitlines() if "ref_key=params.up" in line)
    assert "step.py(7)" in text
    with pytest.raises(MspcError, match="--loss is for a network of PyTorch"):
        compile_target("step.mlir", CompileOptions(out=Path("made"), imported=ImportOptions(loss="mse")))


LOWERED = """
class Lowered:
    def as_text(self, debug_info=False):
        assert debug_info
        return open("step.mlir").read()

lowered = Lowered()
def make(flag):
    assert flag == 3
    return lowered
def other():
    return 1
"""


def test_a_script_that_lowers_a_step(step: Path) -> None:
    """The script runs in another process, which needs JAX only if the script does."""
    from mspc.commands.stablehlo import lowered_text
    from mspc.engine.capture import NamedTarget

    (step / "jit.py").write_text(LOWERED)
    Path("json.py").write_text("raise SystemExit('a module of the current folder')")
    for name, arguments in (("lowered", ()), ("make", (3,))):
        assert lowered_text(NamedTarget(Path("jit.py"), name, arguments, ())) == STEP
    for name, message in (("other", "gives int"), ("missing", "defines no 'missing'"), ("make", "cannot lower")):
        with pytest.raises(MspcError, match=message):
            lowered_text(NamedTarget(Path("jit.py"), name, (), ()))


def test_a_step_of_jax(step: Path) -> None:
    """If JAX is installed, it judges a training step with a scan over recomputed layers."""
    jax = pytest.importorskip("jax", reason="JAX is not installed, and is only a judge")
    from mspc import Tensor
    from mspc.readers.stablehlo.network import StableHloNetwork

    jnp, rng = jax.numpy, np.random.default_rng(0)

    def loss(params: Any, x: Any) -> Any:
        layer = jax.checkpoint(lambda h, w: (jnp.tanh(h @ w) + h, None))
        return jnp.mean(jax.lax.scan(layer, x, params)[0] ** 2)

    def train(params: Any, x: Any) -> Any:
        value, gradient = jax.value_and_grad(loss)(params, x)
        return params - 0.1 * gradient, value

    params, x = (rng.normal(size=shape).astype(np.float32) for shape in ((3, 8, 8), (4, 8)))
    text = jax.jit(train, donate_argnums=0).lower(params, x).as_text(debug_info=True)
    network = StableHloNetwork(read_text(text, "step.mlir"))
    (parameter,) = network.held.values()
    parameter.set_data(Tensor(params))
    value = network(Tensor(x)).asnumpy()
    for found, expected in zip((parameter.asnumpy(), value), jax.jit(train)(params, x), strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)


def test_a_plan_as_partition_specs(step: Path) -> None:
    """The layouts of a compile over the mesh of the text; a search's over a mesh of its own."""
    compile_target("step.mlir", CompileOptions(out=Path("made"), out_jax=Path("specs.py"), loudness=QUIET))
    text = (step / "specs.py").read_text()
    assert "MESH = {'data': 2, 'model': 2}" in text
    assert """    "params['up']": P(None, 'model'),\n    "params['down']": P('model'),\n    'x': P('data'),\n""" in text
    compile(text, "specs.py", "exec")
    lines = "from mspc import nn\nclass Net(nn.Cell):\n    def construct(self, x):\n        return x\n"
    (step / "net.py").write_text(lines)
    with pytest.raises(MspcError, match="--out-jax writes PartitionSpecs for a step of JAX"):
        compile_target("net.py:Net()", CompileOptions(
            inputs=("float32[2]",), out=Path("made"), out_jax=Path("specs.py"), loudness=QUIET))  # fmt: skip
    layout = Layout.of((4, 2, 3), ((2, 0), (), (1,)))
    assert spec_of(layout, (2, 2, 2, 3), ("a", "b", "c", "d")) == "P(('d', 'a', 'b'), None, 'c')"
