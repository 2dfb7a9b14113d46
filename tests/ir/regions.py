"""Texts whose nodes run graphs, for tests."""

from pathlib import Path

from tests.texts import text_of

TEXTS = Path(__file__).with_name("regions.ir")

LOOP = text_of(TEXTS, "loop")

PROGRAM = text_of(TEXTS, "program")
"""One of each operator that runs graphs, as docs/reference/ir-regions.md shows them."""
