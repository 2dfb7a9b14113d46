"""The backend of MindSpore's surface: what its modules ask the compiler, the runtime and the readers for.

`mspc` installs this module as the `Backend` of `mspc.mindspore_api.call_handler`. Imports are inside functions because
`import mspc` must load nothing of the compiler.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mspc.compiler.in_memory import CompiledNetwork
    from mspc.engine.calls import RankCalls
    from mspc.readers.pytorch.network import ImportedNetwork


def default_handler() -> RankCalls:
    """Return the handler for the calls of a script that plain Python or mpirun started."""
    from mspc.engine.default_handler import default_handler

    return default_handler()


def launched_rank() -> dict[str, Any]:
    """Return rank, size, local rank and local size as the launcher of this process set them."""
    from mspc.engine.ranks.environment import place

    return place()


def compile_in_memory(network: Any, args: tuple[Any, ...]) -> CompiledNetwork:
    """Compile a call without running it, and write the strategy files that the script asked for."""
    from mspc.compiler.in_memory import compile_in_memory
    from mspc.engine.strategy_files import write_strategy_files

    return compile_in_memory(network, args, write_strategy_files)


def exported_network(path: Path, returns: str | None, sizes: Mapping[str, int], precision: str) -> ImportedNetwork:
    """Read a program of `torch.export.save` as a cell."""
    from mspc.readers.pytorch.graph_reader import read_program
    from mspc.readers.pytorch.network import ImportedNetwork
    from mspc.readers.pytorch.sizes import with_sizes
    from mspc.readers.pytorch.training import half_of

    return ImportedNetwork(with_sizes(read_program(path), dict(sizes)), returns, half_of(precision))
