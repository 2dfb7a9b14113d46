"""Which device a rank takes, and what it says when it cannot have one."""

import json
import os
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mspc.runtime.device_choice import DeviceChoice, DeviceOptions, DeviceRequest, Hardware, Probe, choose_device
from mspc.runtime.gpu import choices as choices_module
from mspc.runtime.gpu.choices import Choices, StoredChoices, file_of
from tests.errors import error_of
from tests.executors import LocalComm, OneRank, World
from tests.serving import HANG, succeed

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
    error = error_of(choose_device, wanted, 0, size, asked, machine, size)
    assert (error.message, list(error.notes), error.exit_status) == (message, notes, 2)


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
    error = error_of(hardware.choose, SCRIPT_GPU, 1)
    assert error.message == 'device_target="GPU" comes too late: earlier networks of this script run on the CPU'
    forced = Hardware(DeviceOptions("cpu"), probe=Machine(1))
    forced.choose(SCRIPT_CPU, 1)
    forced.choose(SCRIPT_GPU, 1)
    assert forced.choice == DeviceChoice("cpu")


def test_all_ranks_must_have_one_kind_of_device() -> None:
    def body(comm: Any) -> Any:
        hardware = Hardware(local_rank=0, probe=Machine(int(comm.rank != 1)))
        hardware.choose(DeviceRequest(), 3)
        return error_of(hardware.agree, comm).message

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
    done = succeed(sys.executable, "-c", code)
    assert done.stdout == "[]\n"


KEY = ("product", 8, (16, 32), True)


def choices(path: Path | None, deterministic: bool = False) -> Choices:
    return Choices(SimpleNamespace(deterministic=deterministic), StoredChoices(path))


def chosen(found: Choices, times: list[float], key: Any = KEY) -> tuple[int, list[int]]:
    """(the choice, which ways were timed)."""
    timed: list[int] = []

    def seconds(number: int) -> float:
        timed.append(number)
        return times[number]

    found.choose(key, len(times), seconds)
    return found[key], timed


def test_the_fastest_is_taken_and_kept(tmp_path: Path) -> None:
    path = tmp_path / "folder" / "choices.json"
    first = choices(path)
    assert chosen(first, [3.0, 1.0, 2.0]) == (1, [0, 1, 2])
    assert KEY in first
    first.agree(OneRank())
    second = choices(path)
    assert chosen(second, [1.0, 3.0, 2.0]) == (1, [])
    assert chosen(second, [2.0, 1.0], ("another",)) == (1, [0, 1])
    second.agree(OneRank())
    assert len(json.loads(path.read_bytes())) == 2
    assert os.listdir(path.parent) == [path.name]


def test_one_way_alone_is_not_timed(tmp_path: Path) -> None:
    assert chosen(choices(tmp_path / "choices.json"), [1.0]) == (0, [])


def test_a_choice_that_is_there_no_more_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "choices.json"
    first = choices(path)
    chosen(first, [3.0, 2.0, 1.0])
    first.agree(OneRank())
    assert chosen(choices(path), [2.0, 1.0]) == (1, [0, 1])


DAMAGED = [
    b"", b"{", b"[]", b"3", b"\xff\xfe", b'{"x": 1', b"null", b"[" * 100_000, b'{"KEY": "1"}', b'{"KEY": 7}',
    b'{"KEY": -1}', b'{"KEY": [[0, 1]]}', b'{"KEY": {"0": 1}}', b'{"KEY": null}',
]  # fmt: skip


@pytest.mark.parametrize("content", DAMAGED, ids=lambda content: content[:12].decode("latin1"))
def test_a_damaged_file_counts_as_empty(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "choices.json"
    whole = choices(path)
    chosen(whole, [2.0, 1.0])
    whole.agree(OneRank())
    (name,) = json.loads(path.read_bytes())
    path.write_bytes(content.replace(b"KEY", name.encode()))
    found = choices(path)
    assert chosen(found, [1.0, 2.0]) == (0, [0, 1])
    found.agree(OneRank())
    assert json.loads(path.read_bytes())[name] == 0


@pytest.mark.parametrize("pairs", [[[0]], [[0, 1], 2], [["a", 1]], [[0, -1]], 5, "ab"], ids=str)
def test_pairs_that_are_none_count_as_missing(tmp_path: Path, pairs: Any) -> None:
    path = tmp_path / "choices.json"
    kept = StoredChoices(path)
    kept.put_pairs(KEY, ((3, 0), (1, 256)))
    kept.save()
    assert StoredChoices(path).pairs(KEY) == ((3, 0), (1, 256))
    (name,) = json.loads(path.read_bytes())
    path.write_text(json.dumps({name: pairs}))
    assert StoredChoices(path).pairs(KEY) is None


def test_what_others_have_written_stays_and_the_oldest_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "choices.json"
    one, other = StoredChoices(path), StoredChoices(path)
    one.put(("one",), 1)
    one.save()
    other.put(("other",), 2)
    other.save()
    assert [StoredChoices(path).get((name,), 9) for name in ("one", "other")] == [1, 2]
    monkeypatch.setattr(choices_module, "MAX_ENTRIES", 2)
    other.put(("third",), 3)
    other.save()
    assert [StoredChoices(path).get((name,), 9) for name in ("one", "other", "third")] == [None, 2, 3]


def test_a_folder_that_takes_nothing_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    kept = StoredChoices(tmp_path / "file" / "choices.json")
    kept.put(KEY, 1)
    kept.save()
    assert (tmp_path / "file").read_text() == ""


def test_files_are_of_a_kind_of_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    one, other = file_of(["GPU A", "13.0"]), file_of(["GPU A", "13.1"])
    assert one is not None
    assert one != other
    assert one.parent == tmp_path / "mspc" / "choices"
    assert StoredChoices(None).get(KEY, 3) is None


def test_all_ranks_take_the_choice_of_the_first(tmp_path: Path) -> None:
    def run(comm: LocalComm) -> int:
        found = choices(tmp_path / f"{comm.rank}.json")
        chosen(found, [1.0, 2.0] if comm.rank == 1 else [2.0, 1.0])
        if comm.rank == 2:
            chosen(found, [2.0, 1.0, 0.5], ("own",))
        found.agree(comm)
        return found[KEY]

    assert World(3).run(run) == [1, 1, 1]
    assert [path.name for path in tmp_path.iterdir()] == ["0.json"]


def test_what_is_deterministic_is_not_chosen_by_time() -> None:
    ran: list[int] = []
    launches = [lambda i=i: ran.append(i) for i in range(2)]
    choices(None, deterministic=True).fastest(KEY, launches)()
    assert ran == [0]
