"""A vocabulary has words and their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.row_values import flag, integer, names_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.regular import check_regular


class Vocab:
    """Numbers of words. Made by `from_list`, `from_dict`, `from_file` and `from_dataset`."""

    def __init__(self, numbers: Mapping[str, int] | None = None) -> None:
        self._numbers = dict(numbers or {})
        self._words = {number: word for word, number in self._numbers.items()}

    @classmethod
    def from_list(cls, word_list: Any, special_tokens: Any = None, special_first: bool = True) -> Vocab:
        """Words numbered from 0 as they stand, special ones before the others or behind them. Raises ValueError for a
        word that comes twice."""
        words, special = _words("word_list", word_list), _words("special_tokens", special_tokens or [])
        both = sorted({*words} & {*special})
        if both:
            raise ApiValueError(f"Vocab: special_tokens and word_list both hold {both[0]!r}")
        first = flag("Vocab", "special_first", special_first)
        return cls({word: i for i, word in enumerate([*special, *words] if first else [*words, *special])})

    @classmethod
    def from_dict(cls, word_dict: Mapping[str, int]) -> Vocab:
        """Words with the numbers given."""
        if not isinstance(word_dict, Mapping):
            raise ApiTypeError(f"Vocab.from_dict: word_dict must be a dict, not {type(word_dict).__name__}")
        words = _words("word_dict", list(word_dict))
        return cls({word: integer("Vocab.from_dict", f"the number of {word!r}", word_dict[word], 0) for word in words})

    @classmethod
    def from_file(
        cls, file_path: Any, delimiter: str = "", vocab_size: int | None = None, special_tokens: Any = None,
        special_first: bool = True,
    ) -> Vocab:  # fmt: skip
        """The first word of every line, up to the delimiter, of the first `vocab_size` lines."""
        path = Path(file_path)
        try:
            check_regular(path)
            lines = path.read_text("utf-8").splitlines()
        except FileNotFoundError:
            raise MspcError(f"Vocab.from_file: there is no file {str(path)!r}") from None
        except (OSError, ValueError) as error:
            raise MspcError(f"Vocab.from_file: {str(path)!r} cannot be read: {error}") from None
        most = len(lines) if vocab_size is None else integer("Vocab.from_file", "vocab_size", vocab_size)
        words = [line.split(delimiter, 1)[0] if delimiter else line for line in lines[:most]]
        return cls.from_list(words, special_tokens, special_first)

    @classmethod
    def from_dataset(
        cls, dataset: Any, columns: Any = None, freq_range: Any = None, top_k: int | None = None,
        special_tokens: Any = None, special_first: bool = True,
    ) -> Vocab:  # fmt: skip
        """The words of columns of texts, the most frequent first and those of one frequency in their order: those that
        come as often as freq_range, (least, most) or None for any, says, and `top_k` of these at most."""
        names = dataset.get_col_names() if columns is None else names_of("Vocab.from_dataset", "columns", columns)
        counts: Counter[str] = Counter()
        for row in dataset.create_dict_iterator(num_epochs=1, output_numpy=True):
            for name in names:
                if name not in row:
                    raise ApiValueError(f"Vocab.from_dataset: there is no column {name!r}")
                if row[name].dtype.kind not in "US":
                    raise ApiTypeError(f"Vocab.from_dataset: column {name!r} holds {row[name].dtype}, not texts")
                counts.update(row[name].astype(str).reshape(-1).tolist())
        least, most = (None, None) if freq_range is None else freq_range
        least, most = least or 0, counts.total() if most is None else most
        inside = [word for word, count in counts.items() if least <= count <= most]
        words = sorted(inside, key=lambda word: (-counts[word], word))
        words = words if top_k is None else words[: integer("Vocab.from_dataset", "top_k", top_k)]
        return cls.from_list(words, special_tokens, special_first)

    def vocab(self) -> dict[str, int]:
        """The number of every word."""
        return dict(self._numbers)

    def tokens_to_ids(self, tokens: Any) -> Any:
        """The number of a word, or of each of a list; -1 for one that is not there."""
        found = [self._numbers.get(word, -1) for word in _texts("tokens", tokens)]
        return found[0] if isinstance(tokens, str) or len(found) == 1 else found

    def ids_to_tokens(self, ids: Any) -> Any:
        """The word of a number, or of each of a list; an empty one where there is none."""
        given = ids.asnumpy() if isinstance(ids, Tensor) else ids
        one = isinstance(given, int | np.integer)
        numbers = [given] if one else list(given)
        found = [self._words.get(integer("Vocab.ids_to_tokens", "a number", number, 0), "") for number in numbers]
        return found[0] if one else found

    def number(self, word: str) -> int | None:
        """The number of a word, None for one that is not there."""
        return self._numbers.get(word)

    def __contains__(self, word: str) -> bool:
        return word in self._numbers


def _words(what: str, words: Any) -> list[str]:
    if not isinstance(words, list | tuple) or not all(isinstance(word, str) for word in words):
        raise ApiTypeError(f"Vocab: {what} must be a list of strings, not {words!r}")
    twice = next((word for word, count in Counter(words).items() if count > 1), None)
    if twice is not None:
        raise ApiValueError(f"Vocab: {what} holds {twice!r} twice")
    return list(words)


def _texts(what: str, given: Any) -> Iterable[str]:
    if isinstance(given, str):
        return [given]
    values = given.tolist() if isinstance(given, np.ndarray) else given
    if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
        raise ApiTypeError(f"Vocab.tokens_to_ids: {what} must be a string or a list of strings, not {given!r}")
    return values
