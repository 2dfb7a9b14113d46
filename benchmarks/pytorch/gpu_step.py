"""Imported networks on a GPU beside torch.compile: LLaMA and GPT-2 of transformers, ResNet-50 of torchvision.

    python -m benchmarks.pytorch.gpu_step [--only NAME ...] [--dtype bf16 tf32] [--modes MODE ...] [--steps N]
                                          [--device gpu|cpu] [--losses N] [--limit SECONDS] [--out FILE]

Each module is exported with its loss and its weights; mspc reads the file and compiles a step of AdamW, as `mspc
compile model.pt2 --optimizer adamw --precision bfloat16` does, and PyTorch compiles the module itself, with its fused
AdamW and autocast. Weights and data are the same. Every program is a process of its own; one works while the others
wait, and timed repetitions take turns. `--losses N` shows the first N losses, dropout with a rate of zero. Needs torch,
transformers and torchvision; the first steps of torch.compile take most of the time.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.gpu.networks import table
from benchmarks.gpu.networks.child import ROOT
from benchmarks.gpu.networks.compare import WARM_UP, Runs, environment

PROGRAM = "benchmarks.pytorch.step_program"
NETWORKS = ("llama", "gpt2", "resnet50")


def common(options: argparse.Namespace, dtype: str) -> list[str]:
    """The options that all programs get."""
    words = ["--size", options.size, "--device", options.device, "--dtype", dtype]
    return [*words, "--nothing-dropped"] if options.losses else words


def exports(options: argparse.Namespace, folder: Path) -> dict[str, subprocess.Popen[bytes]]:
    """The processes that export the modules, all at once."""
    return {
        network: subprocess.Popen(
            [sys.executable, "-m", PROGRAM, network, "export", f"{folder}/{network}.pt2", *common(options, "f32")],
            cwd=ROOT, stdout=subprocess.DEVNULL,
        )
        for network in options.only
    }  # fmt: skip


def compared(network: str, dtype: str, options: argparse.Namespace, folder: Path) -> table.Figures:
    """The figures of a network."""
    runs = Runs(options, environment(options, str(folder)), PROGRAM)
    file, rest = f"{folder}/{network}.pt2", common(options, dtype)
    try:
        for mode in options.modes:
            runs.start(f"torch {mode}", [network, "torch.compile", file, "--mode", mode, *rest])
        runs.start("mspc", [network, "mspc", file, *rest])
        for _ in range(options.repeats):
            runs.time()
        runs.end()
    finally:
        runs.close()
    said = {"size": options.size, "device": options.device, "dtype": dtype, "threads": options.threads}
    return {"network": network, **said, "nothing_dropped": bool(options.losses), "peers": runs.found}


def beside(figures: table.Figures, count: int) -> list[str]:
    """The first losses of all programs, one below the other."""
    found = figures["peers"].items()
    return [
        f"  {name:22} " + " ".join(f"{loss:.5f}" for loss in peer["losses"][:count])
        for name, peer in found if peer.get("losses")
    ]  # fmt: skip


def summary(everything: list[table.Figures]) -> list[str]:
    """A row for each network: mspc beside the better mode."""
    lines = ["| | | mspc | torch.compile | mode | time | memory | of it |", "|---|---|--:|--:|---|--:|--:|--:|"]
    for figures in everything:
        ours, other = table.median(figures["peers"].get("mspc", {})), table.best(figures, table.median, "torch")
        if not ours or other is None:
            lines.append(f"| {figures['network']} | {figures['dtype']} | not timed |")
            continue
        held, peer = figures["peers"]["mspc"]["peak"], figures["peers"][other[0]]["peak"]
        lines.append(
            f"| {figures['network']} | {figures['dtype']} | {1000 * ours:.2f} ms | {1000 * other[1]:.2f} ms | "
            f"{other[0].removeprefix('torch ')} | {ours / other[1]:.3f} | {held / 1e9:.2f} GB | {held / peer:.2f} |"
        )
    return lines


def parsed() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=NETWORKS, help="networks to run")
    parser.add_argument("--dtype", nargs="*", choices=("bf16", "tf32", "f32"), help="bf16 on a GPU, f32 on a CPU")
    parser.add_argument("--modes", nargs="*", default=["default", "reduce-overhead"], help="of torch.compile")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--size", choices=("gpu", "cpu"), help="the set of sizes: the device's unless given")
    parser.add_argument("--steps", type=int, help="of one repetition: 20 on a GPU, 1 on a CPU unless given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--losses", type=int, default=0, help="show so many, nothing dropped")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every program on the CPU")
    parser.add_argument("--limit", type=float, default=240, help="seconds within which every answer must come")
    parser.add_argument("--out", type=Path, help="where all figures go, as JSON")
    options = parser.parse_args()
    on_gpu = options.device == "gpu"
    options.size = options.size or options.device
    options.dtype = options.dtype or ["bf16" if on_gpu else "f32"]
    options.steps = 1 if options.losses else options.steps or (20 if on_gpu else 1)
    options.repeats = max(options.losses - WARM_UP, 0) if options.losses else options.repeats
    return options


def main() -> None:
    """Run everything, print and write."""
    options = parsed()
    begin = time.perf_counter()
    everything: list[table.Figures] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = exports(options, folder)
        failed = [network for network, process in processes.items() if process.wait()]
        if failed:
            raise SystemExit(f"not exported: {', '.join(failed)}")
        print(f"exported in {time.perf_counter() - begin:.1f} s", flush=True)
        for network in options.only:
            for dtype in options.dtype:
                figures = compared(network, dtype, options, folder)
                everything.append(figures)
                print("\n".join(table.rows(figures) + beside(figures, options.losses or WARM_UP)), flush=True)
                if options.out:
                    options.out.write_text(json.dumps(everything, indent=1), encoding="utf-8")
            (folder / f"{network}.pt2").unlink()
    print("\n".join(summary(everything)))
    print(f"{time.perf_counter() - begin:.0f} s in all")


if __name__ == "__main__":
    main()
