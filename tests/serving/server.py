"""`python server.py SOCKET` runs commands of mspc for `client.py`, each in a process that is forked from this one.

Most of what a short command takes is the loading of NumPy and of mspc's modules; here they are loaded once. Every
command begins with the state in which these modules were loaded, and has the arguments, the folder, the variables and
the files of its client, with which it ends. Ranks that it starts under mpirun are served, too: for it a small file
beside the socket is Python. The server ends with the process that started it. Programs of PyTorch are served by a
second process, which loads PyTorch once the first of them comes.
"""

import array
import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import pkgutil
import random
import runpy
import select
import shlex
import signal
import socket
import sys
import traceback
from collections.abc import Callable

LOADED = ("numpy.random", "numpy.ma", "mspc.cli")
"""Modules that commands need, whole packages among them where `ROOMS` has them."""
ROOMS = (
    "mindspore_api.common", "mindspore_api.dataset", "mindspore_api.mint", "mindspore_api.nn", "mindspore_api.ops",
    "mindspore_api.train", "commands", "compiler", "engine", "passes", "readers.pytorch", "runtime", "search.passes",
)  # fmt: skip
NOT_LOADED = (
    "mspc.commands.pytest_plugin", "mspc.readers.pytorch.capture_job", "mspc.runtime.gpu", "mspc.runtime.comm.mpi",
)  # fmt: skip
"""Modules that are not for every process."""
TORCH = ("torch", "torch._dynamo", "torch.distributed.fsdp", "torch.distributed.tensor.parallel", "mspc.capture")
"""Modules that programs of PyTorch need."""
PYTHON, MPIRUN = "python", "mpirun"
"""Names of files beside the socket: what starts clients, and mpirun."""
PLANS = "MSPC_TEST_PLANS"
"""The variable with the number of plans that a search compiles, if it is not as many as ever."""
YOUNG = 10_000
"""New objects after which Python's garbage collector looks for cycles, in place of 700: graphs are many small objects
that stay, and looking through them again and again takes a twelfth of a compile's time."""
GRACE = 2.0
"""Seconds that a command has to end by itself."""
LOOK = 2.0
"""Seconds between two looks at whether somebody is there."""


def serve(path: str) -> None:
    here = [entry for entry in sys.path if entry != os.path.dirname(__file__)]
    with listening(path) as first, listening(path + ".torch") as second:
        load()
        sys.executable = put_beside(path)
        take(here, first, second)


def listening(path: str) -> socket.socket:
    """Return a socket to which clients can connect."""
    made = socket.socket(socket.AF_UNIX)
    made.bind(path)
    made.listen(64)
    return made


def take(here: list[str], first: socket.socket, second: socket.socket | None = None) -> None:
    """Serve who comes to the first socket while the process that started this one lives. A process of its own serves
    the second one, once somebody comes there."""
    parent = os.getppid()
    while os.getppid() == parent:
        reap()
        ready, _, _ = select.select([first] if second is None else [first, second], [], [], LOOK)
        if second in ready and second is not None:
            if os.fork() == 0:
                first.close()
                load_torch()
                take(here, second)
                os._exit(0)
            second.close()
            second = None
        elif ready:
            connection, _ = first.accept()
            if os.fork() == 0:
                first.close()
                handle(connection, here)
            connection.close()


def load() -> None:
    """Load what nearly every command needs, the modules that commands load when they come to need them as well."""
    for name in LOADED:
        importlib.import_module(name)
    importlib.import_module("mspc.ops.op").load_operators()
    for room in ROOMS:
        package = importlib.import_module(f"mspc.{room}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.startswith(NOT_LOADED):
                importlib.import_module(module.name)
    unfinished = importlib.import_module("mspc.ir.late_dataclass")._Unfinished
    for each in gc.get_objects():
        if type(each) is unfinished:
            each.finish()
    gc.collect()
    gc.freeze()  # commands neither look through what is loaded nor copy its pages for that
    gc.set_threshold(YOUNG)


def load_torch() -> None:
    """Load what programs of PyTorch need."""
    for name in TORCH:
        importlib.import_module(name)
    sys.modules["mspc.capture"].OUTSIDE += (os.path.abspath(__file__),)  # frames below those of a script
    gc.collect()
    gc.freeze()


def put_beside(path: str) -> str:
    """Make the files that stand beside the socket; the path of what is Python for commands that are served."""
    from mspc.engine.ranks.launcher import find_mpirun
    from mspc.ir.diagnostics import MspcError

    folder, client = os.path.dirname(path), os.path.join(os.path.dirname(os.path.abspath(__file__)), "client.py")
    with open(os.path.join(folder, PYTHON), "w", encoding="utf-8") as file:
        words = shlex.join([sys.executable, "-S", "-E", client, "--python"])
        file.write(f'#!/bin/sh\nexec {words} "$@"\n')
    os.chmod(file.name, 0o755)
    with contextlib.suppress(MspcError):  # as the commands will say themselves
        os.symlink(find_mpirun(), os.path.join(folder, MPIRUN))
    return file.name


def reap() -> None:
    """Let go of those that are over."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


def handle(connection: socket.socket, path: list[str]) -> None:
    """Run one command in a process of its own, send the signal that ended it and its status; a client that goes away
    ends it."""
    connection.settimeout(None)
    begin, ancillary, _, _ = connection.recvmsg(8, socket.CMSG_SPACE(3 * array.array("i").itemsize))
    files = array.array("i")
    for _, _, data in ancillary:
        files.frombytes(data)
    length, text = int.from_bytes(begin, "big"), b""
    while len(text) < length and (more := connection.recv(length - len(text))):
        text += more
    if not begin or len(text) < length:  # the client was ended before it had said what it wants
        os._exit(0)
    wanted = json.loads(text)
    child = os.fork()
    if child == 0:
        connection.close()
        command(wanted, list(files), path)
    for file in files:
        os.close(file)
    over = os.pidfd_open(child)
    ready, _, _ = select.select([over, connection], [], [])
    for end in (signal.SIGTERM, signal.SIGKILL):  # the client was ended, as ranks are by mpirun
        if over not in ready:
            os.kill(child, end)
            ready, _, _ = select.select([over], [], [], GRACE)
    _, code = os.waitpid(child, 0)
    status = os.waitstatus_to_exitcode(code)
    with contextlib.suppress(OSError):
        connection.sendall(bytes([max(0, -status), max(0, status)]))
    os._exit(0)


def command(wanted: dict[str, object], files: list[int], path: list[str]) -> None:
    """Do the same as Python with its arguments, or as `python -P` if the client asks for it."""
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    os.chdir(str(wanted["folder"]))
    os.environ.clear()
    os.environ.update(wanted["environment"])  # type: ignore[call-overload]  # names and texts
    extra = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    # Without the working folder the first entry is one that a script's folder may replace, as that of a console script.
    first = os.path.dirname(sys.executable) if wanted["safe_path"] else os.getcwd()
    sys.path[:] = [first, *extra, *(entry for entry in path if entry not in extra)]
    sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
    sys.stdin = io.TextIOWrapper(io.FileIO(0, "r", closefd=False))
    sys.stdout = io.TextIOWrapper(io.BufferedWriter(io.FileIO(1, "w", closefd=False)), encoding="utf-8")
    sys.__stdout__ = sys.stdout  # pyright: ignore[reportConstantRedefinition]  # the server's own is never flushed
    sys.stderr = io.TextIOWrapper(
        io.BufferedWriter(io.FileIO(2, "w", closefd=False)), encoding="utf-8", errors="backslashreplace",
        line_buffering=True,
    )  # fmt: skip
    random.seed()
    if plans := os.environ.get(PLANS):
        compile_plans(int(plans))
    signal.signal(signal.SIGINT, signal.default_int_handler)
    status = 1
    try:
        run(*wanted["python"])  # type: ignore[misc]  # a list
        status = 0
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def run(what: str, *arguments: str) -> None:
    """Run `-m MODULE ...`, `-c CODE ...` or `SCRIPT ...`."""
    if what not in ("-m", "-c"):
        sys.argv, sys.path[0] = [what, *arguments], os.path.dirname(os.path.abspath(what))
        runpy.run_path(what, run_name="__main__")
        return
    sys.argv = [what, *arguments[1:]]
    if what == "-c":
        exec(compile(arguments[0], "<string>", "exec"), {"__name__": "__main__"})
    elif arguments[0] == "mspc":
        from mspc.cli import main

        sys.argv[0] = "mspc"
        main()
    else:
        runpy.run_module(arguments[0], run_name="__main__")


def compile_plans(count: int, replace: Callable[[object, str, int], None] = setattr) -> None:
    """Let searches compile so many plans at most."""
    limited = importlib.import_module("mspc.search.plans.limited")
    for name in ("SEEDS", "TRIES"):
        replace(limited, name, count)


if __name__ == "__main__":
    serve(sys.argv[1])
