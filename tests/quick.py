"""The tests of `pytest -m quick`: the first case of every test, in the files that start no processes, ask for no
PyTorch and are not slow.

The rule needs no marks in files, so that a new test joins by itself; one that takes longer than `LIMIT` seconds of a
core is put into `SLOW`. `tests/test_quick.py` says which folder would be left without any.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

LIMIT = 0.5
FOLDER = Path(__file__).resolve().parent
STARTS = re.compile(r"\b(?:subprocess|SERVED|find_mpirun|torch|JUDGES)\b")
"""In the text of a file: its tests start processes, or load PyTorch, either of which takes seconds."""
ALSO = frozenset(
    (
        "engine/ranks/test_launching.py",
        "oracle/test_activations.py",
        "output/stablehlo/test_modules.py",
        "verify/test_comparison.py",
    )
)
"""Files of which that does not hold, or which stand for their folders."""
SLOW = frozenset(
    """
    analysis/test_counted_bytes.py
    mindspore_api/common/test_bad_arguments.py mindspore_api/common/test_sharded_functions.py
    mindspore_api/common/test_unread_arguments.py
    mindspore_api/dataset/test_workers.py mindspore_api/nn/test_sharded_optimizers.py
    mindspore_api/test_notebook.py mindspore_api/train/test_tutorial_loss.py
    checkpoint/test_sets.py
    checkpoint/test_resuming.py checkpoint/test_strategies.py
    commands/test_check.py commands/test_damaged_dumps.py commands/test_diff.py commands/test_long_output.py
    commands/test_search_memory.py commands/test_search_of_modules.py commands/test_search_questions.py
    commands/test_search_recompute.py commands/test_search_rows.py commands/test_setting_places.py
    commands/test_verify_folder.py commands/test_verify_mpi.py commands/test_verify_planted.py
    commands/test_verify_global_batch.py commands/view/test_view_command.py
    compiler/frontend/test_frontend_indices.py compiler/test_images_on_ranks.py
    compiler/test_own_gradients.py compiler/test_parallel_features.py compiler/test_parallel_transformer.py
    compiler/test_public_networks.py compiler/test_rank_kinds.py compiler/test_vision_networks.py
    doctor/test_reach_and_bounds.py
    search/calibration/test_calibration.py plans/test_strategies_in_files.py engine/test_parameter_store.py
    experts/test_every_operator_configured.py experts/test_exchanged_rows.py experts/test_random_experts.py
    experts/test_training.py oracle/test_expert_losses.py
    engine/test_model_on_ranks.py search/plans/test_limited_plans.py search/plans/test_plan_files.py
    gpu/test_gpu_executor.py gpu/test_peers.py gpu/test_ranks.py gpu/test_shadow_weights_gpu.py
    ir/test_layout.py ir/test_mindspore_dumps.py ir/text/test_text_limits.py
    ops/collective/test_halo.py ops/cuda/test_cuda_images.py ops/fused/test_fused_elementwise.py
    ops/fused/test_update_copies.py ops/nn/test_attention.py ops/test_all_finite.py ops/test_hard_values.py
    pipelining/test_dropped_micro_batches.py pipelining/test_micro_batch_memory.py
    pipelining/test_random_pipelines.py pipelining/test_schedules_bit_for_bit.py
    passes/communication/test_schedule_communication.py passes/fusion/test_channels_last.py
    passes/fusion/test_fuse_attention.py passes/fusion/test_fuse_elementwise.py passes/fusion/test_pack_attention.py
    search/plans/test_stated_gaps.py
    search/layouts/test_cheapest.py passes/sharding/test_bytes.py
    pipelining/test_schedule_faults.py
    runtime/faults/test_pauses.py runtime/test_memory_plan.py
    samples/test_resnet_on_ranks.py samples/test_transformer.py
    test_grouped.py test_house.py test_layering.py test_planted_errors.py
""".split()
)
"""Files with a test whose first case is slow; in `test_grouped.py` one test looks at all cases of another."""


@cache
def is_quick(file: Path) -> bool:
    """Whether the first cases of a file's tests are among the quick ones."""
    name = file.relative_to(FOLDER).as_posix()
    return name in ALSO or (name not in SLOW and not STARTS.search(file.read_text(encoding="utf-8")))


def is_first_case(item: pytest.Item) -> bool:
    """Whether a test has no cases, or this is the first of them."""
    case = getattr(item, "callspec", None)
    return case is None or not any(case.indices.values())
