"""Runs one rank of `mspc verify --mpi`, started by mpirun: `python -m mspc.verify.mpi_rank FOLDER`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mspc.engine.ranks.environment import limit_threads


def main(folder: Path) -> None:
    """Run the steps, the collectives on numbers made for them, and the communicator's own."""
    limit_threads()
    from mspc.ir.files.tensors import TensorFile  # these load NumPy, which reads the number of threads
    from mspc.runtime.comm.mpi import MpiComm
    from mspc.verify.judged_collectives import asked, computed
    from mspc.verify.many_ranks import EXECUTED, FOUND, GIVEN, PLAIN, ManyRanks, save

    comm = MpiComm()
    given = TensorFile(folder / GIVEN)
    arrays = {name: given.read(name) for name in given.names}
    weights = {name.partition("/")[2]: a for name, a in arrays.items() if name.startswith("weight/")}
    steps = 1 + max((int(name.split("/")[1]) for name in arrays if name.startswith("step/")), default=-1)
    feeds = [
        [arrays[f"step/{step}/{i}"] for i in range(sum(n.startswith(f"step/{step}/") for n in arrays))]
        for step in range(steps)
    ]
    graphs = [_graph(folder / PLAIN.format(rank)) for rank in range(comm.size)]
    own = _graph(folder / EXECUTED.format(comm.rank))
    ranks = ManyRanks(comm.size, lambda rank: own, graphs.__getitem__, weights, feeds)
    found: dict[str, Any] = {}
    for step, values in enumerate(ranks.executed_on(comm)):
        for key, array in values.items():
            found[f"step/{step}/" + (f"result/{key[1]}" if isinstance(key, tuple) else f"parameter/{key}")] = array
    found |= {f"made/{i}": array for i, array in enumerate(computed(comm, graphs))}
    found |= {f"communicator/{i}": array for i, array in enumerate(asked(comm))}
    save(folder / FOUND.format(comm.rank), found)
    comm.finalize()


def _graph(path: Path) -> Any:
    from mspc.ir.text.parser import parse
    from mspc.ops.op import REGISTRY

    module = parse(path.read_text(encoding="utf-8"), REGISTRY, str(path))
    graph = module.main
    graph.attrs = {**module.attrs, **graph.attrs}
    return graph


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
    except Exception as error:
        from mspc.ir.diagnostics import MspcError

        message = error.message if isinstance(error, MspcError) else f"{type(error).__name__}: {error}"
        print(f"error: {message}", file=sys.stderr, flush=True)
        from mspc.runtime.comm.mpi_library import MPI

        MPI.COMM_WORLD.Abort(1)
