"""Reads an exported program of PyTorch, a file of `torch.export.save`: as data, whatever it holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.files.parsing import parsed_json
from mspc.readers.pytorch.archive import Archive
from mspc.readers.pytorch.entries import entry, object_in, text_in, whole_in
from mspc.readers.pytorch.graphs import GraphReader
from mspc.readers.pytorch.program import ExportedProgram, Range
from mspc.readers.pytorch.signature import Signature, signature_of
from mspc.readers.pytorch.weights import Weights, weights_of

SCHEMA = 8
"""The version of the format that is read, in all its minor versions: those only add to it."""
MODELS = "models/"
FORMAT, ARCHIVE_VERSION, BYTE_ORDER = "archive_format", "archive_version", "byteorder"
OLD = "serialized_exported_program.json"
"""The graph in an archive of PyTorch 2.7 and older; in one of 2.8 it is as it is now, and tensors are pickled."""
SAVE_AGAIN = "load it with torch.export.load there and save it with torch.export.save of PyTorch 2.9 or newer"


def read_program(path: Path) -> ExportedProgram:
    """The program in a file.

    Raises:
        MspcError: there is no such file, it is none of `torch.export.save`, of a version that is not read, damaged, or
            holds what cannot be read as data.
    """
    archive = Archive(path)
    _check_format(archive)
    name = _model(archive)
    try:
        content = object_in(parsed_json(archive.text(f"{MODELS}{name}.json")), "it")
        schema = _schema(archive, content)
        module = object_in(entry(content, "graph_module", "it"), "its graph_module")
        reader = GraphReader()
        graph = reader.graph(entry(module, "graph", "its module"))
        signature = signature_of(module, graph)
        ranges = _ranges(content)
        version = text_in(content.get("torch_version", ""), "its torch_version")
    except ValueError as error:
        raise MspcError(f"{archive.shown} is damaged: {MODELS}{name}.json: {error}") from None
    if f"data/weights/{name}.pt" in archive:
        raise _pickled(archive, f"PyTorch {version.partition('+')[0] or '2.8'}")
    weights, same = weights_of(archive, name)
    _check_weights(archive, signature, weights)
    return ExportedProgram(
        archive.shown, graph, signature.inputs, signature.outputs, weights, same, ranges, reader.examples, schema,
        version,
    )  # fmt: skip


def _pickled(archive: Archive, writer: str) -> MspcError:
    return MspcError(
        f"{archive.shown} is written by {writer}, whose tensors are pickled, and mspc loads no pickle, which could run "
        "anything",
        notes=[SAVE_AGAIN],
    )


def _check_format(archive: Archive) -> None:
    if OLD in archive:
        raise _pickled(archive, "PyTorch 2.7 and older")
    if FORMAT not in archive:
        found = archive.names()
        notes = ["it is a file of torch.save or torch.jit.save"] if any(n.endswith("data.pkl") for n in found) else []
        raise MspcError(
            f"{archive.shown} is no exported program of PyTorch: it has no {FORMAT}",
            notes=[*notes, "torch.export.save(torch.export.export(model, inputs), 'model.pt2') writes one"],
        )
    if archive.text(FORMAT) != b"pt2":
        raise MspcError(f"{archive.shown} has format {archive.text(FORMAT)!r:.40}, not 'pt2'")
    if ARCHIVE_VERSION in archive and archive.text(ARCHIVE_VERSION) != b"0":
        raise MspcError(f"{archive.shown} has version {archive.text(ARCHIVE_VERSION)!r:.40} of archives; mspc reads 0")
    if BYTE_ORDER in archive and archive.text(BYTE_ORDER) != b"little":
        raise MspcError(f"{archive.shown} has byte order {archive.text(BYTE_ORDER)!r:.40}; mspc reads 'little'")


def _model(archive: Archive) -> str:
    """The name of the one program in the archive."""
    found = [name.removeprefix(MODELS).removesuffix(".json") for name in archive.names(MODELS, ".json")]
    if not found:
        raise MspcError(
            f"{archive.shown} has no program in {MODELS}: what is compiled for one machine alone cannot be read"
        )
    if len(found) > 1:
        names = ", ".join(found[:4])
        raise MspcError(f"{archive.shown} has {len(found)} programs, {names}; mspc reads a file with one")
    return found[0]


def _schema(archive: Archive, content: dict[str, Any]) -> tuple[int, int]:
    owner = object_in(entry(content, "schema_version", "it"), "its schema_version")
    major, minor = (whole_in(entry(owner, key, "its schema_version"), key, 0) for key in ("major", "minor"))
    if major != SCHEMA:
        written = text_in(content.get("torch_version", ""), "its torch_version")
        raise MspcError(
            f"{archive.shown} is of version {major}.{minor} of exported programs"
            f"{f' (PyTorch {written})' if written else ''}; mspc reads version {SCHEMA}"
        )
    return major, minor


def _ranges(content: dict[str, Any]) -> dict[str, Range]:
    found: dict[str, Range] = {}
    for name, value in object_in(content.get("range_constraints") or {}, "its range_constraints").items():
        owner = object_in(value, f"the range of {name!r:.60}")
        least, most = (owner.get(key) for key in ("min_val", "max_val"))
        for each in (least, most):
            if each is not None and type(each) is not int:
                raise ValueError(f"the range of {name!r:.60} ends with {each!r:.60}")
        found[name] = least, most
    return found


def _check_weights(archive: Archive, signature: Signature, weights: Weights) -> None:
    """Tensors that the program has no values for are left to initializers, all or none; others are of its types."""
    for each in signature.inputs:
        stored = weights.tensors.get(each.qualified) if each.kind in ("parameter", "buffer", "constant") else None
        if stored is not None and each.type is not None and (each.type.dtype, each.type.shape) != (
            stored.type.dtype, stored.type.shape,
        ):  # fmt: skip
            shape = ", ".join(map(str, each.type.shape))
            raise MspcError(
                f"{archive.shown} is damaged: the {each.kind} {each.qualified!r:.100} is {each.type.dtype}[{shape}] in "
                f"the graph, and {stored.type} is stored"
            )
