"""Networks of PyTorch in full size, exported without weights: how they are read and compiled, beside a script.

    python -m benchmarks.pytorch.large [--tries N] [--folder FOLDER] [NAME ...]

It needs PyTorch and transformers. Every figure is that of a fresh process, the fastest of N tries: seconds of the
processor, and the most memory. `mspc compile --rank 0` compiles a step of AdamW, data parallel. Programs are kept in
the folder.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).resolve().parents[1] / "networks"
LENGTH = 1024
MEGA = 1e6
READ = """
import sys, time
from pathlib import Path
from mspc.readers.pytorch.reading import read_program
begin = time.perf_counter()
program = read_program(Path(sys.argv[1]))
print(len(program.graph.nodes), time.perf_counter() - begin)
"""


@dataclass(frozen=True)
class Network:
    """A network. config, model: of transformers, with what the configuration says. script: one that computes the same,
    with its sizes. ranks: that a step is compiled for, and the rows of its batch."""

    name: str
    config: str
    model: str
    sizes: dict[str, Any]
    script: str
    ranks: int


def llama(layers: int, width: int, heads: int, hidden: int) -> dict[str, Any]:
    """The sizes of a LLaMA 3."""
    return {
        "hidden_size": width, "intermediate_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 8192,
    }  # fmt: skip


NETWORKS = (
    Network("LLaMA 3 8B", "LlamaConfig", "LlamaForCausalLM", llama(32, 4096, 32, 14336),
            "llama3.py 32 4096 32 8 14336 128256 64 1024", 64),
    Network("LLaMA 3 70B", "LlamaConfig", "LlamaForCausalLM", llama(80, 8192, 64, 28672),
            "llama3.py 80 8192 64 8 28672 128256 1024 1024", 1024),
    Network("Qwen 3 30B, experts", "Qwen3MoeConfig", "Qwen3MoeForCausalLM", {
        "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
        "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936, "num_experts": 128, "num_experts_per_tok": 8,
        "moe_intermediate_size": 768, "max_position_embeddings": 8192, "norm_topk_prob": True,
    }, "qwen3_experts.py 48 2048 32 4 128 128 8 768 151936 64 1024", 64),
)  # fmt: skip


def export(network: Network, to: Path) -> None:
    """Write the program of a network without weights, in bfloat16."""
    import torch
    import transformers
    from transformers.initialization import no_init_weights

    from mspc.readers.pytorch import exporting

    mode = exporting.fake_mode()
    config = getattr(transformers, network.config)(**network.sizes)
    with exporting.in_type(torch.bfloat16), exporting.without_values(mode), no_init_weights():
        model = getattr(transformers, network.model)(config).train()
    with mode:
        words, labels = (torch.zeros((network.ranks, LENGTH), dtype=torch.int64) for _ in range(2))
    inputs = {"input_ids": words, "labels": labels, "use_cache": False}
    torch.export.save(torch.export.export(model, (), inputs, strict=False), to)


@dataclass(frozen=True)
class Cost:
    """What a process took: seconds of the processor, megabytes at most, and what it printed."""

    seconds: float
    memory: float
    printed: str


def cost_of(command: list[str]) -> Cost:
    """Run a command. Raises CalledProcessError where it fails."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    printed = process.stdout.read()
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    # Linux counts memory in kibibytes, macOS in bytes.
    memory = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Cost(used.ru_utime + used.ru_stime, memory / MEGA, printed)


def compiled(network: Network, target: str, arguments: list[str]) -> Cost:
    """A compile for rank 0 alone."""
    with tempfile.TemporaryDirectory() as folder:
        return cost_of([
            sys.executable, "-m", "mspc", "compile", target, "--ranks", str(network.ranks), "--rank", "0", "--quiet",
            "--out", f"{folder}/out", *arguments,
        ])  # fmt: skip


def least(tries: int, run: Any) -> Cost:
    """The fastest of some tries."""
    return min((run() for _ in range(tries)), key=lambda cost: cost.seconds)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tries", type=int, default=3)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "mspc-large")
    parser.add_argument("--export", nargs=2, metavar=("NAME", "FILE"), help="what is done ahead, by itself")
    parser.add_argument("names", nargs="*")
    options = parser.parse_args()
    if options.export is not None:
        name, file = options.export
        export(next(network for network in NETWORKS if network.name == name), Path(file))
        return
    options.folder.mkdir(parents=True, exist_ok=True)
    print("| | nodes | file | read in | memory | ranks | compiled in | memory | a script's | ratio |")
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    for network in NETWORKS:
        if options.names and not any(name.lower() in network.name.lower() for name in options.names):
            continue
        path = options.folder / f"{network.name.replace(' ', '_').replace(',', '')}.pt2"
        if not path.exists():
            # A process inherits what its parent has held in memory at most, so PyTorch is not loaded in this one.
            command = [sys.executable, "-m", "benchmarks.pytorch.large", "--export", network.name, str(path)]
            subprocess.run(command, check=True)
        read = least(options.tries, lambda path=path: cost_of([sys.executable, "-c", READ, str(path)]))
        nodes, seconds = read.printed.split()
        ours = least(options.tries, lambda n=network, p=path: compiled(n, str(p), ["--optimizer", "adamw:lr=1e-4"]))
        row = [
            network.name, f"{int(nodes):,}", f"{path.stat().st_size / MEGA:.1f} MB", f"{float(seconds):.2f} s",
            f"{read.memory:.0f} MB", f"{network.ranks:,}", f"{ours.seconds:.1f} s", f"{ours.memory:.0f} MB",
        ]  # fmt: skip
        script, *sizes = network.script.split()
        theirs = least(
            options.tries, lambda n=network, f=SCRIPTS / script, s=sizes: compiled(n, str(f), ["--", *s])
        )
        row += [f"{theirs.seconds:.1f} s", f"{ours.seconds / theirs.seconds:.2f}"]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
