"""Modules of XLA after its partitioner beside the steps of which they are made."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.report.verbosity import Loudness
from mspc.commands.verify_scale import verify_scale
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.readers.stablehlo.hlo_text import groups_in
from mspc.readers.stablehlo.text_reader import read_text
from tests.readers.hlo_edits import edited
from tests.stablehlo_texts import STEP, module

SUM = """
%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}
"""
AFTER = f"""HloModule jit_step, num_partitions=4
{SUM}
%relu_spmd (z: f32[2,8]) -> f32[2,8] {{
  %z = f32[2,8]{{1,0}} parameter(0)
  %low = f32[] constant(0)
  %lows = f32[2,8]{{1,0}} broadcast(%low), dimensions={{}}
  ROOT %most = f32[2,8]{{1,0}} maximum(%z, %lows)
}}

ENTRY %main_spmd (p: f32[8,8], q: f32[8,8], r: f32[2,8]) -> (f32[8,8], f32[8,8], f32[]) {{
  %up = f32[8,8]{{1,0}} parameter(0), sharding={{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}}
  %down = f32[8,8]{{1,0}} parameter(1), sharding={{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}}
  %x = f32[2,8]{{1,0}} parameter(2), sharding={{devices=[2,1,2]<=[4] last_tile_dim_replicate}}
  %dot = f32[2,8]{{1,0}} dot(%x, %up), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}
  %act = f32[2,8]{{1,0}} fusion(%dot), kind=kLoop, calls=%relu_spmd
  %out = f32[2,8]{{1,0}} dot(%act, %down), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, metadata={{op_name="jit(step)/mlp/dot_general" source_file="step.py" source_line=7 source_column=11}}
  %outs = f32[2,8]{{1,0}} all-reduce(%out), channel_id=1, replica_groups={{{{0,1}},{{2,3}}}}, use_global_device_ids=true, to_apply=%sum, metadata={{op_name="jit(step)/mlp/dot_general" source_file="step.py" source_line=7 source_column=11}}
  %zero = f32[] constant(0)
  %part = f32[] reduce(%outs, %zero), dimensions={{0,1}}, to_apply=%sum
  %loss = f32[] all-reduce(%part), channel_id=2, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true, to_apply=%sum
  %g = f32[8,8]{{1,0}} dot(%x, %act), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  %gs = f32[8,8]{{1,0}} all-reduce(%g), channel_id=3, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true, to_apply=%sum
  %rate = f32[] constant(0.1)
  %rates = f32[8,8]{{1,0}} broadcast(%rate), dimensions={{}}
  %scaled = f32[8,8]{{1,0}} multiply(%rates, %gs)
  %up2 = f32[8,8]{{1,0}} subtract(%up, %scaled)
  %k = f32[8,8]{{1,0}} dot(%act, %outs), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
  %ks = f32[8,8]{{1,0}} all-reduce(%k), channel_id=4, replica_groups=[2,2]<=[2,2]T(1,0), use_global_device_ids=true, to_apply=%sum
  %down2 = f32[8,8]{{1,0}} subtract(%down, %ks)
  ROOT %all = (f32[8,8]{{1,0}}, f32[8,8]{{1,0}}, f32[]) tuple(%up2, %down2, %loss)
}}
"""  # noqa: E501  # one operation has one line
"""The module of `STEP` for four devices."""


def check(folder: Path, step: str, after: str, name: str = "after.hlo") -> None:
    """Compare a module with a step. Raise MspcError if they differ, or one cannot be read."""
    (folder / "step.mlir").write_text(step)
    (folder / name).write_text(after)
    verify_scale(str(folder / "step.mlir"), CompileOptions(loudness=Loudness(False, True)), 0, folder / name)


def test_the_module_computes_the_step(tmp_path: Path) -> None:
    check(tmp_path, STEP, AFTER)


@pytest.mark.parametrize("seed", [*range(8), 9, 10])  # the groups of seed 8 have every slice once, too
def test_single_changes_are_found(tmp_path: Path, seed: int) -> None:
    text, _ = edited(AFTER, random.Random(seed))
    with pytest.raises(ExecutionError, match=r"differ|cannot be computed"):
        check(tmp_path, STEP, text)


def test_a_wrong_sum_is_named_with_its_line(tmp_path: Path) -> None:
    with pytest.raises(ExecutionError) as found:
        check(tmp_path, STEP, AFTER.replace("replica_groups={{0,1},{2,3}}", "replica_groups={{0,2},{1,3}}"))
    assert "step.py:7:11" in str(found.value)


def of_rows(body: str, result: str, before: str = "") -> str:
    """Return a module of four devices, each of which has two rows of x, [8, 8]."""
    return f"""HloModule rows, num_partitions=4
{SUM}{before}
ENTRY %main (p: f32[2,8]) -> {result} {{
  %x = f32[2,8]{{1,0}} parameter(0), sharding={{devices=[4,1]<=[4]}}
{body}
}}
"""


RING = "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}"
BACK = "source_target_pairs={{1,0},{2,1},{3,2},{0,3}}"
OFFSET = """  %table = s32[4]{0} constant({0, 2, 4, 6})
  %id = u32[] partition-id()
  %row = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}
  %at = s32[] reshape(%row)
  %none = s32[] constant(0)
"""
ROWS = {
    "gather": of_rows("  ROOT %y = f32[8,8]{1,0} all-gather(%x), channel_id=1, replica_groups=[1,4]<=[4], "
                      "dimensions={0}, use_global_device_ids=true", "f32[8,8]"),
    "gather in the background": of_rows(
        "  %s = (f32[2,8]{1,0}, f32[8,8]{1,0}) all-gather-start(%x), channel_id=1, replica_groups=[1,4]<=[4], "
        "dimensions={0}, use_global_device_ids=true\n  ROOT %y = f32[8,8]{1,0} all-gather-done(%s)", "f32[8,8]"),
    "ring": of_rows(f"  %n = f32[2,8]{{1,0}} collective-permute(%x), channel_id=1, {RING}\n"
                    f"  ROOT %y = f32[2,8]{{1,0}} collective-permute(%n), channel_id=2, {BACK}", "f32[2,8]"),
    "line": of_rows(
        "  %n = f32[2,8]{1,0} collective-permute(%x), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3}}\n"
        f"  %m = f32[2,8]{{1,0}} collective-permute(%n), channel_id=2, {BACK}\n"
        "  %id = u32[] partition-id()\n  %last = u32[] constant(3)\n"
        "  %is = pred[] compare(%id, %last), direction=EQ\n  ROOT %y = f32[2,8]{1,0} select(%is, %x, %m)", "f32[2,8]"),
    "slices": of_rows(
        "".join(f"  %s{k} = f32[2,2]{{1,0}} slice(%x), slice={{[0:2], [{2 * k}:{2 * k + 2}]}}\n" for k in range(4))
        + "  %e = (f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}, f32[2,2]{1,0}) all-to-all(%s0, %s1, %s2, %s3), "
        "channel_id=1, replica_groups={{0,1,2,3}}\n"
        + "".join(f"  %g{k} = f32[2,2]{{1,0}} get-tuple-element(%e), index={k}\n" for k in range(4))
        + "  ROOT %y = f32[8,2]{1,0} concatenate(%g0, %g1, %g2, %g3), dimensions={0}", "f32[8,2]"),
    "scatter": of_rows(
        OFFSET + "  %zero = f32[] constant(0)\n  %zeros = f32[8,8]{1,0} broadcast(%zero), dimensions={}\n"
        "  %own = f32[8,8]{1,0} dynamic-update-slice(%zeros, %x, %at, %none)\n"
        "  ROOT %y = f32[8,2]{1,0} reduce-scatter(%own), channel_id=1, replica_groups={{0,1,2,3}}, dimensions={1}, "
        "use_global_device_ids=true, to_apply=%sum", "f32[8,2]"),
    "other order in memory": of_rows(
        "  %t = f32[8,2]{0,1} bitcast(%x)\n  ROOT %y = f32[2,8]{1,0} transpose(%t), dimensions={1,0}", "f32[2,8]"),
    "loop": of_rows(
        "  %zero = s32[] constant(0)\n  %both = (s32[], f32[2,8]{1,0}) tuple(%zero, %x)\n"
        "  %w = (s32[], f32[2,8]{1,0}) while(%both), condition=%few, body=%turn\n"
        "  ROOT %y = f32[2,8]{1,0} get-tuple-element(%w), index=1", "f32[2,8]", f"""
%few (f: (s32[], f32[2,8])) -> pred[] {{
  %f = (s32[], f32[2,8]{{1,0}}) parameter(0)
  %i = s32[] get-tuple-element(%f), index=0
  %n = s32[] constant(4)
  ROOT %lt = pred[] compare(%i, %n), direction=LT
}}

%turn (v: (s32[], f32[2,8])) -> (s32[], f32[2,8]) {{
  %v = (s32[], f32[2,8]{{1,0}}) parameter(0)
  %j = s32[] get-tuple-element(%v), index=0
  %one = s32[] constant(1)
  %next = s32[] add(%j, %one)
  %old = f32[2,8]{{1,0}} get-tuple-element(%v), index=1
  %new = f32[2,8]{{1,0}} collective-permute(%old), channel_id=1, {RING}
  ROOT %u = (s32[], f32[2,8]{{1,0}}) tuple(%next, %new)
}}
"""),
}  # fmt: skip
"""Modules that give x back, whole or in slices."""
WHOLE = module(["%x: tensor<8x8xf32>"], "", [("%x", "tensor<8x8xf32>")])


@pytest.mark.parametrize("name", ROWS)
def test_collectives(tmp_path: Path, name: str) -> None:
    check(tmp_path, WHOLE, ROWS[name])


def test_a_module_as_stablehlo(tmp_path: Path) -> None:
    """XLA's module may be text of StableHLO, whose groups are a constant."""
    text = """module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%x: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<8x8xf32> {
    %0 = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 1>, replica_groups = dense<GROUP> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}
"""  # noqa: E501  # one operation has one line
    check(tmp_path, WHOLE, text.replace("GROUP", "[[0, 1, 2, 3]]"), "after.mlir")
    with pytest.raises(ExecutionError, match="differ"):
        check(tmp_path, WHOLE, text.replace("GROUP", "[[0, 2, 1, 3]]"), "after.mlir")


def test_a_start_beyond_the_end_is_tried(tmp_path: Path) -> None:
    """A slice that each device takes from the middle of the slice of all: for starts beyond the end it is another."""
    types = "(tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x6xf32>"
    body = f"""    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %x, %c, %s, sizes = [2, 6] : {types}"""
    step = module(["%x: tensor<2x8xf32>", "%s: tensor<i32>"], body, [("%0", "tensor<2x6xf32>")])
    after = """HloModule slices, num_partitions=2

ENTRY %main (p: f32[2,8], s: s32[]) -> f32[2,3] {
  %x = f32[2,8]{1,0} parameter(0), sharding={replicated}
  %s = s32[] parameter(1), sharding={replicated}
  %table = s32[2]{0} constant({0, 3})
  %id = u32[] partition-id()
  %row = s32[1]{0} dynamic-slice(%table, %id), dynamic_slice_sizes={1}
  %at = s32[] reshape(%row)
  %none = s32[] constant(0)
BODY
}
"""
    first = "  %six = f32[2,6]{1,0} dynamic-slice(%x, %none, %s), dynamic_slice_sizes={2,6}\n"
    last = "  ROOT %y = f32[2,3]{1,0} dynamic-slice(%six, %none, %at), dynamic_slice_sizes={2,3}"
    check(tmp_path, step, after.replace("BODY", first + last))
    wrong = "  %both = s32[] add(%s, %at)\n" + last.replace("%six", "%x").replace("%at", "%both")
    with pytest.raises(ExecutionError, match="differ"):
        check(tmp_path, step, after.replace("BODY", wrong))


@pytest.mark.parametrize(("old", "new", "message"), [
    ("constant(0.1)", "constant({...})", "leaves out elements of the constant rate"),
    ("num_partitions=4", "num_partitions=8", "is for 8 devices, and .* for 4"),
    ("num_partitions=4", "num_partitions=4, replica_count=2", "is for 8 devices"),
    ("dot(%act, %down)", "dot(%act, %gone)", "'gone' is read, which nothing before it gives"),
    ("calls=%relu_spmd", "calls=%none", "there is no computation 'none'"),
    ("calls=%relu_spmd", "calls=%main_spmd", "'main_spmd' calls itself"),
    (" parameter(2)", " parameter(x)", "a parameter has no number"),
    ("f32[2,8]{1,0} dot", "f32[2,a]{1,0} dot", "not known: results of type"),
    ("ENTRY ", "", "it has no entry computation"),
    ("fusion(%dot)", "rise(%dot)", "not known: stablehlo.rise"),
    ("<=[2,2]T(1,0), use", "<=[2,3]T(1,0), use", "is no list of groups"),
    ("devices=[2,1,2]<=[4]", "devices=[1,1,4]<=[4]", "argument x is .*no slice of"),
    ("tuple(%up2, %down2, %loss)", "tuple(%up2, %loss)", "has 2 results, and .* has 3"),
])  # fmt: skip
def test_mistakes(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in AFTER
    text = AFTER.replace(old, new)
    if "has 2 results" in message:
        text = text.replace("ROOT %all = (f32[8,8]{1,0}, f32[8,8]{1,0}, f32[])", "ROOT %all = (f32[8,8]{1,0}, f32[])")
    with pytest.raises(MspcError, match=message):
        check(tmp_path, STEP, text)


def test_malformed_texts() -> None:
    """A text with parts cut out, doubled or exchanged is read or refused, without another error."""
    sources = [AFTER, *ROWS.values()]
    for seed in range(120):
        drawn = random.Random(seed)
        text = drawn.choice(sources)
        for _ in range(drawn.randint(1, 4)):
            a, b = sorted(drawn.randrange(len(text)) for _ in range(2))
            b = min(b, a + drawn.randint(0, 40))
            sign = drawn.choice('(){}[]%=,"')
            text = drawn.choice([text[:a] + text[b:], text[:b] + text[a:], text[:a] + sign + text[a:]])
        try:
            read_text("HloModule " + text.removeprefix("HloModule "), "after.hlo")
        except MspcError:
            continue


@pytest.mark.parametrize(("text", "groups"), [
    ("{{0,1},{2,3}}", [[0, 1], [2, 3]]), ("[2,2]<=[4]", [[0, 1], [2, 3]]), ("[2,2]<=[2,2]T(1,0)", [[0, 2], [1, 3]]),
    ("[2,4]<=[2,2,2]T(1,0,2)", [[0, 1, 4, 5], [2, 3, 6, 7]]), ("{}", []),
])  # fmt: skip
def test_groups(text: str, groups: list[list[int]]) -> None:
    assert groups_in(text) == groups


@pytest.mark.thorough
def test_random_steps_of_jax(tmp_path: Path) -> None:
    """Modules that XLA makes of random steps compute them."""
    pytest.importorskip("jax", reason="JAX is not installed")
    command = [sys.executable, "-m", "tests.readers.stablehlo_random_steps"]
    subprocess.run([*command, "write", str(tmp_path), "--count", "4"], check=True, capture_output=True)
    subprocess.run([*command, "judge", str(tmp_path), "--only", "2", "3"], check=True)
