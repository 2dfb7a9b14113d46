"""`mspc launch` starts the ranks of a job, on this host or on several, with a log for each.

The options are those of MindSpore's msrun; Open MPI's mpirun does the work. Imports nothing heavy.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mspc.commands.report.streams import complain
from mspc.ir.diagnostics import MspcError

if TYPE_CHECKING:
    from mspc.engine.ranks.hosts import Host
    from mspc.engine.ranks.launcher import LaunchJob

MAX_RANKS = 999_999
MAX_CORES = 1 << 16
"""Exclusive upper bound of core numbers."""
_LOG_NAME = re.compile(r"(?:[^{}/\0]|\{(?:rank|local_rank)(?::0?[0-9]d?)?\})+")


def _option(name: str, metavar: str, help: str, **more: Any) -> Any:
    """Return an option with msrun's spelling and with that of the other commands."""
    names = dict.fromkeys((f"--{name}", f"--{name.replace('_', '-')}"))
    return typer.Option(*names, metavar=metavar, help=help, **more)


Command = Annotated[list[str], typer.Argument(metavar="SCRIPT", help="A script, or a command.", show_default=False)]
WorkerNum = Annotated[int, _option("worker_num", "N", "Ranks of the job.", min=1, max=MAX_RANKS)]
LocalWorkerNum = Annotated[int | None, _option("local_worker_num", "N", "Ranks on this host; all of them.", min=1)]
HostFile = Annotated[Path | None, _option("hostfile", "FILE", "Hosts, a line each: NAME slots=N.")]
HostList = Annotated[str | None, typer.Option("--host", "-H", metavar="LIST", help="Hosts: NAME:SLOTS,NAME:SLOTS.")]
RankTable = Annotated[Path | None, _option("rank_table_file", "FILE", "Hosts and devices: a rank table (JSON).")]
LogDir = Annotated[Path, _option("log_dir", "DIR", "Where the logs go.")]
LogName = Annotated[str, _option("worker_log_name", "NAME", "Name of a rank's log, with {rank} or {local_rank}.")]
Tail = Annotated[str, _option("tail_worker_log", "RANKS", "Ranks whose logs are printed too; -1: all.")]
Join = Annotated[str, _option("join", "True|False", "Wait for the end of the job.")]
TimeOut = Annotated[int, _option("cluster_time_out", "SECONDS", "For the hosts to come up.", min=1)]
BindCore = Annotated[str, _option("bind_core", "True|False|JSON", "Give each rank cores of its own.")]
Export = Annotated[
    list[str] | None,
    typer.Option("--export", "-x", metavar="NAME", help="A variable that other hosts get too; may be repeated."),
]
MaxRestarts = Annotated[int, _option("max_restarts", "N", "Start a job that fails again, up to N times.", min=0)]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the command without starting it.")]
MasterAddr = Annotated[str, _option("master_addr", "HOST", "This host, as msrun has it.")]
MasterPort = Annotated[int, _option("master_port", "PORT", "For msrun's sake: mpirun finds a port.", min=1, max=65535)]
NodeRank = Annotated[int, _option("node_rank", "N", "0 or -1: one call starts the ranks of all hosts.", min=-1)]


def launch(
    context: typer.Context, command: Command, worker_num: WorkerNum = 8, local_worker_num: LocalWorkerNum = None,
    hostfile: HostFile = None, host: HostList = None, rank_table_file: RankTable = None, log_dir: LogDir = Path(),
    worker_log_name: LogName = "worker_{rank}.log", tail_worker_log: Tail = "-1", join: Join = "False",
    cluster_time_out: TimeOut = 600, bind_core: BindCore = "False", export: Export = None,
    max_restarts: MaxRestarts = 0, dry_run: DryRun = False, master_addr: MasterAddr = "127.0.0.1",
    master_port: MasterPort = 8118, node_rank: NodeRank = -1,
) -> None:  # fmt: skip
    """Start a script on many ranks: on this host, or on those of a host file or a rank table."""
    from mspc.engine.ranks.launcher import LaunchJob, exported, find_mpirun
    from mspc.engine.ranks.launcher import launch as run
    from mspc.ir.files.atomic_writing import make_folder

    own = {name for option in context.command.params for name in option.opts}
    theirs = [word for word in command[1:] if word.startswith("--") and word.partition("=")[0] in own]
    if theirs and os.environ.get("MSPC_LAUNCHED") is None:
        complain(f"note: {' and '.join(theirs)}: {command[0]} gets everything after it; options go before it")
    hosts = _hosts(worker_num, local_worker_num, hostfile, host, rank_table_file, node_rank)
    ranks = sum(h.slots for h in hosts) if rank_table_file is not None else worker_num
    job = LaunchJob(
        command=tuple(_command(command)),
        ranks=ranks,
        folder=Path(os.path.abspath(log_dir)),
        hosts=tuple(hosts),
        log_name=_log_name(worker_log_name, bool(hosts)),
        cores=_cores(bind_core, ranks),
        variables=tuple(exported(list(os.environ), export or ())),
        shown=_shown(tail_worker_log, ranks),
        start_within=cluster_time_out,
    )
    find_mpirun()
    if join.lower() not in ("true", "false"):
        raise MspcError(f"--join {join!r} must be True or False")
    if dry_run:
        print(shlex.join(job.mpirun()))
        return
    make_folder(job.folder)
    if join.lower() == "false" and os.environ.get("MSPC_LAUNCHED") is None:
        _leave(job)
        return
    status = run(job, max_restarts)
    if status:
        raise typer.Exit(status)


def _hosts(
    worker_num: int, local: int | None, hostfile: Path | None, listed: str | None, table: Path | None, node_rank: int
) -> list[Host]:  # fmt: skip
    from mspc.engine.ranks.hosts import Host, check_slots, read_host_file, read_hosts, read_rank_table

    options = {"--hostfile": hostfile, "--host": listed, "--rank_table_file": table}
    given = [name for name, value in options.items() if value]
    if len(given) > 1:
        raise MspcError(f"{given[0]} and {given[1]} both name hosts", notes=["leave one of them out"], code="E0106")
    if not given:
        if (local is not None and local != worker_num) or node_rank > 0:
            here = f"{local} of the {worker_num} ranks are on this host" if local else f"--node_rank {node_rank}"
            raise MspcError(
                f"{here}, but nothing names the other hosts",
                notes=["--hostfile FILE, --host LIST or --rank_table_file FILE name all hosts; one call on one of them "
                       "starts all ranks"],
            )  # fmt: skip
        return []
    hosts = read_hosts(listed) if listed else read_host_file(hostfile) if hostfile else []
    if table:
        hosts = read_rank_table(table)
    if local is not None:
        hosts = [Host(host.name, min(host.slots, local), host.devices) for host in hosts]
    if not table:
        check_slots(hosts, worker_num)
    return hosts


def _command(words: Sequence[str]) -> list[str]:
    """Return the command of every rank: for a script `mspc run`, which provides `import mindspore`. Raise MspcError if
    there is no such script or command."""
    from mspc.engine.ranks.launcher import python_module

    first = words[0]
    if not first.endswith(".py"):
        if shutil.which(first) is None:
            raise MspcError(f"there is no script and no command {first!r}", code="E0101")
        return list(words)
    if not os.path.isfile(first):
        raise MspcError(f"there is no script {first!r}", code="E0101")
    rest = ["--", *words[1:]] if len(words) > 1 else []
    return python_module("mspc", "run", first, *rest)


def _log_name(name: str, several: bool) -> str:
    fits = _LOG_NAME.fullmatch(name) and ("{rank" in name or ("{local_rank" in name and not several))
    if not fits or len(os.fsencode(name)) > 200:
        wanted = "{rank}" if several else "{rank} or {local_rank}"
        raise MspcError(f"--worker_log_name {name!r} must be the name of a file with {wanted} in it")
    return name


def _cores(text: str, ranks: int) -> str:
    """Return the cores in the format of `worker`: JSON by the rank's number on its host, "share" or ""."""
    if text.lower() in ("true", "false"):
        return "share" if text.lower() == "true" else ""
    try:
        given = json.loads(text.replace("'", '"'))
        found: dict[str, list[int]] = {}
        for key, value in given.items():
            number = key.removeprefix("device")  # of a rank on its host
            if not re.fullmatch("[0-9]{1,6}", number) or int(number) >= ranks:
                raise ValueError(key)
            found[str(int(number))] = _core_numbers(value)
    except (ValueError, AttributeError, TypeError, RecursionError):
        raise MspcError(
            f"--bind_core {text!r:.200} must be True, False, or cores by rank of a host",
            notes=['for example \'{"0": ["0-3"], "1": ["4-7"]}\''],
        ) from None
    return json.dumps(found)


def _core_numbers(value: Any) -> list[int]:
    found: list[int] = []
    for part in value if isinstance(value, list) else [value]:
        first, dash, last = str(part).partition("-")
        begin, end = int(first), int(last if dash else first)
        if not begin <= end < MAX_CORES:
            raise ValueError(part)
        found += range(begin, end + 1)
        if len(found) > MAX_CORES:
            raise ValueError(part)
    return found


def _shown(text: str, ranks: int) -> tuple[int, ...] | None:
    if text == "-1":
        return None
    parts = [part.strip() for part in text.split(",")]
    if not all(re.fullmatch("[0-9]{1,9}", part) and int(part) < ranks for part in parts):
        raise MspcError(f"--tail_worker_log {text!r:.200} must be -1 or ranks from 0 to {ranks - 1}, for example 0,3")
    return tuple(map(int, parts))


def _leave(job: LaunchJob) -> None:
    """Start the job in the background, as msrun does without --join True."""
    from mspc.engine.ranks.launcher import SCHEDULER_LOG, python_module

    said = job.folder / "launch.log"
    with open(said, "wb") as log:
        child = subprocess.Popen(
            python_module("mspc", *sys.argv[1:]), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True, env={**os.environ, "MSPC_LAUNCHED": "1"},
        )  # fmt: skip
    print(f"{job.ranks} rank{'s' * (job.ranks != 1)} started by process {child.pid}; logs: {job.folder}/"
          f"{job.log_name}, {SCHEDULER_LOG}")  # fmt: skip
