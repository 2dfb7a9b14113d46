"""The text is that of `json.dumps(content, indent=1)`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from mspc.ir.files.parsing import indented

TEXTS = st.text(max_size=8)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXTS
CONTENTS = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(TEXTS, inner, max_size=5) | st.tuples(inner),
    max_leaves=25,
)


@settings(deadline=None, max_examples=30)
@given(CONTENTS)
def test_the_text_is_that_of_json(content: Any) -> None:
    assert indented(content) == json.dumps(content, indent=1)
