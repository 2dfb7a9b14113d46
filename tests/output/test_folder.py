"""The output folder is replaced at once, filled when empty, refused when it holds somebody's files."""

import json
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.output.dumps import OutputFolder
from tests.compiled_scripts import NETWORKS, QUIET, CompileOptions, compile_target
from tests.errors import error_of
from tests.printed_lines import lines_until


def write(path: Path, *names: str) -> None:
    with OutputFolder(path) as output:
        for name in names:
            output.write(name, name)
        output.commit()


def files(path: Path) -> list[str]:
    return sorted(str(p.relative_to(path)) for p in path.rglob("*") if p.is_file())


def test_new_folder_is_written_with_its_parents(tmp_path: Path) -> None:
    write(tmp_path / "a" / "graphs", "program.json", "rank_0/00_frontend_0000.ir")
    assert files(tmp_path) == ["a/graphs/program.json", "a/graphs/rank_0/00_frontend_0000.ir"]


def test_empty_folder_is_filled(tmp_path: Path) -> None:
    (tmp_path / "graphs").mkdir()
    write(tmp_path / "graphs", "program.json")
    assert files(tmp_path) == ["graphs/program.json"]


def test_earlier_output_is_replaced_as_a_whole(tmp_path: Path) -> None:
    write(tmp_path / "graphs", "program.json", "rank_0/00_frontend_0000.ir", "rank_1/00_frontend_0000.ir")
    write(tmp_path / "graphs", "program.json", "rank_0/09_execute_0000.ir", "weights.safetensors")
    assert files(tmp_path) == [
        "graphs/program.json", "graphs/rank_0/09_execute_0000.ir", "graphs/weights.safetensors",
    ]  # fmt: skip


@pytest.mark.parametrize("foreign", ["notes.txt", "rank_0/notes.txt"])
def test_foreign_file_beside_an_output_is_refused(tmp_path: Path, foreign: str) -> None:
    write(tmp_path / "graphs", "program.json", "rank_0/00_frontend_0000.ir")
    (tmp_path / "graphs" / foreign).write_text("mine")
    assert str(error_of(write, tmp_path / "graphs", "program.json")) == (
        f"error: {tmp_path}/graphs holds files that mspc did not write: {foreign}\n"
        "  note: give another folder, or an empty one"
    )
    assert (tmp_path / "graphs" / foreign).read_text() == "mine"


def test_folder_of_somebody_else_is_refused(tmp_path: Path) -> None:
    for name in ("a.py", "b.py", "rank_0", "z.py"):
        (tmp_path / name).write_text("")
    with pytest.raises(MspcError, match=r"did not write: a\.py, b\.py, rank_0 and 1 more\n"):
        OutputFolder(tmp_path)


def test_file_in_the_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "graphs").write_text("")
    with pytest.raises(MspcError, match="graphs: it is a file"):
        OutputFolder(tmp_path / "graphs")


def test_failure_leaves_the_earlier_output(tmp_path: Path) -> None:
    write(tmp_path / "graphs", "program.json")
    with pytest.raises(MspcError, match="graphs: Is a directory"):
        write(tmp_path / "graphs", "rank_0/00_frontend_0000.ir", "rank_0")
    assert files(tmp_path) == ["graphs/program.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["graphs"]


def test_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "graphs").symlink_to(tmp_path / "there")
    write(tmp_path / "graphs", "program.json", "rank_0/00_frontend_0000.ir")
    write(tmp_path / "graphs", "program.json")
    assert (tmp_path / "graphs").is_symlink()
    assert files(tmp_path / "there") == ["program.json"]


def test_unwritable_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    before = signal.getsignal(signal.SIGTERM)
    error = error_of(write, tmp_path / "file" / "graphs", "program.json")
    assert str(error).startswith(f"error: cannot write to {tmp_path}/file/graphs: ")
    assert signal.getsignal(signal.SIGTERM) == before


def _compiling(folder: Path) -> subprocess.Popen[str]:
    """A compile that waits in the middle of writing its files."""
    code = (
        "import time; from pathlib import Path; from mspc.output.dumps import OutputFolder\n"
        "with OutputFolder(Path('out')) as output:\n"
        "    output.write('rank_0/x_0000.ir', ''); print('writing', flush=True)\n"
        "    while True: time.sleep(0.1)"
    )
    job = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert lines_until(job, bool) == ["writing\n"]
    return job


def test_a_terminated_compile_takes_its_folder_away(tmp_path: Path) -> None:
    with _compiling(tmp_path) as job:
        assert list(tmp_path.iterdir())
        job.terminate()
    assert job.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_the_next_compile_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    with _compiling(tmp_path) as job:
        job.kill()
    (left,) = tmp_path.iterdir()
    with _compiling(tmp_path) as running:
        assert not left.exists()
        (other,) = tmp_path.iterdir()
        with OutputFolder(tmp_path / "out"):
            assert other.exists()
        running.terminate()
    assert list(tmp_path.iterdir()) == []


LOOPS, STAGES, EXCHANGES = "llama.py", "staged_llama.py", "long_llama.py"
SIZES = {LOOPS: "lazy 2 32 4 64 64 2 4 8 16", STAGES: "4 32 4 2 64 64 2 2 2 4 16", EXCHANGES: "1 32 4 2 64 64 1 4 2 32"}
ID, KIND, DATA, BEGIN = 1, 3, 5, 6
SENDS, RECEIVES, COLLECTIVE = 5, 6, 7


def number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        value, shift, at = value | (data[at] & 0x7F) << shift, shift + 7, at + 1
        if data[at - 1] < 0x80:
            return value, at


def fields(data: bytes) -> Iterator[tuple[int, Any]]:
    at = 0
    while at < len(data):
        key, at = number(data, at)
        value, at = number(data, at)
        if key & 7 == 2:
            at, value = at + value, data[at : at + value]
        yield key >> 3, value


def messages(data: bytes) -> Iterator[dict[Any, Any]]:
    """Yield fields by number, attributes by name."""
    at = 0
    while at < len(data):
        size, at = number(data, at)
        several = list(fields(data[at : at + size]))
        attributes = [[content for _, content in fields(value)] for place, value in several if place == 10]
        yield dict(several) | {name.decode(): own for name, own in attributes}
        at += size


def listed(data: bytes, at: int = 0) -> Iterator[int]:
    while at < len(data):
        value, at = number(data, at)
        yield value


@pytest.mark.parametrize("script", SIZES)
def test_ranks_that_follow_their_dependencies_finish(script: str, tmp_path: Path) -> None:
    given = tuple(SIZES[script].split())
    options = CompileOptions(ranks=8, out=tmp_path / "out", trace=tmp_path / "out", script_arguments=given,
                             loudness=QUIET)  # fmt: skip
    with pytest.raises(MspcError, match="which is replaced as a whole"):
        compile_target(str(NETWORKS / script), options)
    options = replace(options, trace=tmp_path / "traces")
    compile_target(str(NETWORKS / script), options)
    groups = json.loads((tmp_path / "traces" / "comm_groups.json").read_text()) | {"0": range(8)}
    waiting = {rank: list(messages((tmp_path / "traces" / f"trace.{rank}.et").read_bytes()))[1:] for rank in range(8)}
    assert sum(node.get("num_ops", 0) for node in waiting[0]) > 0 == min(node[BEGIN] for node in waiting[0])
    calls: Counter[object] = Counter()
    seen: set[tuple[int, int]] = set()
    done: set[tuple[int, int]] = set()
    while any(waiting.values()):
        before = len(done)
        for rank, node in [(rank, node) for rank, several in waiting.items() for node in several]:
            own, kind = (rank, node[ID]), node[KIND]
            if not all((rank, other) in done for other in listed(node.get(DATA, b""))):
                continue
            group = node.get("pg_name", b"").decode()
            key = (group, node.get("comm_type"), *(node.get(f"comm_{end}") for end in ("src", "dst", "tag")))
            if own not in seen and kind in (SENDS, COLLECTIVE):
                seen.add(own)
                calls.update((key, (key, rank)))
            wanted = calls[key, rank] * len(groups[group]) if kind == COLLECTIVE else kind == RECEIVES
            if kind == SENDS or calls[key] >= wanted:
                calls[key] -= kind == RECEIVES
                done.add(own)
                waiting[rank].remove(node)
        assert len(done) > before, "the ranks wait for each other"
    events = json.loads((tmp_path / "traces" / "perfetto.json").read_text())["traceEvents"]
    assert {event["pid"] for event in events} == ({0, 4} if script == STAGES else {0})
