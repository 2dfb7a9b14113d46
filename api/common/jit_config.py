"""`JitConfig` says how MindSpore would compile a network."""

from __future__ import annotations

from typing import Any

from mspc.api.setting_kind import checked
from mspc.api.settings import JIT_CONFIG


class JitConfig:
    """Options of a compile, for `Cell.set_jit_config` and `jit`. They are checked, and none changes anything, as a
    warning says of those that are not at their defaults.

    Raises:
        ValueError: an option is not known or has an impossible value. TypeError: a value of the wrong type.
    """

    def __init__(self, jit_level: str = "", exc_mode: str = "auto", jit_syntax_level: str = "", **options: Any) -> None:
        given = {"jit_level": jit_level, "exc_mode": exc_mode, "jit_syntax_level": jit_syntax_level, **options}
        self.jit_config_dict = checked("JitConfig", JIT_CONFIG, given)
