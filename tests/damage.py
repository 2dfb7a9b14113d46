"""Damages the files of a compiled folder, as an editor, a disk, a merge or an attacker might: one change at a time."""

import io
import json
import random
import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = (
    "0", "-1", "1", "2", "3", "7", "65536", "999999999", "99999999999", "1000000000000", "9223372036854775807",
    "18446744073709551616", "1e400", "nan", "inf", "0.5", "9" * 30, "9" * 5000,
)  # fmt: skip
WORDS = (
    "Float32", "Int32", "Bool", "Float64", "BFloat16", "Tuple", "None", "True", "input", "parameter", "constant",
    "forward", "update", "w", "%0", "%para1_x", "AllReduce", "MatMul", "TupleGetItem", "Reshape", "Cast", "Depend",
)  # fmt: skip
MARKS = (*"\0(){}<>[],:;\"'%=\\\n", "é", "😀", "\ud800")
TYPES = (
    "<Bool>", "<Tuple[Tensor[Float32]], ((8, 4))>", "<Tensor[Int32], (3)>", "<Tensor[Float32], ()>", "<String>",
    "<Tensor[Float32], (0, 4)>", "<Ref[Tensor[Float32]], (8, 4), ref_key=w>", "<Tuple[], ()>", "<null>",
    "<Tensor[Float32], (100000, 100000, 100000)>", "<Tensor[Int8], (1000000000000000000, 1000000000000000000)>",
    "<Tuple[Tensor[Float32]*999999999], TupleShape(())>", "<Tuple[], TupleShape()>",
)  # fmt: skip
ATTRIBUTES = (
    "true", "None", "0", "-1", "3", "999999999", "1e300", "nan", '"x"', "()", "(0,)", "(1, 1)", "(-1, 2)",
    "((1, 2), 3)", "(1000000000, 1000000000)", "Float32", "Int8", "Bool", "0:60000000:1", "(4) [0]",
    "Layout(2) [0, -]", "<Bool>", "Tensor(shape=[2], dtype=Float32, value=[1, 2])",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**63, 10**12, 10**30, 1.5, 1e300, float("nan"), float("inf"), "", "\0", "a\0b",
    "../..", "/", "rank_1", "(2) [0]", "(3) [0, -]", "x" * 5000, [], {}, [0], [-1], [None], {"0": 1}, [[]], "Float32",
    "Zeros", "é", "\ud800",
)  # fmt: skip

Random = random.Random


def _token(rng: Random, text: str, pattern: str, others: tuple[str, ...]) -> str:
    """One match of `pattern` becomes another one of the text, or one of `others`."""
    found = list(re.finditer(pattern, text))
    if not found:
        return text
    place = rng.choice(found)
    new = rng.choice(found)[0] if rng.random() < 0.5 else rng.choice(others)
    return text[: place.start()] + new + text[place.end() :]


def _number(rng: Random, text: str) -> str:
    return _token(rng, text, r"-?\d+", NUMBERS)


def _everywhere(rng: Random, text: str) -> str:
    """A number becomes another one wherever it stands, so that shapes still agree."""
    found = re.findall(r"\d+", text)
    if not found:
        return text
    return re.sub(rf"\b{rng.choice(found)}\b", rng.choice(NUMBERS), text)


def _word(rng: Random, text: str) -> str:
    return _token(rng, text, r"%?[A-Za-z_]\w*", WORDS)


def _type(rng: Random, text: str) -> str:
    return _token(rng, text, r"<[^<>\n]*>", TYPES)


def _group(rng: Random, text: str) -> str:
    return _token(rng, text, r"\([^()\n]*\)|\[[^\[\]\n]*\]|\{[^{}\n]*\}", ("()", "[]", "{}", "(1)", "((1), (2))"))


def _operator(rng: Random, text: str) -> str:
    """The operator of a node becomes that of another one."""
    return _token(rng, text, r"(?<== )[A-Za-z_]\w*(?=\()", WORDS)


def _attribute(rng: Random, text: str) -> str:
    """An attribute goes, or takes another kind of value."""
    found = list(re.finditer(r"\b(\w{1,40}: )([^,{}()\n]{1,80}|\([^()\n]{0,200}\))(, |\})", text))
    if not found:
        return text
    place = rng.choice(found)
    value = rng.choice(ATTRIBUTES)
    new = "" if rng.random() < 0.3 else f"{place[1]}{value}{place[3]}"
    return text[: place.start()] + new + text[place.end() :]


def _deep(rng: Random, text: str) -> str:
    """Brackets in brackets, more than any reader has room for."""
    at = rng.choice([m.start() for m in re.finditer(r"[(\[{<: ]", text)] or [0]) + 1
    mark, depth = rng.choice(["()", "[]", "{}"]), rng.choice([60, 400, 20000])
    return text[:at] + mark[0] * depth + (mark[1] * depth if rng.random() < 0.7 else "") + text[at:]


def _splice(rng: Random, text: str) -> str:
    """A piece of the text stands a second time, elsewhere."""
    start, at = rng.randrange(len(text) + 1), rng.randrange(len(text) + 1)
    return text[:at] + text[start : start + rng.randrange(1, 400)] + text[at:]


def _mark(rng: Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + rng.choice(MARKS) + text[at + rng.randrange(2) :]


def _cut(rng: Random, text: str) -> str:
    return text[: rng.randrange(len(text) + 1)]


def _gap(rng: Random, text: str) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.randrange(1, 40) :]


def _lines(rng: Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    if len(lines) < 2:
        return text
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    how = rng.randrange(3)
    if how == 0:
        del lines[one]
    elif how == 1:
        lines.insert(other, lines[one])
    else:
        lines[one], lines[other] = lines[other], lines[one]
    return "".join(lines)


TEXT: tuple[Callable[[Random, str], str], ...] = (
    _number, _number, _everywhere, _everywhere, _word, _word,
    _operator, _operator, _attribute, _attribute, _type, _type, _group, _group, _mark,
    _cut, _gap, _lines, _lines, _splice, _deep,
)  # fmt: skip


def damage_bytes(rng: Random, content: bytes) -> bytes:
    """A byte flipped, put in or taken out, a part that is lost or stands elsewhere."""
    at = rng.randrange(len(content) + 1)
    how, length = rng.randrange(5), rng.choice([1, 1, 8, 100, 4000])
    if how == 0:
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    if how == 1:
        return content[:at] + rng.randbytes(length) + content[at:]
    if how == 2:
        return content[:at] + content[at + length :]
    if how == 3:
        return content[:at]
    start = rng.randrange(len(content) + 1)
    return content[:at] + content[start : start + length] + content[at + length :]


def damage_text(rng: Random, text: str) -> bytes:
    """The text with one change; the result need not be valid UTF-8."""
    return rng.choice(TEXT)(rng, text).encode("utf-8", "surrogatepass")


def damage_json(rng: Random, text: str) -> bytes:
    """The JSON text with one value or key changed; now and then a change of the text."""
    if rng.random() < 0.2:
        return damage_text(rng, text)
    content = json.loads(text)
    holders = [content]
    for holder in holders:
        inner = holder.values() if isinstance(holder, dict) else holder
        holders += [value for value in inner if isinstance(value, dict | list) and value]
    holder = rng.choice(holders)
    if not holder:
        return damage_text(rng, text)
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    how = rng.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.3 and isinstance(holder, dict):
        holder[str(rng.choice(VALUES))] = holder.pop(key)
    elif how < 0.4:
        holder[key] = rng.choice(holders)
    else:
        holder[key] = rng.choice(VALUES)
    try:
        return json.dumps(content).encode()
    except ValueError:  # an object was put into itself
        return b"[" * 5000 + text.encode()


def damage_tensors(rng: Random, content: bytes) -> bytes:
    """A safetensors file with its header, its length or its bytes changed."""
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    how = rng.random()
    if how < 0.6:
        header = damage_json(rng, header.decode())
        return len(header).to_bytes(8, "little") + header + rest
    if how < 0.7:
        return rng.choice([0, 1, length - 1, length + 1, 2**31, 2**63, 2**64 - 1]).to_bytes(8, "little") + content[8:]
    return damage_bytes(rng, content)


def damage_arrays(rng: Random, content: bytes) -> bytes:
    """An npz file with an array's header or values, or the bytes of the archive changed."""
    if rng.random() < 0.4:
        return damage_bytes(rng, content)
    result = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(result, "w") as new:
        entries = {name: old.read(name) for name in old.namelist()}
        chosen = rng.choice(list(entries))
        for name, entry in entries.items():
            if name == chosen:
                how = rng.random()
                if how < 0.2:
                    name = rng.choice(["../x.npy", "/x.npy", "x", "x" * 300, "inputs0.npy.npy"])
                elif how < 0.4:
                    entry = damage_bytes(rng, entry)
                else:
                    entry = damage_text(rng, entry[:128].decode("latin-1"))[:4096] + entry[128:]
            new.writestr(name, entry)
    return result.getvalue()


def damage(rng: Random, path: Path) -> None:
    """Change a file in place, in the way of its kind."""
    content = path.read_bytes()
    if path.suffix == ".npz":
        path.write_bytes(damage_arrays(rng, content))
    elif path.suffix == ".safetensors":
        path.write_bytes(damage_tensors(rng, content))
    elif rng.random() < 0.1:
        path.write_bytes(damage_bytes(rng, content))
    elif path.suffix == ".json":
        path.write_bytes(damage_json(rng, content.decode()))
    else:
        text = content.decode()
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            text = damage_text(rng, text).decode("utf-8", "replace")
        path.write_text(text, encoding="utf-8")
