"""`python -S -E client.py ARGUMENTS` does the same as `python -m mspc ARGUMENTS`, in a process of `server.py`, which
has mspc loaded, or in its own if there is no server. It loads next to nothing. After `--python` the arguments are
Python's, and those of `-m mspc` and `-P -m mspc` are served, as are those of `mspc capture`, in a process that has
PyTorch loaded. After `--torch` all of Python's arguments are.
"""

import array
import json
import os
import socket
import sys
import time

SERVER = "MSPC_TEST_SERVER"
"""The variable with the server's socket."""
BY_ITSELF = ("PYTHONHASHSEED", "PYTHONOPTIMIZE", "PYTHONFAULTHANDLER")
"""Variables that count at the start of a process only."""
TRIES = 600
TORCH = ".torch"
"""The end of the path of the socket behind which PyTorch is loaded."""
CAPTURE = "mspc.readers.pytorch.capture_job"


def reach(connection: socket.socket, path: str) -> None:
    """Connect; a server that has just been started needs a moment."""
    for _ in range(TRIES):
        try:
            connection.connect(path)
            return
        except (FileNotFoundError, ConnectionRefusedError):
            time.sleep(0.05)
    connection.connect(path)


def served(path: str, arguments: list[str], safe_path: bool) -> int:
    """The command's status; where a signal ended it, the same signal ends this process."""
    with socket.socket(socket.AF_UNIX) as connection:
        reach(connection, path)
        wanted = {
            "python": arguments, "folder": os.getcwd(), "environment": dict(os.environ), "safe_path": safe_path,
        }  # fmt: skip
        fds = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [0, 1, 2]))]
        text = json.dumps(wanted).encode()
        connection.sendmsg([len(text).to_bytes(8, "big")], fds)
        connection.sendall(text)
        how = connection.recv(2)
    if len(how) == 2 and how[0]:
        os.kill(os.getpid(), how[0])
    if not how:
        os.write(2, b"the server of commands has gone without an answer\n")
    return how[-1] if how else 1


if __name__ == "__main__":
    server = os.environ.get(SERVER, "")
    word = sys.argv[1] if sys.argv[1:2] in (["--python"], ["--torch"]) else ""
    python = sys.argv[2:] if word else ["-m", "mspc", *sys.argv[1:]]
    safe = python[:1] == ["-P"]
    rest = python[safe:]
    torch = word == "--torch" or rest[:2] == ["-m", CAPTURE]
    if not server or not (torch or rest[:2] == ["-m", "mspc"]) or any(name in os.environ for name in BY_ITSELF):
        os.execv(sys.executable, [sys.executable, *python])
    os._exit(served(server + TORCH * torch, rest, safe))
