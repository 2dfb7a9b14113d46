"""One program of this comparison, which takes steps when it is told to, as `benchmarks/gpu/networks/program.py` says.

    python -m benchmarks.gpu.expert_layer.program experts mspc|torch|torch.compile|dense --size gpu --device gpu
        --dtype bf16 [--mode MODE]
"""

from __future__ import annotations

import argparse
import os

from benchmarks.gpu.expert_layer.sizes import SIZES
from benchmarks.gpu.networks.program import Program, serve


def built(options: argparse.Namespace) -> Program:
    """The program that the options name; the others' libraries are not loaded."""
    common = SIZES[options.size], options.device, options.dtype
    if options.peer == "mspc":
        from benchmarks.gpu.expert_layer import in_mspc

        return in_mspc.built(*common)
    from benchmarks.gpu.expert_layer import in_torch

    if options.peer == "dense":
        return in_torch.dense(*common)
    return in_torch.layer(*common, options.mode if options.peer == "torch.compile" else "")


def main() -> None:
    """Build the program and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=("experts",))
    parser.add_argument("peer", choices=("mspc", "torch", "torch.compile", "dense"))
    parser.add_argument("--size", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--device", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--dtype", choices=("bf16", "f32"), required=True)
    parser.add_argument("--mode", default="default", help="of torch.compile")
    options = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(built(options), out)


if __name__ == "__main__":
    main()
