"""What equal layers cost that are one graph (`lazy_inline`), beside inlined ones: time and lines of the dumps.

    python benchmarks/layers.py [--tries N]

LLaMA's sizes of 70B in 8 and 80 layers on 8 ranks, all dumps written; 405B, 126 layers, on 8,192 ranks, the dumps of
one. Seconds are those that the processors spent, the least of N tries, since machines are noisy. They shall be at most
1.3 times those of 8 layers, the lines 1.2 times, and 2 s for the last.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

SCRIPT = Path(__file__).resolve().parent / "networks" / "llama.py"
OF_70B = ("8192", "64", "28672", "32000", "2", "4", "2", "512")
OF_405B = ("126", "16384", "128", "53248", "128256", "1024", "8", "1024", "128")


def compiled(words: tuple[str, ...], options: tuple[str, ...], tries: int) -> tuple[float, int, int]:
    """(seconds, lines of the dumps, bytes of the dumps)."""
    seconds: list[float] = []
    lines = size = 0
    for _ in range(tries):
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder) / "saved"
            command = [sys.executable, "-m", "mspc", "compile", str(SCRIPT), "--save-graphs", "--quiet", *options]
            before = os.times()
            subprocess.run([*command, "--out", str(out), "--", *words], check=True, stdout=subprocess.DEVNULL)
            after = os.times()
            spent = after.children_user + after.children_system - before.children_user - before.children_system
            seconds.append(spent)
            texts = [path.read_bytes() for path in out.rglob("*.ir")]
            lines, size = sum(text.count(b"\n") for text in texts), sum(map(len, texts))
    return min(seconds), lines, size


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tries", type=int, default=3)
    tries = parser.parse_args().tries
    print(f"{'':28} {'seconds':>8} {'lines':>10} {'MB':>7}")
    found: dict[str, tuple[float, int, int]] = {}
    for kind in ("lazy", ""):
        for layers in ("8", "80"):
            words = tuple(word for word in (kind, layers, *OF_70B) if word)
            name = f"{layers} layers, {'one graph' if kind else 'inlined'}"
            found[name] = seconds, lines, size = compiled(words, ("--ranks", "8"), tries)
            print(f"{name:28} {seconds:8.2f} {lines:10} {size / 1e6:7.1f}", flush=True)
    few, many = found["8 layers, one graph"], found["80 layers, one graph"]
    print(f"{'80 to 8 layers, one graph':28} {many[0] / few[0]:8.2f} {many[1] / few[1]:10.2f} {many[2] / few[2]:7.2f}")
    for kind in ("lazy", ""):
        words = tuple(word for word in (kind, *OF_405B) if word)
        seconds, lines, size = compiled(words, ("--ranks", "8192", "--rank", "5000"), tries)
        name = f"405B, a rank, {'one graph' if kind else 'inlined'}"
        print(f"{name:28} {seconds:8.2f} {lines:10} {size / 1e6:7.1f}", flush=True)


if __name__ == "__main__":
    main()
