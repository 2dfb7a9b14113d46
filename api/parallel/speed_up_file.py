"""Files of options for large networks, as `AutoParallel.transformer_opt` takes them: JSON with an object in it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.settings import missing_file


def options_of_file(shown: str, path: str) -> dict[str, Any]:
    """The options in a file, by name. shown: the call that names it.

    Raises:
        ValueError: there is no such file, or it is no JSON. TypeError: there is something else in it.
    """
    refused = missing_file(path)
    if refused:
        raise ApiValueError(f"{shown}: {refused}")
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:
        raise ApiValueError(f"{shown}: the file is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ApiTypeError(
            f"{shown}: the file must hold an object, not {type(found).__name__}",
            ['write {"computation_communication_fusion_level": 3}'],
        )
    return found
