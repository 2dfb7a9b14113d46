"""`mindspore.dataset.text`: operations on texts, which split them into tokens and look up the numbers of words."""

from __future__ import annotations

from mspc.api.members import Listed

_members = Listed(
    __name__,
    {
        "tokenizers": (
            "BasicTokenizer BertTokenizer CaseFold NormalizeForm NormalizeUTF8 PythonTokenizer RegexReplace "
            "RegexTokenizer UnicodeCharTokenizer WhitespaceTokenizer WordpieceTokenizer to_bytes to_str"
        ),
        "tokens": "AddToken Lookup Ngram SlidingWindow ToNumber Truncate TruncateSequencePair",
        "vocab": "Vocab",
    },
)
__getattr__ = _members.find
__dir__ = _members.names
