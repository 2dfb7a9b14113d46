"""Keys of encrypted records are refused, as AES needs a library that mspc does not bring."""

from __future__ import annotations

from typing import Any

from mspc.api.errors import ApiValueError

_NOTE = "write and read the records as they are, and encrypt the files with a program of their own"


def set_enc_key(enc_key: Any) -> None:
    """None is the only key. Raises ValueError for any other."""
    if enc_key is not None:
        raise ApiValueError("set_enc_key: records are not encrypted", [_NOTE])


def set_enc_mode(enc_mode: Any = "AES-GCM") -> None:
    """Raises ValueError but for the default."""
    _check_mode("set_enc_mode", enc_mode)


def set_dec_mode(dec_mode: Any = "AES-GCM") -> None:
    """Raises ValueError but for the default, or None."""
    if dec_mode is not None:
        _check_mode("set_dec_mode", dec_mode)


def _check_mode(function: str, mode: Any) -> None:
    if mode != "AES-GCM":
        raise ApiValueError(f"{function}: records are not encrypted, so there is no mode {mode!r}", [_NOTE])
