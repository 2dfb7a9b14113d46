"""Which device a rank takes, and what it says when it cannot have one."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ops.collective.one_rank import OneRank
from mspc.runtime.comm.local import World
from mspc.runtime.device_choice import DeviceChoice, DeviceOptions, DeviceRequest, Hardware, Probe, choose_device
from tests.conftest import HANG

SCRIPT_GPU = DeviceRequest("gpu", 'device_target="GPU"')
INIT_NCCL = DeviceRequest("gpu", 'init("nccl")')
SCRIPT_CPU = DeviceRequest("cpu", 'device_target="CPU"')
ON_CPU = "or run it on the CPU with mspc run --device cpu"
INSTALL = "pip install -e '.[gpu]' in a checkout of mspc brings CuPy; it needs an NVIDIA driver"


class Machine(Probe):
    """A machine with so many GPUs; `asked` counts how often it was looked at."""

    def __init__(self, gpus: int, cupy: bool = True, nccl: bool = True) -> None:
        self.found, self.has_cupy, self.has_nccl, self.asked = gpus, cupy, nccl, 0

    def gpus(self) -> tuple[int, str]:
        self.asked += 1
        return self.found, "" if self.found else "there is no NVIDIA driver on this machine"

    def cupy(self) -> bool:
        return self.has_cupy

    def nccl(self) -> bool:
        return self.has_nccl


@pytest.mark.parametrize(
    ("wanted", "asked", "gpus", "local_size", "choice"),
    [
        ("auto", DeviceRequest(), 4, 4, DeviceChoice("gpu", 2)),
        ("auto", SCRIPT_GPU, 4, 4, DeviceChoice("gpu", 2)),
        ("auto", SCRIPT_CPU, 4, 4, DeviceChoice("cpu")),
        ("cpu", SCRIPT_GPU, 4, 4, DeviceChoice("cpu")),
        ("gpu", SCRIPT_CPU, 4, 4, DeviceChoice("gpu", 2)),
        ("auto", DeviceRequest(), 0, 4, DeviceChoice("cpu")),
        ("auto", DeviceRequest(), 2, 4, DeviceChoice(
            "cpu", 0, "this runs on the CPU: 2 GPUs would be here, but 4 ranks on this host share 2 GPUs"
        )),
    ],
)  # fmt: skip
def test_the_command_line_beats_the_script_which_beats_what_is_here(
    wanted: str, asked: DeviceRequest, gpus: int, local_size: int, choice: DeviceChoice
) -> None:
    assert choose_device(wanted, 2, local_size, asked, Machine(gpus)) == choice


@pytest.mark.parametrize(
    ("wanted", "asked", "machine", "size", "message", "notes"),
    [
        ("gpu", DeviceRequest(), Machine(0), 1,
         "--device gpu asks for a GPU, but there is no NVIDIA driver on this machine", [INSTALL, ON_CPU]),
        ("auto", SCRIPT_GPU, Machine(1, cupy=False), 1,
         'device_target="GPU" asks for a GPU, but CuPy is not installed', [INSTALL, ON_CPU]),
        ("auto", INIT_NCCL, Machine(2, nccl=False), 2,
         'init("nccl") asks for a GPU, but CuPy finds no NCCL, which 2 ranks need',
         ["pip install nvidia-nccl-cu13, or -cu12, as for CuPy", ON_CPU]),
        ("gpu", DeviceRequest(), Machine(2), 4, "--device gpu asks for a GPU, but 4 ranks on this host share 2 GPUs",
         ["start at most 2 ranks on this host: every rank takes a GPU of its own", ON_CPU]),
        ("auto", DeviceRequest("gpu", 'device_target="GPU"', 3), Machine(2), 1,
         'device_target="GPU" asks for a GPU, but device_id=3 is none of the 2 GPUs visible here', [ON_CPU]),
    ],
)  # fmt: skip
def test_a_gpu_that_cannot_be_had_is_an_error(
    wanted: str, asked: DeviceRequest, machine: Machine, size: int, message: str, notes: Any
) -> None:
    with pytest.raises(MspcError) as caught:
        choose_device(wanted, 0, size, asked, machine, size)
    assert (caught.value.message, list(caught.value.notes), caught.value.exit_status) == (message, notes, 2)


def test_one_rank_takes_the_gpu_that_the_script_names_and_needs_no_nccl() -> None:
    machine = Machine(4, nccl=False)
    assert choose_device("auto", 0, 1, DeviceRequest("gpu", "x", 3), machine) == DeviceChoice("gpu", 3)
    assert choose_device("auto", 1, 2, DeviceRequest("", "", 3), Machine(4)) == DeviceChoice("gpu", 1)


def test_the_machine_is_not_looked_at_where_the_cpu_is_asked_for() -> None:
    machine = Machine(4)
    choose_device("cpu", 0, 1, SCRIPT_GPU, machine)
    choose_device("auto", 0, 1, SCRIPT_CPU, machine)
    assert machine.asked == 0


def test_a_simulation_runs_on_the_cpu_and_says_so() -> None:
    said: list[str] = []
    machine = Machine(4)
    hardware = Hardware(DeviceOptions("gpu"), simulated=True, warn=said.append, probe=machine)
    hardware.choose(SCRIPT_GPU, 4)
    hardware.choose(SCRIPT_GPU, 4)
    assert hardware.choice == DeviceChoice("cpu")
    assert said == ["--simulate runs all ranks on the CPU; --device gpu does not count"]
    said.clear()
    Hardware(simulated=True, warn=said.append).choose(INIT_NCCL, 4)
    assert said == ['--simulate runs all ranks on the CPU; init("nccl") does not count']
    said.clear()
    Hardware(DeviceOptions("cpu"), simulated=True, warn=said.append).choose(INIT_NCCL, 4)
    assert (said, machine.asked) == ([], 0)


def test_a_script_cannot_change_the_device_between_networks() -> None:
    hardware = Hardware(probe=Machine(1))
    hardware.choose(SCRIPT_CPU, 1)
    hardware.choose(DeviceRequest(), 1)
    with pytest.raises(MspcError) as caught:
        hardware.choose(SCRIPT_GPU, 1)
    assert caught.value.message == 'device_target="GPU" comes too late: earlier networks of this script run on the CPU'
    forced = Hardware(DeviceOptions("cpu"), probe=Machine(1))
    forced.choose(SCRIPT_CPU, 1)
    forced.choose(SCRIPT_GPU, 1)
    assert forced.choice == DeviceChoice("cpu")


def test_all_ranks_must_have_one_kind_of_device() -> None:
    def body(comm: Any) -> Any:
        hardware = Hardware(local_rank=0, probe=Machine(int(comm.rank != 1)))
        hardware.choose(DeviceRequest(), 3)
        with pytest.raises(MspcError) as caught:
            hardware.agree(comm)
        return caught.value.message

    wanted = "rank 0 runs on a GPU and rank 1 on the CPU; all must run on one kind of device"
    assert World(3).run(body) == [wanted] * 3


def test_one_rank_has_nothing_to_agree_on() -> None:
    hardware = Hardware(probe=Machine(1))
    hardware.choose(DeviceRequest(), 1)
    hardware.agree(OneRank())
    assert hardware.choice == DeviceChoice("gpu", 0)


@pytest.mark.parametrize(("wishes", "begun"), [(DeviceOptions("gpu"), [2]), (DeviceOptions("cpu"), [])])
def test_the_drivers_context_is_begun_once_where_a_gpu_is_chosen(wishes: DeviceOptions, begun: list[int]) -> None:
    found: list[int] = []
    machine = Machine(4)
    machine.begin = found.append  # type: ignore[method-assign]
    hardware = Hardware(wishes, local_rank=2, local_size=4, probe=machine)
    for _ in range(2):
        hardware.choose(DeviceRequest(), 4)
    for thread in threading.enumerate():
        if thread.name == "mspc GPU":
            thread.join(HANG)
            assert not thread.is_alive()
    assert found == begun


@pytest.mark.parametrize("fails", ["", "cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain", "the driver"])
def test_what_fails_in_the_driver_is_left_to_the_device(fails: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Driver:
        def __init__(self, name: str) -> None:
            if fails == "the driver":
                raise OSError(name)

        def __getattr__(self, name: str) -> Any:
            asked.append(name)
            return lambda *_: int(name == fails)

    monkeypatch.setattr("ctypes.CDLL", Driver)
    Probe().begin(0)
    names = ["cuInit", "cuDeviceGet", "cuDevicePrimaryCtxRetain"]
    assert asked == ([] if fails == "the driver" else names[: names.index(fails) + 1] if fails else names)


def test_wishes_travel_to_the_ranks_of_mpirun() -> None:
    assert DeviceOptions().arguments() == []
    assert DeviceOptions("gpu", True, 90).arguments() == ["--device", "gpu", "--deterministic", "--timeout", "90"]


def test_nothing_of_cuda_and_no_numpy_is_loaded_for_the_choice() -> None:
    code = (
        "import sys; from mspc.runtime.device_choice import *; choose_device('auto', 0, 1)\n"
        "print([m for m in ('numpy', 'cupy', 'mspc.runtime.gpu.device') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
