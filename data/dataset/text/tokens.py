"""These operations work on lists of tokens: numbers of words, windows, parts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation, as_array
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import flag, integer
from mspc.data.dataset.text.vocab import Vocab
from mspc.ir.types import INT32, dtype_of


def require_texts(operation: str, value: np.ndarray) -> None:
    """Raises TypeError for an array of numbers."""
    if value.dtype.kind not in "US":
        raise ApiTypeError(f"{operation}: takes texts, not {value.dtype}")


class Lookup(EachOperation):
    """The number that a Vocab has for every word, that of unknown_token for others. data_type: of the numbers. Raises
    ValueError for a word that is not there, without an unknown_token."""

    def __init__(self, vocab: Vocab, unknown_token: str | None = None, data_type: Any = INT32) -> None:
        if not isinstance(vocab, Vocab):
            raise ApiTypeError(f"Lookup: vocab must be a Vocab, not {type(vocab).__name__}")
        if unknown_token is not None and unknown_token not in vocab:
            raise ApiValueError(f"Lookup: unknown_token {unknown_token!r} is not in the Vocab")
        self.vocab = vocab
        self.unknown = None if unknown_token is None else vocab.number(unknown_token)
        self.kind = dtype_of(data_type).numpy

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts("Lookup", value)
        found: list[int] = []
        for word in value.astype(str).reshape(-1).tolist():
            number = self.vocab.number(word)
            number = self.unknown if number is None else number
            if number is None:
                raise ApiValueError(f"Lookup: {word!r} is not in the Vocab", ["give unknown_token"])
            found.append(number)
        return np.array(found, self.kind).reshape(value.shape)


class ToNumber(EachOperation):
    """Texts as numbers. Raises ValueError for one that is none, or that the type does not hold."""

    def __init__(self, data_type: Any) -> None:
        self.kind = np.dtype(dtype_of(data_type).numpy)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts("ToNumber", value)
        are_integers = self.kind.kind in "iu"
        found: list[int | float] = []
        for word in value.astype(str).reshape(-1).tolist():
            try:
                number = int(word) if are_integers else float(word)
            except ValueError:
                raise ApiValueError(f"ToNumber: {word!r} is no number of {self.kind}") from None
            if are_integers and not np.iinfo(self.kind).min <= number <= np.iinfo(self.kind).max:
                raise ApiValueError(f"ToNumber: {word!r} is no number of {self.kind}")
            found.append(number)
        return np.array(found, self.kind).reshape(value.shape)


class SlidingWindow(EachOperation):
    """[places, width]: the windows of a vector; nothing where it is shorter. axis: 0."""

    def __init__(self, width: int, axis: int = 0) -> None:
        if axis not in (0, -1):
            raise ApiValueError(f"SlidingWindow: axis {axis!r} must be 0: values have one dimension")
        self.width = integer("SlidingWindow", "width", width)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        if value.ndim != 1:
            raise ApiValueError(f"SlidingWindow: takes values of one dimension, not of shape {value.shape}")
        if len(value) < self.width:
            return value[:0]
        return np.lib.stride_tricks.sliding_window_view(value, self.width).copy()


class Truncate(EachOperation):
    """The first max_seq_len elements."""

    def __init__(self, max_seq_len: int) -> None:
        self.most = integer("Truncate", "max_seq_len", max_seq_len)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        return value[: self.most]


class TruncateSequencePair:
    """Two columns without their last elements, each time one of the longer, until both together have max_length."""

    def __init__(self, max_length: int) -> None:
        self.most = integer("TruncateSequencePair", "max_length", max_length)

    def __call__(self, *values: Any) -> tuple[np.ndarray, np.ndarray]:
        if len(values) != 2:
            raise ApiTypeError(f"TruncateSequencePair: takes two columns, not {len(values)}")
        first, second = (as_array("TruncateSequencePair", value) for value in values)
        one, other = len(first), len(second)
        while one + other > self.most:
            if one > other:
                one -= 1
            else:
                other -= 1
        return first[:one], second[:other]


class AddToken(EachOperation):
    """A token before all others, or behind them."""

    def __init__(self, token: str, begin: bool = True) -> None:
        if not isinstance(token, str):
            raise ApiTypeError(f"AddToken: token must be a string, not {token!r}")
        self.token, self.begin = token, flag("AddToken", "begin", begin)

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts("AddToken", value)
        words = value.astype(str).tolist()
        return np.array([self.token, *words] if self.begin else [*words, self.token])


class Ngram(EachOperation):
    """Runs of `n` tokens, or of each number of a list, joined by the separator. left_pad, right_pad: (a token, how
    often it is at most before the first or behind the last). An empty text where there is no run."""

    def __init__(
        self, n: int | Sequence[int], left_pad: tuple[str, int] = ("", 0), right_pad: tuple[str, int] = ("", 0),
        separator: str = " ",
    ) -> None:  # fmt: skip
        self.sizes = [integer("Ngram", "n", size) for size in (n if isinstance(n, list | tuple) else [n])]
        self.pads = [(str(token), integer("Ngram", "a pad", count, 0)) for token, count in (left_pad, right_pad)]
        self.separator = separator

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts("Ngram", value)
        found: list[str] = []
        for size in self.sizes:
            (left, before), (right, after) = self.pads
            words = [left] * min(before, size - 1) + value.astype(str).tolist() + [right] * min(after, size - 1)
            runs = [self.separator.join(words[i : i + size]) for i in range(len(words) - size + 1)]
            found += runs or [""]
        return np.array(found)
