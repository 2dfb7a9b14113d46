"""CIFAR images a second that a data pipeline makes ready: mspc beside torchvision's transforms in PyTorch's DataLoader.

    python benchmarks/input.py [--peers PYTHON] [--workers N] [--epochs N] [--images N] [--resize N]

Crops of images with a border of 4, flips, numbers from 0 to 1, normalised, channels first, batches of 128, shuffled,
from files in the binary format of CIFAR-10, with the same number of workers. `--resize 224` makes images of ImageNet's
size of them behind the flips, in batches of 64, as `gpu/resnet_mspc.py --folder` does. Both run in a process of their
own, one epoch after the other in turns; the first epoch of each starts workers and does not count. `--peers` is a
Python that has torch and torchvision (this one unless given).
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

HERE = Path(__file__).resolve().parent
RECORD = 3073


def write_data(folder: Path, images: int) -> None:
    """One file of random records."""
    records = np.random.default_rng(0).integers(0, 256, (images, RECORD)).astype(np.uint8)
    records[:, 0] %= 10
    (folder / "data_batch_1.bin").write_bytes(records.tobytes())


class Runner:
    """A process that reads one epoch for every line that it is sent, and answers with its images and seconds."""

    def __init__(self, command: list[str]) -> None:
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def epoch(self) -> float | None:
        """Images a second; None where the process has ended."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write("epoch\n")
            self.process.stdin.flush()
        except OSError:
            return None
        said = self.process.stdout.readline().split()
        return float(said[0]) / float(said[1]) if said else None

    def end(self) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError):  # it has ended, and what it printed says why
            self.process.stdin.close()
        self.process.wait()


def main() -> None:
    """Print images a second of both, and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", default=sys.executable, help="a Python that has torch and torchvision")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=3, help="epochs that count")
    parser.add_argument("--images", type=int, default=10000)
    parser.add_argument("--resize", type=int, default=0, help="height and width of images, 0 for as they are")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_data(Path(folder), options.images)
        rest = [folder, str(options.workers), str(options.resize)]
        runners = {
            "mspc": Runner([sys.executable, str(HERE / "input_mspc.py"), *rest]),
            "torchvision": Runner([options.peers, str(HERE / "input_torch.py"), *rest]),
        }
        rates: dict[str, list[float]] = {name: [] for name in runners}
        for epoch in range(options.epochs + 1):
            for name, runner in runners.items():
                rate = runner.epoch()
                if epoch and rate is not None:
                    rates[name].append(rate)
        for runner in runners.values():
            runner.end()
    side = options.resize or 32
    said = f"{options.images} images of {side} x {side}, {options.workers} workers, {os.cpu_count()} cores"
    print(f"{said}, load {os.getloadavg()[0]:.1f}")
    medians = {name: statistics.median(found) for name, found in rates.items() if found}
    for name in rates:
        print(f"{name:12} {medians[name]:10.0f} images/s" if name in medians else f"{name:12} not run")
    if len(medians) == len(rates):
        print(f"mspc / torchvision: {medians['mspc'] / medians['torchvision']:.2f}")


if __name__ == "__main__":
    main()
