"""A schema says which columns records have: names, element types and shapes, in Python or in a file of JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.row_values import integer
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular
from mspc.ir.types import dtype_of

TEXT = "string"


class Schema:
    """Columns of records.

    Args:
        schema_file: a file of JSON with "columns", a dict of names or a list of dicts, each with "type" and, unless
            the shape is whatever it is, "shape"; and perhaps "numRows" and "datasetType".

    Raises:
        MspcError: the file is missing, or no such text. TypeError, ValueError: a column is of the wrong kind.
    """

    def __init__(self, schema_file: Any = None) -> None:
        self.columns: list[dict[str, Any]] = []
        self.num_rows: int | None = None
        self.dataset_type = ""
        if schema_file is not None:
            self.from_json(_read(Path(schema_file)))

    def add_column(self, name: str, de_type: Any, shape: Sequence[int] | None = None) -> None:
        """One more column. de_type: an element type, its name, or "string". shape: None for one dimension of any size,
        [] for a number; one size may be -1."""
        if not isinstance(name, str) or not name:
            raise ApiTypeError(f"Schema.add_column: name must be a string, not {name!r}")
        if any(column["name"] == name for column in self.columns):
            raise ApiValueError(f"Schema.add_column: there is a column {name!r} already")
        column: dict[str, Any] = {"name": name, "type": _type_name(de_type)}
        if shape is not None:
            if not isinstance(shape, list | tuple):
                raise ApiTypeError(f"Schema.add_column: shape must be a list of integers, not {shape!r}")
            sizes = [integer("Schema.add_column", "a size", size, -1) for size in shape]
            if sizes.count(-1) > 1:
                raise ApiValueError(f"Schema.add_column: shape {sizes} leaves more than one size open")
            column["shape"] = sizes
        self.columns.append(column)

    def parse_columns(self, columns: Any) -> None:
        """Columns in place of those so far: a list of dicts with "name" and "type", or a dict of names; "rank" alone
        says how many dimensions of any size there are."""
        if isinstance(columns, Mapping):
            columns = [{**_entry(column), "name": name} for name, column in columns.items()]
        if not isinstance(columns, list | tuple):
            raise ApiTypeError(f"Schema: columns must be a list or a dict, not {type(columns).__name__}")
        self.columns = []
        for column in map(_entry, columns):
            unknown = column.keys() - {"name", "type", "shape", "rank", "t_impl"}
            missing = {"name", "type"} - column.keys()
            if unknown or missing:
                what = f"an entry {sorted(unknown)[0]!r}" if unknown else f"no {sorted(missing)[0]!r}"
                raise ApiValueError(f"Schema: a column has {what}; it takes name, type, shape and rank")
            shape = column.get("shape", [] if column.get("rank") == 0 else None)
            self.add_column(column["name"], column["type"], shape)

    def from_json(self, json_obj: Mapping[str, Any]) -> None:
        """What a dict of JSON says."""
        if not isinstance(json_obj, Mapping) or "columns" not in json_obj:
            raise ApiValueError("Schema: there are no columns")
        rows = json_obj.get("numRows")
        self.num_rows = None if rows is None else integer("Schema", "numRows", rows, 0)
        self.dataset_type = str(json_obj.get("datasetType", ""))
        self.parse_columns(json_obj["columns"])

    def to_json(self) -> str:
        """The schema as text."""
        columns = [{**column, "rank": len(column.get("shape", [0]))} for column in self.columns]
        said: dict[str, Any] = {"columns": columns}
        if self.dataset_type:
            said["datasetType"] = self.dataset_type
        if self.num_rows is not None:
            said["numRows"] = self.num_rows
        return json.dumps(said, indent=2, sort_keys=True)

    def __str__(self) -> str:
        return self.to_json()


def element_type(column: Mapping[str, Any]) -> np.dtype[Any] | None:
    """The element type of a column; None for texts."""
    return None if column["type"] == TEXT else np.dtype(dtype_of(column["type"]).numpy)


def _entry(column: Any) -> dict[str, Any]:
    if not isinstance(column, Mapping):
        raise ApiTypeError(f"Schema: a column must be a dict, not {column!r}")
    return dict(column)


def _type_name(given: Any) -> str:
    return TEXT if given in (TEXT, str) else np.dtype(dtype_of(given).numpy).name


def _read(path: Path) -> Any:
    try:
        check_regular(path)
        return json.loads(path.read_text())
    except FileNotFoundError:
        raise MspcError(f"Schema: there is no file {str(path)!r}") from None
    except (OSError, ValueError) as error:
        raise MspcError(f"Schema: {str(path)!r} is no JSON: {error}") from None
