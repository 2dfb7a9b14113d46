"""The text is that of `json.dumps(content, indent=1)`."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mspc.ir.files.parsing import indented

LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()
CONTENTS = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner))


@given(CONTENTS)
def test_the_text_is_that_of_json(content: Any) -> None:
    assert indented(content) == json.dumps(content, indent=1)
