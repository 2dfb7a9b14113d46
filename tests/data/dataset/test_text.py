"""Operations on texts, against what MindSpore 2.10 gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
import mspc.dataset as ds
from mspc.dataset import text
from mspc.ir.diagnostics import MspcError

V = text.Vocab.from_list(["w1", "w2", "w3"], special_tokens=["<pad>", "<unk>"])
W = text.Vocab.from_list(["fav", "##or", "##ite", "book", "my", "[UNK]", "我", "!", "he"])


def test_words_and_numbers(tmp_path: Path) -> None:
    assert V.vocab() == {"<pad>": 0, "<unk>": 1, "w1": 2, "w2": 3, "w3": 4}
    assert text.Vocab.from_list(["w1"], ["<unk>"], special_first=False).vocab() == {"w1": 0, "<unk>": 1}
    assert text.Vocab.from_dict({"a": 3, "b": 1}).vocab() == {"a": 3, "b": 1}
    assert (V.tokens_to_ids(["w1", "zz"]), V.tokens_to_ids("w2"), V.tokens_to_ids(np.array(["w1"]))) == ([2, -1], 3, 2)
    assert (V.ids_to_tokens([0, 2]), V.ids_to_tokens(3), V.ids_to_tokens(77)) == (["<pad>", "w1"], "w2", "")
    (tmp_path / "words.txt").write_text("x,1\ny,2\nz\n\n")
    assert text.Vocab.from_file(tmp_path / "words.txt", ",", None, ["<p>"]).vocab() == {
        "<p>": 0, "x": 1, "y": 2, "z": 3, "": 4
    }  # fmt: skip
    assert text.Vocab.from_file(tmp_path / "words.txt", ",", 2).vocab() == {"x": 0, "y": 1}
    rows = ds.NumpySlicesDataset({"t": [["b", "a", "c"], ["a", "b", "d"], ["a", "e", "e"]]}, shuffle=False)
    assert list(text.Vocab.from_dataset(rows, "t").vocab()) == ["a", "b", "e", "c", "d"]
    some = text.Vocab.from_dataset(rows, ["t"], freq_range=(2, None), top_k=2, special_tokens=["<pad>"])
    assert some.vocab() == {"<pad>": 0, "a": 1, "b": 2}


@pytest.mark.parametrize(("operation", "given", "expected"), [
    (text.Lookup(V, "<unk>"), [["w1", "w2"], ["w3", "q"]], np.array([[2, 3], [4, 1]], np.int32)),
    (text.Lookup(V, "<unk>", ms.int64), "w2", np.array(3, np.int64)),
    (text.ToNumber(ms.float32), ["1.5", "2"], np.array([1.5, 2], np.float32)),
    (text.ToNumber(ms.int32), "7", np.array(7, np.int32)),
    (text.SlidingWindow(2), ["a", "b", "c"], [["a", "b"], ["b", "c"]]),
    (text.SlidingWindow(5), ["a", "b"], []),
    (text.Truncate(2), ["a", "b", "c"], ["a", "b"]),
    (text.AddToken("T", False), ["a", "b"], ["a", "b", "T"]),
    (text.Ngram([1, 2], ("_", 1), ("$", 1), "-"), ["a", "b"], ["a", "b", "_-a", "a-b", "b-$"]),
    (text.Ngram(4), ["a", "b"], [""]),
    (text.WhitespaceTokenizer(), "  hi you\tthere ", ["hi", "you", "there"]),
    (text.WhitespaceTokenizer(), "  ", [""]),
    (text.UnicodeCharTokenizer(), "aé中", ["a", "é", "中"]),
    (text.RegexTokenizer("[ ,]", "[,]"), "a, b", ["a", ",", "b"]),
    (text.PythonTokenizer(str.split), "a b", ["a", "b"]),
    (text.CaseFold(), "HeLLo Ä", "hello ä"),
    (text.NormalizeUTF8(), "ﬁ", "fi"),
    (text.RegexReplace("a+", "X", False), "baab a", "bXb a"),
    (text.WordpieceTokenizer(W), ["my", "favorite", "zzz"], ["my", "fav", "##or", "##ite", "[UNK]"]),
    (text.WordpieceTokenizer(W, unknown_token=""), ["zzz", "book"], ["zzz", "book"]),
    (text.WordpieceTokenizer(W, max_bytes_per_token=4), ["favorite"], ["[UNK]"]),
    (text.BasicTokenizer(), "My Favorite 我爱book! [CLS]", ["My", "Favorite", "我", "爱", "book", "!", "[CLS]"]),
    (text.BasicTokenizer(True), "My Favoríte", ["my", "favorite"]),
    (text.BertTokenizer(W, lower_case=True), "My favorite 我爱book!",
     ["my", "fav", "##or", "##ite", "我", "[UNK]", "book", "!"]),
], ids=lambda value: type(value).__name__)  # fmt: skip
def test_a_text_and_a_column(operation: Any, given: Any, expected: Any) -> None:
    found, wanted = operation(given), np.asarray(expected)
    assert found.tolist() == wanted.tolist()
    assert not isinstance(expected, np.ndarray) or found.dtype == wanted.dtype
    data = ds.NumpySlicesDataset({"x": np.array([given, given])}, shuffle=False).map(operation)
    for (row,) in data.create_tuple_iterator(num_epochs=1, output_numpy=True):
        assert row.tolist() == wanted.tolist()


def test_pairs_and_bytes() -> None:
    first, second = text.TruncateSequencePair(4)(["a", "b", "c"], ["d", "e", "f"])
    assert (first.tolist(), second.tolist()) == (["a", "b"], ["d", "e"])
    assert text.to_str(text.to_bytes(np.array(["a", "bé"]))).tolist() == ["a", "bé"]


@pytest.mark.parametrize(("call", "message"), [
    (lambda: text.Vocab.from_list(["a", "a"]), "Vocab: word_list holds 'a' twice"),
    (lambda: text.Vocab.from_list(["a"], ["a"]), "Vocab: special_tokens and word_list both hold 'a'"),
    (lambda: text.Vocab.from_dict({"a": -1}), "Vocab.from_dict: the number of 'a' -1 must be at least 0"),
    (lambda: text.Vocab.from_file("none"), "Vocab.from_file: there is no file 'none'"),
    (lambda: text.Lookup(V)(["zz"]), "Lookup: 'zz' is not in the Vocab"),
    (lambda: text.Lookup(V, "no"), "Lookup: unknown_token 'no' is not in the Vocab"),
    (lambda: text.Lookup(V, "<unk>")(np.ones(2)), "Lookup: takes texts, not float64"),
    (lambda: text.ToNumber(ms.int8)(["300"]), "ToNumber: '300' is no number of int8"),
    (lambda: text.ToNumber(ms.int32)(["a"]), "ToNumber: 'a' is no number of int32"),
    (lambda: text.WhitespaceTokenizer(True), "WhitespaceTokenizer: with_offsets=True is not supported"),
    (lambda: text.WhitespaceTokenizer()(["a", "b"]), "WhitespaceTokenizer: takes one text, not 2 of shape (2,)"),
    (lambda: text.SlidingWindow(2, 1), "SlidingWindow: axis 1 must be 0: values have one dimension"),
    (lambda: text.RegexReplace("(", ""),
     "RegexReplace: '(' is no regular expression: missing ), unterminated subpattern at position 0"),
])  # fmt: skip
def test_what_does_not_fit(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(MspcError) as raised:
        call()
    assert raised.value.message == message
