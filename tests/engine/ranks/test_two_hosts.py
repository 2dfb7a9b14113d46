"""Jobs on two hosts, which are network namespaces of this machine with a cable between them."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from mspc.engine.ranks.launcher import mpirun_environment
from tests.printed_lines import lines_until
from tests.serving import HANG, succeed

RANKS = 4
SCRIPT = """
import os, sys, time
import numpy as np
import mspc as ms
from mspc import nn, ops
from mspc.communication import get_rank, init

ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
init()

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = ms.Parameter((np.arange(256).reshape(16, 16) % 7 / 16).astype(np.float32), name="w")
        self.w2 = ms.Parameter((np.arange(256).reshape(16, 16) % 5 / 16).astype(np.float32), name="w2")
        self.matmul = ops.MatMul()
        self.matmul2 = ops.MatMul()
        if ms.communication.get_group_size() == 4:
            self.matmul.shard(((2, 2), (2, 1)))
            self.matmul2.shard(((1, 4), (4, 1)))
    def construct(self, x):
        return ops.reduce_mean(self.matmul2(ops.relu(self.matmul(x, self.w)), self.w2) ** 2.0)

net = Net()
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.01, 0.9))
x = ms.Tensor((np.arange(128).reshape(8, 16) % 11 / 11).astype(np.float32))
for _ in range(int(sys.argv[1])):
    loss = step(x)
    print(f"{os.uname().nodename} {get_rank()} {float(loss.asnumpy())!r}", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@dataclass
class TwoHosts:
    """Names of the namespaces, which are those of the hosts as well, and the folder of their job."""

    names: tuple[str, str]
    addresses: tuple[str, str]
    folder: Path

    def start(self, *script_arguments: str, together: bool = False) -> subprocess.Popen[str]:
        """A job of two ranks a host. together: what it prints comes in one stream."""
        (self.folder / "train.py").write_text(SCRIPT)
        (self.folder / "hosts").write_text("".join(f"{address} slots=2\n" for address in self.addresses))
        agent = self.folder / "agent.sh"
        inside = f"hostname {self.names[1]}; $*"
        agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {self.names[1]} unshare -u sh -c "{inside}"\n')
        agent.chmod(0o755)
        command = [sys.executable, "-m", "mspc", "launch", "--worker_num", str(RANKS), "--hostfile", "hosts",
                   "--join", "True", "train.py", *script_arguments]  # fmt: skip
        inside = 'hostname "$0"; exec "$@"'
        return subprocess.Popen(
            ["ip", "netns", "exec", self.names[0], "unshare", "-u", "sh", "-c", inside, self.names[0], *command],
            cwd=self.folder, env={**mpirun_environment(), "PRTE_MCA_plm_ssh_agent": str(agent)},
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT if together else subprocess.PIPE, text=True,
        )  # fmt: skip


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, timeout=HANG)


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[TwoHosts]:
    if not shutil.which("ip") or not shutil.which("unshare"):
        pytest.skip("needs ip and unshare")
    number = os.getpid() % 10000
    names = f"mspc-a{number}", f"mspc-b{number}"
    ends = f"va{number}", f"vb{number}"
    addresses = "10.213.0.1", "10.213.0.2"
    try:
        for name in names:
            ip("netns", "add", name)
        ip("link", "add", ends[0], "type", "veth", "peer", "name", ends[1])
        for name, end, address in zip(names, ends, addresses, strict=True):
            ip("link", "set", end, "netns", name)
            ip("-n", name, "addr", "add", f"{address}/24", "dev", end)
            for link in (end, "lo"):
                ip("-n", name, "link", "set", link, "up")
    except subprocess.CalledProcessError as error:
        _remove(names)
        pytest.skip(f"network namespaces may not be made here: {error.stderr.decode().strip()}")
    yield TwoHosts(names, addresses, tmp_path)
    _remove(names)


def _remove(names: tuple[str, str]) -> None:
    for name in names:
        left = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout.split()
        for process in left:
            subprocess.run(["kill", "-9", process], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)


def next_losses(job: subprocess.Popen[str], count: int) -> dict[tuple[str, int], list[float]]:
    """The first losses of every rank, as many of each."""
    found: dict[tuple[str, int], list[float]] = {}

    def complete(lines: list[str]) -> bool:
        host, rank, loss = lines[-1].split()
        found.setdefault((host, int(rank)), []).append(float(loss))
        return len(found) == RANKS and all(len(values) >= count for values in found.values())

    lines_until(job, complete)
    return {place: values[:count] for place, values in sorted(found.items())}


def assert_lost(complaints: str, name: str) -> None:
    """The first line says which host, its ranks, and where one that waited for them was."""
    line = complaints.partition("\n")[0]
    lost = f"error: the host {name} is lost: mpirun's part there does not answer any more (ranks 2 to 3); "
    assert re.fullmatch(re.escape(lost) + r"rank \d was (in step \d+, at \w+( '.*')?|after step \d+)", line), complaints


def test_a_host_whose_part_of_mpirun_is_killed_is_named_before_what_ranks_say(two_hosts: TwoHosts) -> None:
    job = two_hosts.start("100000", "0.01", together=True)
    next_losses(job, 2)
    second = two_hosts.names[1]
    found = subprocess.run(["ip", "netns", "pids", second], capture_output=True, text=True, check=True).stdout.split()
    daemons = [int(pid) for pid in found if Path(f"/proc/{pid}/comm").read_text().strip() == "prted"]
    os.kill(max(daemons), signal.SIGKILL)  # the first one has started it over what takes the place of ssh
    # Both streams as one, in the order in which they were written: behind the losses the cause comes first.
    printed, _ = job.communicate(timeout=HANG)
    assert job.returncode == 1
    assert_lost(re.sub(r"(mspc-[ab]\d+ \d [\d.e-]+)?\n", "\n", printed).lstrip("\n"), second)


def test_ranks_on_two_hosts_equal_one_device_and_a_host_that_goes_away_is_named(two_hosts: TwoHosts) -> None:
    job = two_hosts.start("100000", "0.01")
    found = next_losses(job, 4)
    first, second = two_hosts.names
    assert list(found) == [(first, 0), (first, 1), (second, 2), (second, 3)]
    begin = time.monotonic()
    ip("-n", first, "link", "set", f"va{os.getpid() % 10000}", "down")
    _, complaints = job.communicate(timeout=HANG)
    assert time.monotonic() - begin < 30
    assert job.returncode == 1
    assert_lost(complaints, second)
    for name in two_hosts.names:
        limit = time.monotonic() + HANG
        while subprocess.run(["ip", "netns", "pids", name], capture_output=True, check=True).stdout.split():
            assert time.monotonic() < limit
            time.sleep(0.1)
    alone = succeed(
        sys.executable, "-m", "mspc", "run", "train.py", "--", "4", "0", cwd=two_hosts.folder
    )
    expected = [float(line.split()[2]) for line in alone.stdout.splitlines()]
    assert len(expected) == 4
    assert expected[-1] < expected[0]
    for values in found.values():
        assert values == pytest.approx(expected, rel=1e-5)
