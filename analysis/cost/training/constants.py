"""Constants of the estimates of training runs. Their values and sources are in `constants.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mspc.analysis.cost.training.model_shape import TrainingRun

_ENTRIES: Mapping[str, Mapping[str, Any]] = tomllib.loads(
    Path(__file__).with_name("constants.toml").read_text(encoding="utf-8")
)
VALUES: Mapping[str, Any] = {name: entry["value"] for name, entry in _ENTRIES.items()}


def assumptions(run: TrainingRun) -> list[str]:
    """Return descriptions of the values in the estimate of a run that no measurement supports."""
    found = (entry for entry in _ENTRIES.values() if "assumed" in entry)
    return [entry["assumed"] for entry in found if getattr(run, entry.get("only", "ranks")) > 1 or "only" not in entry]
