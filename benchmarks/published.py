"""Estimates of `mspc search` for large networks beside what others have published of comparable ones.

    python -m benchmarks.published [--only mixtral] [--machine h200]

Every row runs `mspc search` on a network of this folder and takes the first plan of its table: seconds that the search
takes, from the start of the command, and of processor; the plan in the field's words; tokens per second and operations
of the model per second of a rank, by the rates of the machine; and the published figure of one GPU, with the ratio of
the estimate to it. Published figures are measured on H100s whose products are as quick as an H200's; estimates know no
jitter, no data and no host. Sources stand in `PUBLISHED`.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NETWORKS = Path(__file__).parent / "networks"
PEAK = 989e12
"""Operations per second in BFloat16 by NVIDIA's data sheet of H100 SXM and H200; published utilisations are of it."""
TERA = 1e12


@dataclass(frozen=True)
class Published:
    """A row. network: a file and its arguments. figure: of one GPU, in `unit`. source: where it stands, of what."""

    network: str
    ranks: int
    figure: float
    unit: str
    source: str


PUBLISHED = {
    "LLaMA 3.1 8B, 8 ranks x 2 x 8k": Published(
        "llama3.py 32 4096 32 8 14336 128256 16 8192", 8, 6667, "tokens/s",
        "torchtitan, benchmarks/llama3_h100_202412_torchtitan.md: 8 H100 (500 W), FSDP, compiled, some recompute",
    ),
    "LLaMA 3 8B, 64 ranks, 128k, context 8": Published(
        "long_llama.py lazy 32 4096 32 8 14336 128256 1 8 8 131072", 64, 1071, "tokens/s",
        "torchtitan, the same file: 8 H100 (500 W), FSDP 2 x CP 4, Float8, full recompute",
    ),
    "Mixtral 8x7B, 64 ranks": Published(
        "experts.py mixtral sorted 8", 64, 468, "TFLOP/s",
        "Megatron Core MoE's README (v0.9): Mixtral 8x7B, bf16, H100",
    ),
    "DeepSeek-V3, 64 ranks": Published(
        "experts.py deepseek sorted 64", 64, 0.39 * PEAK / TERA, "TFLOP/s",
        "Megatron Core MoE, arXiv 2504.14960: Qwen2-57B-A14B, 39 % MFU on H100, the nearest with many small experts",
    ),
}  # fmt: skip


def searched(row: Published, machine: str) -> tuple[dict[str, Any], float, float]:
    """(the first plan, seconds, seconds of processor) of a search."""
    file, *given = row.network.split()
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "plans.json"
        options = ["--ranks", str(row.ranks), "--json", str(target), "--quiet"]
        options += ["--machine", machine] if machine else []
        begin, before = time.perf_counter(), os.times()
        command = [sys.executable, "-m", "mspc", "search", str(NETWORKS / file), *options, "--", *given]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        took, after = time.perf_counter() - begin, os.times()
        processor = sum(after[2:4]) - sum(before[2:4])
        return json.loads(target.read_text())["plans"][0], took, processor


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="rows whose names have this in them")
    parser.add_argument("--machine", default="", help="as `mspc search` takes it")
    given = parser.parse_args()
    print("| network | search | plan | step | memory | tokens/s a rank | TFLOP/s a rank | MFU | published | ratio |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    for name, row in PUBLISHED.items():
        if given.only.lower() not in name.lower():
            continue
        plan, took, processor = searched(row, given.machine)
        d, step = plan["degrees"], plan["step"]
        tokens, rate = d["samples"] / step / row.ranks, d["operations"] / step / row.ranks
        own = tokens if row.unit == "tokens/s" else rate / TERA
        words = f"DP {d['data']} x TP {d['tensor']} x CP {d['context']} x EP {d['expert']}, ZeRO {d['zero']}"
        print(
            f"| {name} | {took:.1f} s ({processor:.1f} s) | {words} | {step:.3f} s | {plan['memory'] / 2**30:.0f} GiB "
            f"| {tokens:,.0f} | {rate / TERA:.0f} | {rate / PEAK:.0%} | {row.figure:,.0f} {row.unit} "
            f"| {own / row.figure:.2f} |",
            flush=True,
        )
    for name, row in PUBLISHED.items():
        print(f"{name}: {row.source}")


if __name__ == "__main__":
    main()
