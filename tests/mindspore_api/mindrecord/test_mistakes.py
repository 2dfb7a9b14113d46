"""Files of records that are missing or damaged, and calls that cannot be: one message each."""

import json
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import dataset as ds
from mspc.ir.diagnostics import MspcError
from mspc.mindrecord import FileReader, FileWriter
from tests.errors import error_of
from tests.mindspore_api.mindrecord.test_records import write

SCHEMA = {"x": {"type": "int32"}, "a": {"type": "bytes"}, "n": {"type": "int32", "shape": [2]}}
ROWS = [{"x": i, "a": b"abc", "n": np.array([i, 300], np.int32)} for i in range(3)]


def header(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    """Changes what the header says."""

    def damage(path: Path) -> None:
        raw = path.read_bytes()
        content = json.loads(raw[8 : 8 + struct.unpack_from("<Q", raw)[0]])
        change(content)
        text = json.dumps(content).encode()
        path.write_bytes((struct.pack("<Q", len(text)) + text).ljust(1 << 14, b"\0") + raw[1 << 14 :])

    return damage


def at(place: int, raw: bytes) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        found = bytearray(path.read_bytes())
        found[place : place + len(raw)] = raw
        path.write_bytes(found)

    return damage


def sql(statement: str) -> Callable[[Path], None]:
    def damage(path: Path) -> None:
        index = sqlite3.connect(f"{path}.db")
        index.execute(statement)
        index.commit()
        index.close()

    return damage


def index_of(path: Path) -> Path:
    return Path(f"{path}.db")


BLOB, RAW = 1 << 14, (1 << 14) + (1 << 15)
"""Where the pages of bytes and of values begin."""
DAMAGES: list[tuple[Callable[[Path], object], str]] = [
    (lambda path: path.unlink(), "FileReader: there is no file 'a.mindrecord'"),
    (lambda path: path.write_bytes(b""), "'a.mindrecord' is no complete file of records: it has no header"),
    (lambda path: path.write_bytes(b"\x7fELF" * 100),
     "'a.mindrecord' is no complete file of records: it has no header"),
    (at(8, b"["), "'a.mindrecord' is no complete file of records: its header cannot be read"),
    (at(0, struct.pack("<Q", 2) + b"[]"), "'a.mindrecord' is no complete file of records: its header cannot be read"),
    (header(lambda h: h.update(version="9")),
     "'a.mindrecord' is no complete file of records: it is of version '9', not '3.0'"),
    (header(lambda h: h.pop("schema")),
     "'a.mindrecord' is no complete file of records: its header lacks entries"),
    (header(lambda h: h.update(page_size=-1)),
     "'a.mindrecord' is no complete file of records: page_size is -1, not between 32768 and 268435456"),
    (header(lambda h: h["page"][0].update(page_id=7)),
     "'a.mindrecord' is no complete file of records: its pages are not numbered, or larger than pages may be"),
    (header(lambda h: h["schema"][0]["schema"]["x"].update(type="int16")),
     "'a.mindrecord' is no complete file of records: field 'x' has the type 'int16', which is not one of bytes, "
     "string, int32, int64, float32, float64"),
    (header(lambda h: h.update(shard_addresses=["a.mindrecord", "b"])),
     "FileReader: 'a.mindrecord' is one of 2 files, and 'b' is not beside it"),
    (lambda path: path.write_bytes(path.read_bytes()[:-1]),
     "'a.mindrecord' is no complete file of records: record 2 is after the end, at 49187 bytes"),
    (lambda path: path.write_bytes(path.read_bytes()[: 1 << 15]),
     "'a.mindrecord' is no complete file of records: it has 32768 bytes, and its 2 pages take more"),
    (at(BLOB, b"\xff"),
     "'a.mindrecord' is no complete file of records: a record at byte 16384 is not as long as it says"),
    (at(BLOB + 8, b"\xff" * 8), "'a.mindrecord' is no complete file of records: record 0: a is longer than the record"),
    (at(BLOB + 30, b"\x01"),
     "'a.mindrecord' is no complete file of records: record 0: an array of integers is not as long as it says"),
    (at(RAW + 8, b"\x92"), "'a.mindrecord' is no complete file of records: record 0: its values are no map"),
    (at(RAW + 10, b"y"), "'a.mindrecord' is no complete file of records: record 0 has no 'x'"),
    (at(RAW + 9, b"\xa9"),
     "'a.mindrecord' is no complete file of records: record 0: a string is longer than the record"),
    (lambda path: Path(f"{path}.db").unlink(),
     "FileReader: there is no index 'a.mindrecord.db' beside the file of records"),
    (lambda path: Path(f"{path}.db").write_bytes(b"nothing of the kind"),
     "'a.mindrecord.db' is no complete index of records: file is not a database"),
    (lambda path: index_of(path).write_bytes(index_of(path).read_bytes().replace(b"PAGE_ID_RAW", b"PAGE),\xff,RAW", 1)),
     "'a.mindrecord.db' is no complete index of records: its tables have no names"),
    (sql("DROP TABLE INDEXES"), "'a.mindrecord.db' is no complete index of records: no such table: INDEXES"),
    (sql("UPDATE INDEXES SET PAGE_ID_RAW='one'"),
     "'a.mindrecord.db' is no complete index of records: a place is no number"),
    (sql("DELETE FROM INDEXES WHERE ROW_ID=0"),
     "'a.mindrecord.db' is no complete index of records: records are not numbered from 0 on"),
    (sql("UPDATE INDEXES SET PAGE_ID_BLOB=9 WHERE ROW_ID=1"),
     "'a.mindrecord' is no complete file of records: record 1 is outside its page"),
    (sql("UPDATE INDEXES SET PAGE_OFFSET_RAW=-8 WHERE ROW_ID=1"),
     "'a.mindrecord' is no complete file of records: record 1 is outside its page"),
]  # fmt: skip


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize(("damage", "message"), DAMAGES)
def test_damaged_files(damage: Callable[[Path], object], message: str) -> None:
    path = write(Path("a.mindrecord"), ROWS, SCHEMA)
    damage(path)
    assert error_of(lambda: list(FileReader(str(path)).get_next())).message == message
    if not message.startswith("FileReader"):
        error = error_of(lambda: list(ds.MindDataset(str(path), shuffle=False).create_tuple_iterator(num_epochs=1)))
        assert error.message == message


def test_no_byte_is_trusted() -> None:
    """A changed byte is told, or is one of a value."""
    path = write(Path("a.mindrecord"), ROWS, SCHEMA)
    whole = path.read_bytes()
    told = 0
    for place in (*range(0, 640, 13), *range(BLOB, BLOB + 96), *range(RAW, RAW + 36)):
        path.write_bytes(whole)
        at(place, bytes([whole[place] ^ 0xFF]))(path)
        try:
            assert len(list(FileReader(str(path)).get_next())) == 3
        except MspcError:
            told += 1
    assert told > 100


def writer(schema: Any = SCHEMA) -> FileWriter:
    found = FileWriter("b.mindrecord", 1, True)
    found.set_page_size(1 << 15)
    found.add_schema(schema)
    return found


def committed() -> FileWriter:
    found = writer()
    found.commit()
    return found


def record(**changes: Any) -> Callable[[], None]:
    return lambda: writer().write_raw_data([ROWS[0], {**ROWS[0], **changes}])


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (lambda: FileWriter(3), TypeError, "FileWriter: file_name must be a string, not 3"),
    (lambda: FileWriter("c", 0), ValueError, "FileWriter: shard_num must be an integer from 1 to 1000, not 0"),
    (lambda: FileWriter("a.mindrecord"), RuntimeError, "FileWriter: 'a.mindrecord' is there already"),
    (lambda: FileWriter("c").add_schema({}), ValueError,
     "FileWriter.add_schema: a schema is a dict of fields, and has one at least"),
    (lambda: FileWriter("c").add_schema({"x": {"type": "int8"}}), ValueError,
     "FileWriter.add_schema: field 'x' has the type 'int8', which is not one of bytes, string, int32, int64, float32, "
     "float64"),
    (lambda: FileWriter("c").add_schema({"x y": {"type": "int32"}}), ValueError,
     "FileWriter.add_schema: a field has a name of letters, digits and _, not 'x y'"),
    (lambda: FileWriter("c").add_schema({"x": {"type": "int32", "shape": [-1, -1]}}), ValueError,
     "FileWriter.add_schema: field 'x' has the shape [-1, -1]; one size may be -1"),
    (lambda: FileWriter("c").add_schema({"x": {"type": "string", "shape": [2]}}), ValueError,
     "FileWriter.add_schema: field 'x' of string takes no shape"),
    (lambda: writer().add_schema(SCHEMA), RuntimeError,
     "FileWriter.add_schema: the records have a schema already"),
    (lambda: writer().add_index(["a"]), ValueError, "FileWriter.add_index: 'a' is no single number or string"),
    (lambda: writer().add_index(["y"]), ValueError, "FileWriter.add_index: the schema has no field 'y'"),
    (lambda: FileWriter("c").set_page_size(100), ValueError,
     "FileWriter.set_page_size: 100 is no multiple of 4 from 32768 to 268435456"),
    (lambda: FileWriter("c").commit(), RuntimeError, "FileWriter: the records have no schema"),
    (lambda: committed().write_raw_data([]), RuntimeError, "FileWriter.write_raw_data: the records are committed"),
    (lambda: writer().write_raw_data({"x": 1}), TypeError,
     "FileWriter.write_raw_data: raw_data must be a list of dicts"),
    (lambda: writer().write_raw_data([{"x": 1}]), ValueError, "FileWriter.write_raw_data: record 0 has no 'a'"),
    (record(x=1.5), ValueError, "FileWriter.write_raw_data: record 1: x must be a number of int32, not 1.5"),
    (record(x=2**31), ValueError, "FileWriter.write_raw_data: record 1: x must be a number of int32, not 2147483648"),
    (record(a="abc"), ValueError, "FileWriter.write_raw_data: record 1: a must be bytes, not str"),
    (record(n=np.zeros(2)), ValueError,
     "FileWriter.write_raw_data: record 1: n must be an array of int32, not an array of float64"),
    (record(n=np.zeros(3, np.int32)), ValueError,
     "FileWriter.write_raw_data: record 1: n must have the shape [2], not [3]"),
    (record(a=bytes(1 << 15)), RuntimeError,
     "FileWriter: the bytes of a record take 32792 bytes, and a page has 32768"),
    (lambda: FileReader("a.mindrecord", columns=["y"]), MspcError,
     "FileReader: the records have no field 'y'; they have a, n, x"),
    (lambda: FileReader(3), TypeError, "FileReader: file_name must be the name of a file or a list of names, not 3"),
    (lambda: ds.MindDataset([]), TypeError,
     "MindDataset: dataset_files must be the name of a file or a list of names, not []"),
    (lambda: ds.MindDataset("a.mindrecord", num_padded=3), ValueError, "MindDataset: padded_sample is not supported"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "kind", "message"), MISTAKES)
def test_calls_that_cannot_be(call: Callable[[], Any], kind: type[Exception], message: str) -> None:
    write(Path("a.mindrecord"), ROWS, SCHEMA)
    with pytest.raises(kind) as caught:
        call()
    assert isinstance(caught.value, MspcError)
    assert caught.value.message == message


def test_what_changes_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    found = writer()
    found.write_raw_data([{**ROWS[0], "more": 1}], parallel_writer=True)
    found.commit()
    said = capsys.readouterr().err
    assert "FileWriter.write_raw_data: 'more' is no field of the schema, and is not written" in said
    assert "write_raw_data(parallel_writer=True) changes nothing here: records are written in their order" in said


def test_what_is_not_committed_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(Path("b.mindrecord"), ROWS, SCHEMA)
    before = path.read_bytes()
    writer().write_raw_data(ROWS)
    assert path.read_bytes() == before
    missing = FileWriter("missing/c")
    missing.add_schema(SCHEMA)
    with pytest.raises(MspcError, match=r"cannot write missing/c: "):
        missing.commit()
    reader = FileReader("b.mindrecord")
    reader.close()
    with pytest.raises(RuntimeError, match=r"FileReader\.len: the reader is closed"):
        reader.len()
