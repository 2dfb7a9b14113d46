"""Starts a rank for `mspc launch`: it opens the rank's log, takes its cores, and becomes the command.

    python worker.py FOLDER LOG_NAME CORES COMMAND [ARGUMENT ...]

Run as a file: nothing of mspc or NumPy is imported for it. LOG_NAME holds `{rank}` and `{local_rank}`. CORES is "" for
all, "share" for an equal share of this host's cores, or JSON, cores by the rank's number on its host.
"""

import json
import os
import sys


def share_of(cores: list[int], local_rank: int, local_size: int) -> list[int]:
    """Return the cores of one of a host's ranks; ranks that outnumber cores share them."""
    if local_size >= len(cores):
        return [cores[local_rank % len(cores)]]
    each = len(cores) // local_size
    return cores[local_rank * each : (local_rank + 1) * each]


def bind(cores: str, local_rank: int, local_size: int) -> None:
    """Restrict this process to its cores."""
    if not cores:
        return
    there = sorted(os.sched_getaffinity(0))
    wanted = share_of(there, local_rank, local_size) if cores == "share" else json.loads(cores).get(str(local_rank))
    if not wanted:
        return
    try:
        os.sched_setaffinity(0, wanted)
    except OSError:
        listed = ", ".join(map(str, wanted))
        sys.stderr.write(f"error: --bind_core gives local rank {local_rank} the cores {listed}; this host lets it have "
                         f"{', '.join(map(str, there))}\n")  # fmt: skip
        sys.exit(2)


def main(folder: str, name: str, cores: str, command: list[str]) -> None:
    """Replace this process by the command, with output to the log."""
    own = {key: int(os.environ[f"OMPI_COMM_WORLD_{key}"]) for key in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE")}
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, name.format(rank=own["RANK"], local_rank=own["LOCAL_RANK"]))
    again = int(os.environ.get("MSPC_RESTARTS", "0")) > 0
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | (0 if again else os.O_TRUNC), 0o644)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    bind(cores, own["LOCAL_RANK"], own["LOCAL_SIZE"])
    listed = os.environ.get("MSPC_DEVICES", "")
    if listed:  # of a rank table: this host's devices in the order of its ranks
        os.environ.setdefault("CUDA_VISIBLE_DEVICES", listed)
    devices = listed.split(",")
    device = devices[own["LOCAL_RANK"]] if own["LOCAL_RANK"] < len(devices) else ""
    os.environ.update(
        RANK_ID=str(own["RANK"]), RANK_SIZE=str(own["SIZE"]), DEVICE_ID=device or str(own["LOCAL_RANK"]),
        MS_ROLE="MS_WORKER", MS_NODE_ID=str(own["RANK"]), MS_WORKER_NUM=str(own["SIZE"]),
    )  # fmt: skip
    try:
        os.execvp(command[0], command)
    except OSError as error:
        sys.stderr.write(f"error: cannot start {command[0]!r}: {error.strerror}\n")
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4:])
