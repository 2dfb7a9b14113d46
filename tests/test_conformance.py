"""MindSpore's own answers: the same networks through mspc obey the same strategies and send no more bytes.

The cases lie beside the checkout and are no part of it; where they are missing these tests are skipped.
"""

import re
import shlex
import sys
from pathlib import Path

import pytest

from tests.serving import SERVED, run_process

CASES = (
    "deep_propagate", "data_parallel", "matmul_transpose_b", "quickstart_auto", "quickstart_semi",
    "redistribute_00", "redistribute_01", "redistribute_03", "redistribute_04", "redistribute_06",
    "redistribute_08", "redistribute_11", "redistribute_12", "redistribute_15", "reduce_max",
    "reduce_sum", "repeated_16", "semi_full_batch", "embedding_vocab", "layout_mlp", "loss_expanded",
    "operator_parallel_mlp", "optimizer_parallel", "reshape_0", "reshape_2", "slice_concat", "softmax_layernorm",
    "transformer_propagate", "transformer_semi", "conv_auto", "conv_semi", "mlp_recursive_programming",
    "transformer_dynamic_programming",
)  # fmt: skip


@pytest.fixture(scope="module")
def answers(conformance: Path) -> dict[str, str]:
    """The verdicts of compare.py on every case, and its closing line on bytes under "mean"."""
    done = run_process(sys.executable, str(conformance / "compare.py"), "--mspc", shlex.join(SERVED), *CASES)
    lines = done.stdout.splitlines()
    found = {line.split()[0]: line for line in lines if line}
    found["mean"] = next((line for line in lines if line.startswith("geometric mean")), done.stderr)
    return found


@pytest.mark.parametrize("case", CASES)
def test_case_agrees_with_mindspore(case: str, answers: dict[str, str]) -> None:
    assert answers[case].endswith("  ok"), answers[case]


def test_bytes_are_well_below_mindspores(answers: dict[str, str]) -> None:
    """The remaining bytes are gradients to reduce and outputs to gather, which nobody can avoid."""
    found = re.match(r"geometric mean of bytes beside MindSpore: (\S+) over (\d+) cases", answers["mean"])
    assert found is not None, answers["mean"]
    assert float(found[1]) <= 0.77
    assert int(found[2]) == len(CASES)


def test_list_of_cases_is_complete(conformance: Path) -> None:
    assert {path.stem for path in (conformance / "cases").glob("*.py")} == set(CASES)
