"""These operations split texts into tokens, or change a text as one."""

from __future__ import annotations

import enum
import re
import unicodedata
from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.data.dataset.operation import EachOperation
from mspc.data.dataset.pipeline_random import PipelineDraws
from mspc.data.dataset.row_values import flag, integer
from mspc.data.dataset.text.tokens import require_texts
from mspc.data.dataset.text.vocab import Vocab


class NormalizeForm(enum.Enum):
    """Forms of Unicode."""

    NONE = ""
    NFC = "NFC"
    NFKC = "NFKC"
    NFD = "NFD"
    NFKD = "NFKD"


class _Tokenizer(EachOperation):
    """Takes one text; an empty one where there is no token."""

    def __init__(self, with_offsets: bool = False) -> None:
        if flag(type(self).__name__, "with_offsets", with_offsets):
            raise ApiValueError(f"{type(self).__name__}: with_offsets=True is not supported")

    def tokens(self, text: str) -> list[str]:
        raise NotImplementedError

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        name = type(self).__name__
        require_texts(name, value)
        if value.ndim:
            raise ApiValueError(f"{name}: takes one text, not {value.size} of shape {value.shape}")
        return np.array(self.tokens(value.astype(str).item()) or [""])


class _Changed(EachOperation):
    """Texts, each changed by itself."""

    def changed(self, text: str) -> str:
        raise NotImplementedError

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts(type(self).__name__, value)
        return np.array([self.changed(text) for text in value.astype(str).reshape(-1).tolist()]).reshape(value.shape)


class WhitespaceTokenizer(_Tokenizer):
    """What is between spaces."""

    def tokens(self, text: str) -> list[str]:
        return text.split()


class UnicodeCharTokenizer(_Tokenizer):
    """The characters."""

    def tokens(self, text: str) -> list[str]:
        return list(text)


class RegexTokenizer(_Tokenizer):
    """What is between matches of delim_pattern, and the matches that keep_delim_pattern matches entirely."""

    def __init__(self, delim_pattern: str, keep_delim_pattern: str = "", with_offsets: bool = False) -> None:
        super().__init__(with_offsets)
        self.delimiter, self.keep_pattern = _pattern("RegexTokenizer", delim_pattern), keep_delim_pattern
        self.keeps = _pattern("RegexTokenizer", keep_delim_pattern)

    def tokens(self, text: str) -> list[str]:
        found: list[str] = []
        at = 0
        for match in self.delimiter.finditer(text):
            delimiters = [match.group()] if self.keep_pattern and self.keeps.fullmatch(match.group()) else []
            found += [text[at : match.start()], *delimiters]
            at = match.end()
        return [token for token in (*found, text[at:]) if token]


class PythonTokenizer(EachOperation):
    """The tokens that a function of the script gives for a text."""

    def __init__(self, tokenizer: Callable[[str], Any]) -> None:
        if not callable(tokenizer):
            raise ApiTypeError(f"PythonTokenizer: tokenizer must be a function, not {tokenizer!r}")
        self.tokenizer = tokenizer

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts("PythonTokenizer", value)
        return np.array(self.tokenizer(value.astype(str).item()))


class WordpieceTokenizer(EachOperation):
    """Every token as the longest words of a Vocab that it is made of, those behind the first with the indicator before
    them; unknown_token for one that is not, or has more bytes than max_bytes_per_token; as it is without one."""

    def __init__(
        self, vocab: Vocab, suffix_indicator: str = "##", max_bytes_per_token: int = 100,
        unknown_token: str = "[UNK]", with_offsets: bool = False,
    ) -> None:  # fmt: skip
        name = type(self).__name__
        if not isinstance(vocab, Vocab):
            raise ApiTypeError(f"{name}: vocab must be a Vocab, not {type(vocab).__name__}")
        if flag(name, "with_offsets", with_offsets):
            raise ApiValueError(f"{name}: with_offsets=True is not supported")
        self.vocab, self.indicator, self.unknown = vocab, suffix_indicator, unknown_token
        self.most = integer(name, "max_bytes_per_token", max_bytes_per_token, 0)

    def pieces(self, token: str) -> list[str]:
        found: list[str] = []
        at = 0
        while at < len(token) and len(token.encode()) <= self.most:
            before = self.indicator if at else ""
            end = next((e for e in range(len(token), at, -1) if before + token[at:e] in self.vocab), None)
            if end is None:
                break
            found.append(before + token[at:end])
            at = end
        return found if at == len(token) else [self.unknown or token]

    def single(self, value: np.ndarray, draws: PipelineDraws) -> np.ndarray:
        require_texts(type(self).__name__, value)
        words = value.astype(str).reshape(-1).tolist()
        return np.array([piece for word in words for piece in self.pieces(word)] or [""])


class BasicTokenizer(_Tokenizer):
    """Words, signs of punctuation and characters of Chinese, each by itself. lower_case: in lower case, without
    accents. keep_whitespace: spaces are tokens, too. preserve_unused_token: [CLS], [SEP], [UNK], [PAD], [MASK] and
    [unused1] stay whole."""

    def __init__(
        self, lower_case: bool = False, keep_whitespace: bool = False,
        normalization_form: NormalizeForm = NormalizeForm.NONE, preserve_unused_token: bool = True,
        with_offsets: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(with_offsets)
        name = type(self).__name__
        self.lower, self.spaces = flag(name, "lower_case", lower_case), flag(name, "keep_whitespace", keep_whitespace)
        self.form = _form(name, normalization_form)
        self.preserves_unused = flag(name, "preserve_unused_token", preserve_unused_token)

    def tokens(self, text: str) -> list[str]:
        parts = _SPECIAL.split(text) if self.preserves_unused else [text]
        found: list[str] = []
        for i, part in enumerate(parts):
            found += [part] if i % 2 else self._plain(part)
        return found

    def _plain(self, text: str) -> list[str]:
        if self.lower:
            text = unicodedata.normalize("NFD", text.casefold())
            text = "".join(c for c in text if unicodedata.category(c) != "Mn")
        elif self.form:
            text = unicodedata.normalize(self.form, text)
        pieces = re.split("(\0| )", "".join(map(_set_apart, text)))
        return [piece for piece in pieces if piece not in ("", "\0") and (self.spaces or piece != " ")]


class BertTokenizer(BasicTokenizer):
    """`BasicTokenizer`, and `WordpieceTokenizer` of what it gives."""

    def __init__(
        self, vocab: Vocab, suffix_indicator: str = "##", max_bytes_per_token: int = 100,
        unknown_token: str = "[UNK]", lower_case: bool = False, keep_whitespace: bool = False,
        normalization_form: NormalizeForm = NormalizeForm.NONE, preserve_unused_token: bool = True,
        with_offsets: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(lower_case, keep_whitespace, normalization_form, preserve_unused_token, with_offsets)
        self.words = WordpieceTokenizer(vocab, suffix_indicator, max_bytes_per_token, unknown_token)

    def tokens(self, text: str) -> list[str]:
        return [piece for token in super().tokens(text) for piece in self.words.pieces(token)]


class CaseFold(_Changed):
    """Texts in lower case."""

    def changed(self, text: str) -> str:
        return text.casefold()


class NormalizeUTF8(_Changed):
    """Texts in a form of Unicode."""

    def __init__(self, normalize_form: NormalizeForm = NormalizeForm.NFKC) -> None:
        self.form = _form("NormalizeUTF8", normalize_form)

    def changed(self, text: str) -> str:
        return unicodedata.normalize(self.form, text) if self.form else text


class RegexReplace(_Changed):
    """Texts with what a pattern matches replaced, everywhere or at the first place."""

    def __init__(self, pattern: str, replace: str, replace_all: bool = True) -> None:
        self.pattern, self.by = _pattern("RegexReplace", pattern), replace
        self.most = 0 if flag("RegexReplace", "replace_all", replace_all) else 1

    def changed(self, text: str) -> str:
        return self.pattern.sub(self.by, text, self.most)


_SPECIAL = re.compile(r"(\[(?:CLS|SEP|UNK|PAD|MASK|unused\d+)\])")
_CHINESE = (
    (0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2A6DF), (0x2A700, 0x2B73F), (0x2B740, 0x2B81F),
    (0x2B820, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F),
)  # fmt: skip


def _set_apart(character: str) -> str:
    if character.isspace():
        return " "
    if unicodedata.category(character) in ("Cc", "Cf"):
        return ""
    return f"\0{character}\0" if _stands_alone(character) else character


def _stands_alone(character: str) -> bool:
    if unicodedata.category(character).startswith("P") or character in "$+<=>^`|~":
        return True
    return any(first <= ord(character) <= last for first, last in _CHINESE)


def _pattern(name: str, pattern: Any) -> re.Pattern[str]:
    if not isinstance(pattern, str):
        raise ApiTypeError(f"{name}: a pattern must be a string, not {pattern!r}")
    try:
        return re.compile(pattern)
    except re.error as error:
        raise ApiValueError(f"{name}: {pattern!r} is no regular expression: {error}") from None


def _form(name: str, form: Any) -> Any:
    if not isinstance(form, NormalizeForm):
        raise ApiTypeError(f"{name}: a form must be one of NormalizeForm, not {form!r}")
    return form.value


def to_str(array: Any, encoding: str = "utf8") -> np.ndarray:
    """An array of bytes as texts."""
    return np.char.decode(np.asarray(array), encoding)


def to_bytes(array: Any, encoding: str = "utf8") -> np.ndarray:
    """An array of texts as bytes."""
    return np.char.encode(np.asarray(array), encoding)
