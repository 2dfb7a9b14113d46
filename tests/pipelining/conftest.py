"""Compiles of these tests infer the type of every node again after every pass, as those of tests/passes."""

from tests.passes.conftest import inferred_types as inferred_types
