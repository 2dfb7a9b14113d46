"""Files are complete or not there: killed at every call, on a full disk, where names cannot be."""

import os
import resource
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_files, check_writable, write_atomically
from mspc.output import dumps as output
from mspc.output.dumps import OutputFolder
from tests.errors import error_of
from tests.kills import files, in_a_process, killed_everywhere, program_files
from tests.serving import HANG

LONG = "x" * 300
OLD = ("program.json", "rank_0/00_frontend_0000.ir", "rank_1/00_frontend_0000.ir")
NEW = ("program.json", "rank_0/09_execute_0000.ir", "weights.safetensors")


def compiled(place: Path, names: tuple[str, ...], size: int = 0) -> None:
    with OutputFolder(place) as folder:
        for name in names:
            folder.write(name, f"{name} of {len(names)} {names[-1]}".ljust(size))
        folder.commit()


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "results").mkdir()
    return tmp_path / "results" / "graphs"


def test_a_killed_compile_leaves_the_old_folder_or_the_new_one(place: Path) -> None:
    found = killed_everywhere(
        lambda: compiled(place, OLD), lambda: compiled(place, NEW), lambda: program_files(place), place.parent
    )
    assert found["old"] > 10
    assert found["new"] > 5


def test_a_killed_compile_where_folders_cannot_change_places(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(output, "exchange", lambda one, other: False)
    found = killed_everywhere(
        lambda: compiled(place, OLD), lambda: compiled(place, NEW), lambda: program_files(place), place.parent
    )
    assert found["old"] > 10
    assert found["new"] > 5


@pytest.mark.parametrize("older", [None, b"old"])
def test_a_killed_write_leaves_the_old_file_or_the_new_one(place: Path, older: bytes | None) -> None:
    def prepare() -> None:
        place.unlink(missing_ok=True)
        if older is not None:
            place.write_bytes(older)

    found = killed_everywhere(
        prepare, lambda: write_atomically(place, lambda file: [file.write(b"new" * 9000) for _ in range(4)]),
        lambda: {"file": place.read_bytes()} if place.exists() else None, place.parent,
    )  # fmt: skip
    assert found["old"] > 5
    assert found["new"] >= 1


def limited(work: Callable[[], object]) -> Callable[[], None]:
    """`work` in a process whose files hold 1000 bytes at most: writing fails as on a full disk."""

    def run() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        with pytest.raises(MspcError, match="File too large"):
            work()

    return run


def test_a_file_that_does_not_fit_leaves_the_old_one(place: Path) -> None:
    place.write_text("old")
    in_a_process(limited(lambda: write_atomically(place, lambda file: file.write(b"x" * 5000))))
    assert files(place.parent) == {"graphs": b"old"}


def test_a_folder_that_does_not_fit_leaves_the_old_one(place: Path) -> None:
    compiled(place, OLD)
    before = files(place.parent)

    def large() -> None:
        with OutputFolder(place) as folder:
            folder.write("program.json", "x" * 5000)
            folder.commit()

    in_a_process(limited(large))
    assert files(place.parent) == before


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A mounted file system of 64 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=HANG, check=False)
    except OSError:
        pytest.skip("there is no mount here")
    if done.returncode:
        pytest.skip("mounting a file system is not allowed here")
    yield folder
    subprocess.run(["umount", str(folder)], timeout=HANG, check=True)


@pytest.mark.parametrize("where", ["", "graphs", "link"])
def test_a_full_disk_leaves_the_old_folder(disk: Path, tmp_path: Path, where: str) -> None:
    place = disk / where
    if where == "link":
        place = tmp_path / "link"
        (disk / "there").mkdir()
        place.symlink_to(disk / "there")
    compiled(place, OLD)
    before = files(disk)
    with pytest.raises(MspcError) as raised:
        compiled(place, ("program.json", *(f"rank_{number}/00_frontend_0000.ir" for number in range(100))), 4000)
    assert raised.value.message == f"cannot write to {place}: No space left on device"
    assert files(disk) == before
    compiled(place, NEW)
    assert set(files(place) or ()) == {*NEW, "rank_0/"}


@pytest.mark.thorough
def test_a_killed_compile_into_a_mount_point(disk: Path) -> None:
    found = killed_everywhere(
        lambda: compiled(disk, OLD), lambda: compiled(disk, NEW), lambda: program_files(disk), disk
    )
    assert found["old"] > 10
    assert found["new"] > 5


def test_a_link_stays_one_and_what_it_leads_to_is_written(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "link").symlink_to("there/file")
    write_atomically(tmp_path / "link", lambda file: file.write(b"new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "there" / "file").read_bytes() == b"new"


def test_the_rights_of_a_file_stay(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")
    (tmp_path / "file").chmod(0o640)
    write_atomically(tmp_path / "file", lambda file: file.write(b"new"))
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_device_is_written_to_and_not_replaced() -> None:
    write_atomically(Path("/dev/null"), lambda file: file.write(b"new"))
    assert not Path("/dev/null").is_file()
    with pytest.raises(MspcError, match=r"cannot write /dev/full: No space left on device$"):
        write_atomically(Path("/dev/full"), lambda file: file.write(b"new"))


def test_a_pipe_is_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    check_writable(tmp_path / "pipe")
    write_atomically(tmp_path / "pipe", lambda file: file.write(b"new"))
    assert os.read(reading, 10) == b"new"
    os.close(reading)


def test_the_longest_name_that_a_file_can_have(tmp_path: Path) -> None:
    for name in ("x" * 255, "é" * 127):
        write_atomically(tmp_path / name, lambda file: file.write(b"new"))
        assert (tmp_path / name).read_bytes() == b"new"
    compiled(tmp_path / ("y" * 255), NEW)
    assert len(list(tmp_path.iterdir())) == 3


NO_FILES = {
    "no/x": "there is no folder 'no'",
    "file/x": "'file' is no folder",
    "folder": "it is a folder",
    LONG: "File name too long",
    f"folder/{LONG}": "File name too long",
    "a\0b": "embedded null byte",
    "loop": "Too many levels of symbolic links",
}


@pytest.mark.parametrize("name", NO_FILES)
def test_what_cannot_be_written_is_known_ahead(name: str, own_folder: Path) -> None:
    Path("file").write_text("")
    Path("folder").mkdir()
    Path("loop").symlink_to("loop")
    shown = repr(name) if "\0" in name else name
    assert error_of(check_writable, Path(name)).message == f"cannot write {shown}: {NO_FILES[name]}"
    with pytest.raises(MspcError, match="cannot write "):
        write_atomically(Path(name), lambda file: file.write(b"new"))
    assert sorted(p.name for p in own_folder.rglob("*")) == ["file", "folder", "loop"]


def test_two_options_that_name_one_file(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("file")
    error = error_of(check_files, {"--save": tmp_path / "file", "--profile": None, "--save-outputs": tmp_path / "link"})
    assert error.message == f"--save and --save-outputs both name {tmp_path}/link"
    check_files({"--save": Path("/dev/null"), "--save-outputs": Path("/dev/null")})


@pytest.mark.parametrize("name", [LONG, f"{LONG}/x", "a\0b"])
def test_a_folder_that_cannot_have_its_name(name: str, tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="cannot write to ") as raised, OutputFolder(tmp_path / name):
        pass
    assert raised.value.exit_status == 2
    assert list(tmp_path.iterdir()) == []


def test_folders_above_go_when_nothing_comes_into_them(tmp_path: Path) -> None:
    with OutputFolder(tmp_path / "a" / "b" / "graphs") as folder:
        folder.write("program.json", "")
    assert list(tmp_path.iterdir()) == []
