"""Damages the files of a compiled folder in small ways, as an editor, a disk or a merge might: one change at a time."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

NUMBERS = ("0", "-1", "1", "2", "3", "7", "65536", "99999999999", "18446744073709551616", "1e400", "nan", "0.5")
WORDS = (
    "Float32", "Int32", "Bool", "Float64", "BFloat16", "Tuple", "None", "True", "input", "parameter", "constant",
    "forward", "update", "w", "%0", "%para1_x", "AllReduce", "MatMul", "TupleGetItem", "Reshape", "Cast", "Depend",
)  # fmt: skip
MARKS = (*"\0(){}<>[],:;\"'%=\\\n", "é", "😀", "\ud800")
TYPES = (
    "<Bool>", "<Tuple[Tensor[Float32]], ((8, 4))>", "<Tensor[Int32], (3)>", "<Tensor[Float32], ()>", "<String>",
    "<Tensor[Float32], (0, 4)>", "<Ref[Tensor[Float32]], (8, 4), ref_key=w>", "<Tuple[], ()>", "<null>",
)  # fmt: skip
VALUES: tuple[Any, ...] = (
    None, True, False, -1, 0, 1, 3, 2**63, 1.5, "", "\0", "a\0b", "../..", "/", "rank_1", "(2) [0]", "(3) [0, -]",
    "x" * 5000, [], {}, [0], [-1], [None], {"0": 1}, [[]], "Float32", "Zeros", "é", "\ud800",
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


def _word(rng: Random, text: str) -> str:
    return _token(rng, text, r"%?[A-Za-z_]\w*", WORDS)


def _type(rng: Random, text: str) -> str:
    return _token(rng, text, r"<[^<>\n]*>", TYPES)


def _group(rng: Random, text: str) -> str:
    return _token(rng, text, r"\([^()\n]*\)|\[[^\[\]\n]*\]|\{[^{}\n]*\}", ("()", "[]", "{}", "(1)", "((1), (2))"))


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


TEXT: tuple[Callable[[Random, str], str], ...] = (_number, _word, _type, _group, _mark, _cut, _gap, _lines)


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
    key = rng.choice(list(holder) if isinstance(holder, dict) else range(len(holder)))
    how = rng.random()
    if how < 0.15:
        del holder[key]
    elif how < 0.3 and isinstance(holder, dict):
        holder[str(rng.choice(VALUES))] = holder.pop(key)
    else:
        holder[key] = rng.choice(VALUES)
    return json.dumps(content).encode()


def damage_tensors(rng: Random, content: bytes) -> bytes:
    """A safetensors file with its header or its bytes changed."""
    length = int.from_bytes(content[:8], "little")
    header, rest = content[8 : 8 + length], content[8 + length :]
    how = rng.random()
    if how < 0.5:
        header = damage_json(rng, header.decode())
        return len(header).to_bytes(8, "little") + header + rest
    if how < 0.8:
        at = rng.randrange(len(content))
        return content[:at] + bytes([rng.randrange(256)]) + content[at + 1 :]
    return content[: rng.randrange(len(content))]


def damage(rng: Random, path: Path) -> None:
    """Change a file in place, in the way of its kind."""
    content = path.read_bytes()
    if path.suffix == ".json":
        path.write_bytes(damage_json(rng, content.decode()))
    elif path.suffix == ".safetensors":
        path.write_bytes(damage_tensors(rng, content))
    else:
        path.write_bytes(damage_text(rng, content.decode()))
