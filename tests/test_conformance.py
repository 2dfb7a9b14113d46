"""MindSpore's own answers: the same networks through mspc obey the same strategies and send no more bytes.

The cases lie beside the checkout and are no part of it; where they are missing these tests are skipped.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

CASES = (
    "deep_propagate", "data_parallel", "matmul_transpose_b", "quickstart_auto", "quickstart_semi",
    "redistribute_00", "redistribute_01", "redistribute_03", "redistribute_04", "redistribute_06",
    "redistribute_08", "redistribute_11", "redistribute_12", "redistribute_15", "reduce_max",
    "reduce_sum", "repeated_16", "semi_full_batch",
)  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_case_agrees_with_mindspore(case: str, conformance: Path) -> None:
    command = f"{sys.executable} -m mspc"
    compare = [sys.executable, str(conformance / "compare.py"), "--mspc", command, case]
    done = subprocess.run(compare, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


def test_list_of_cases_is_complete(conformance: Path) -> None:
    patterns = ("quickstart_*", "semi_*", "repeated_*", "matmul_*", "redistribute_*", "reduce_*")
    found = {path.stem for pattern in patterns for path in (conformance / "cases").glob(f"{pattern}.py")}
    assert found | {"deep_propagate", "data_parallel"} == set(CASES)
