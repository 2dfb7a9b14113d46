"""Networks that nothing was tuned to, in mspc beside PyTorch and JAX: time, memory, start, losses.

    python -m benchmarks.gpu.networks.compare [--only NAME ...] [--device gpu|cpu] [--dtype bf16|tf32|f32] [--steps N]
                                              [--losses 20] [--data D] [--tensor T] [--json FILE]
                                              [--stages S --micro-batches M --schedule NAME]

Every program is a process of its own; one works while the others wait. All begin with the same weights and data. Steps
are timed in several repetitions that take turns, from an idle device to an idle device. `--losses N` shows the first N
losses with rates of dropout of zero, beside PyTorch's. `--stages` divides the layers of `network.layers`, in mspc
alone. A peer that is not installed is left out with a line; a program that fails leaves the others as they are. Figures
are written to the JSON file after every network; networks of other runs stay in it and in the table.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks.gpu.networks import table
from benchmarks.gpu.networks.child import Child, Failed
from benchmarks.gpu.networks.sizes import NETWORKS

HERE = Path(__file__).resolve().parent
WARM_UP = 4
"""Steps that are not timed, the first one with them."""


def programs(network: str, options: argparse.Namespace) -> dict[str, list[str]]:
    """Arguments of a network's programs by the names of the table."""
    found = {"mspc": ["mspc"], "torch": ["torch"]}
    for mode in options.modes:
        found[f"torch {mode}"] = ["torch.compile", "--mode", mode]
    if (HERE / network / "in_jax.py").exists():
        found["jax"] = ["jax"]
    wanted = {name: words for name, words in found.items() if any(name.startswith(peer) for peer in options.peers)}
    common = ["--size", options.size, "--device", options.device, "--dtype", options.dtype]
    for option in ("data", "tensor", "stages", "micro_batches", "schedule"):
        common += [f"--{option.replace('_', '-')}", str(getattr(options, option))]
    if options.tensor > 1:
        wanted.pop("jax", None)
    if options.stages > 1:
        wanted = {name: words for name, words in wanted.items() if name == "mspc"}
    dropped = ["--nothing-dropped"] if options.losses else []
    return {name: [network, *words, *common, *dropped] for name, words in wanted.items()}


def missing(name: str) -> str:
    """Why a peer cannot run here, or nothing."""
    module = "jax" if name == "jax" else "torch" if name.startswith("torch") else "mspc"
    return "" if find_spec(module) else f"left out: {module} is not installed"


def environment(options: argparse.Namespace, caches: str) -> dict[str, str]:
    """Return every program's variables: its threads, and folders of its own for what is stored from start to start."""
    threads = {f"{kind}_NUM_THREADS": str(options.threads) for kind in ("OMP", "OPENBLAS", "MKL")}
    jax = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false", "JAX_COMPILATION_CACHE_DIR": f"{caches}/jax"}
    return {
        **threads, **jax, "TORCHINDUCTOR_CACHE_DIR": f"{caches}/inductor", "TRITON_CACHE_DIR": f"{caches}/triton",
        "CUPY_CACHE_DIR": f"{caches}/cupy", "CUDA_CACHE_PATH": f"{caches}/cuda", "XDG_CACHE_HOME": f"{caches}/home",
    }  # fmt: skip


class Runs:
    """The programs of one network: what was found of each, and those that still run."""

    def __init__(self, options: argparse.Namespace, environment: dict[str, str]) -> None:
        self.options, self.environment = options, environment
        self.found: dict[str, dict[str, Any]] = {}
        self.children: dict[str, Child] = {}

    def ask(self, name: str, line: str) -> dict[str, Any] | None:
        """A program's answer; None where it failed, which ends it and is noted."""
        try:
            return self.children[name].ask(line)
        except Failed as error:
            self.found[name] = {**self.found[name], "error": str(error)}
            self.children.pop(name).close()
            return None

    def start(self, name: str, arguments: list[str]) -> None:
        """Start a program and let it take its first step."""
        self.found[name] = {"losses": [], "times": [], "processor": []}
        child = Child(arguments, self.environment, self.options.limit, self.options.ranks)
        self.children[name] = child
        answer = self.ask(name, "1")
        if answer is None:
            return
        first = time.perf_counter() - child.started
        self.found[name].update(first=first, parameters=answer["parameters"], losses=[answer["loss"]])
        for _ in range(WARM_UP - 1):
            answer = self.ask(name, "1")
            if answer is None:
                return
            self.found[name]["losses"].append(answer["loss"])

    def time(self) -> None:
        """One repetition of all programs. Where it is one step, its loss is recorded, too."""
        for name in list(self.children):
            answer = self.ask(name, str(self.options.steps))
            if answer is not None:
                self.found[name]["times"].append(answer["seconds"] / self.options.steps)
                self.found[name]["processor"].append(answer["processor"] / self.options.steps)
                self.found[name]["losses"] += [answer["loss"]] * (self.options.steps == 1)

    def end(self) -> None:
        """Ask for the memory, and end all programs."""
        for name in list(self.children):
            answer = self.ask(name, "end")
            if answer is not None:
                self.found[name].update(answer)
                self.children.pop(name).close()

    def close(self) -> None:
        """End what still runs."""
        for child in self.children.values():
            child.close()


def compared(network: str, options: argparse.Namespace, caches: str) -> table.Figures:
    """The figures of a network."""
    runs = Runs(options, environment(options, caches))
    arguments = programs(network, options)
    try:
        for name, words in arguments.items():
            reason = missing(name)
            if reason:
                runs.found[name] = {"error": reason}
            else:
                runs.start(name, words)
        for _ in range(options.repeats):
            runs.time()
        runs.end()
    finally:
        runs.close()
    if options.second_start:
        start_again(runs.found, arguments, options, caches)
    said = {"size": options.size, "device": options.device, "dtype": options.dtype, "threads": options.threads}
    said |= {part: getattr(options, part) for part in ("data", "tensor", "stages", "micro_batches", "schedule")}
    return {"network": network, **said, "nothing_dropped": bool(options.losses), "peers": runs.found}


def start_again(
    found: dict[str, dict[str, Any]], arguments: dict[str, list[str]], options: argparse.Namespace, caches: str
) -> None:
    """Note how long a second start takes to its first loss, with what the first one left on disk."""
    for name, words in arguments.items():
        if "error" in found[name]:
            continue
        child = Child(words, environment(options, caches), options.limit, options.ranks)
        try:
            child.ask("1")
            found[name]["again"] = time.perf_counter() - child.started
        except Failed as error:
            found[name]["again_error"] = str(error)
        finally:
            child.close()


def key(figures: table.Figures) -> tuple[Any, ...]:
    ranks = (figures.get(part, 1) for part in ("data", "tensor", "stages", "micro_batches"))
    said = (figures[part] for part in ("network", "size", "device", "dtype", "nothing_dropped"))
    return *said, *ranks, figures.get("schedule", "1f1b")


def main() -> None:
    """Run everything, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="*", default=list(NETWORKS), choices=NETWORKS, help="networks to run")
    parser.add_argument("--peers", nargs="*", default=["mspc", "torch", "jax"], help="beginnings of programs' names")
    parser.add_argument("--modes", nargs="*", default=None, help="of torch.compile; the better one counts")
    parser.add_argument("--device", choices=("gpu", "cpu"), default="gpu")
    parser.add_argument("--size", choices=("gpu", "cpu"), help="the set of sizes: the device's unless given")
    parser.add_argument("--dtype", choices=("bf16", "tf32", "f32"), help="bf16 on a GPU, f32 on a CPU unless given")
    parser.add_argument("--data", type=int, default=1, help="ranks that share the batch, each with a GPU")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share each layer, of networks that say how")
    parser.add_argument("--stages", type=int, default=1, help="stages that share the layers, each with GPUs of its own")
    parser.add_argument("--micro-batches", type=int, default=1, help="of the stages")
    parser.add_argument("--schedule", default="1f1b", help="of the stages")
    parser.add_argument("--steps", type=int, help="of one repetition: 20 on a GPU, 1 on a CPU unless given")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--losses", type=int, default=0, help="show so many, in f32 unless --dtype, nothing dropped")
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="of every program on the CPU")
    parser.add_argument("--second-start", action="store_true", help="start every program once more, and time it")
    parser.add_argument("--limit", type=float, default=240, help="seconds within which every answer must come")
    parser.add_argument("--json", type=Path, help="where all figures go")
    options = parser.parse_args()
    on_gpu, options.ranks = options.device == "gpu", options.data * options.tensor * options.stages
    options.size = options.size or options.device
    options.dtype = options.dtype or ("bf16" if on_gpu and not options.losses else "f32")
    options.steps = 1 if options.losses else options.steps or (20 if on_gpu else 1)
    options.repeats = options.losses - WARM_UP if options.losses else options.repeats
    if options.modes is None:
        options.modes = ["reduce-overhead", "default"] if on_gpu else []
    known = json.loads(options.json.read_text(encoding="utf-8")) if options.json and options.json.exists() else []
    everything = {key(figures): figures for figures in known}
    print(f"{options.threads} threads, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as caches:
        for network in options.only:
            figures = compared(network, options, caches)
            everything[key(figures)] = figures
            print("\n".join(table.rows(figures)), flush=True)
            if options.losses:
                print("\n".join(table.losses([figures])), flush=True)
            if options.json:
                options.json.write_text(json.dumps(list(everything.values()), indent=1), encoding="utf-8")
    print("\n".join(table.ratios(list(everything.values()))))


if __name__ == "__main__":
    main()
