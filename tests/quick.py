"""The tests of `pytest -m quick`: the first case of every test that starts no process, asks for no PyTorch and is not
slow.

The rule needs no marks in files, so that a new test joins by itself; one that takes longer than `LIMIT` seconds of a
core is put into `SLOW`. `tests/test_quick.py` says which folder would be left without any.
"""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

LIMIT = 0.5
FOLDER = Path(__file__).resolve().parent
STARTS = re.compile(r"\b(?:subprocess|run_process|succeed|SERVED|find_mpirun|torch|JUDGES)\b")
"""In the text of a test or of what it uses: it starts processes, or loads PyTorch, either of which takes seconds."""
ALSO = frozenset(
    (
        "engine/ranks/test_launching.py",
        "oracle/test_functions.py",
        "output/stablehlo/test_modules.py",
        "verify/test_comparison.py",
    )
)
"""Files of which that does not hold, or which stand for their folders."""
SLOW = frozenset(
    """
    analysis/test_counted_bytes.py checkpoint/test_resuming.py checkpoint/test_sets.py checkpoint/test_strategies.py
    commands/test_check.py commands/test_damaged_dumps.py commands/test_diff.py commands/test_large_numbers.py
    commands/test_search.py::test_a_limit_brings_memory_down
    commands/test_search.py::test_a_limit_that_holds_changes_nothing
    commands/test_search.py::test_where_nothing_fits_the_smallest_is_named
    commands/test_search.py::test_operators_of_several_results_are_computed_again_under_a_search
    commands/test_search_questions.py commands/test_search_recompute.py commands/test_search_rows.py
    commands/test_compile_mistakes.py commands/test_verify_folder.py
    commands/test_verify.py::test_what_is_right_and_what_is_wrong_under_mpirun commands/test_verify_planted.py
    commands/view/test_view_command.py compiler/frontend/test_frontend_indices.py
    compiler/test_images_on_ranks.py::test_sharded_images
    compiler/test_own_gradients.py::test_gradients_that_nobody_reduces_are_named_once compiler/test_parallel_features.py
    compiler/test_public_networks.py compiler/test_rank_kinds.py compiler/test_vision_networks.py
    doctor/test_reach_and_bounds.py engine/test_variants.py::test_it_is_as_on_one_device engine/test_parameter_store.py
    experts/test_refused_experts.py::test_it_sends_rooms_alone experts/test_refused_experts.py::test_what_travels
    experts/test_refused_experts.py::test_experts_on_ranks_are_those_of_one_device
    experts/test_refused_experts.py::test_losses_are_those_of_one_device gpu/test_gpu_executor.py gpu/test_peers.py
    gpu/test_ranks.py gpu/test_shadow_weights_gpu.py ir/test_layout.py ir/test_mindspore_dumps.py
    ir/text/test_text_errors.py
    mindspore_api/common/test_error_kinds.py::test_what_is_too_many_too_few_or_unknown_is_named
    mindspore_api/common/test_layout_and_auto_parallel.py::test_a_network_that_holds_one_is_fed_as_its_settings_say
    mindspore_api/common/test_layout_and_auto_parallel.py::test_what_the_script_says_of_its_data_counts
    mindspore_api/common/test_public_names.py::test_every_argument_is_read_or_spoken_of
    mindspore_api/dataset/test_workers.py mindspore_api/nn/test_optimizers.py::test_ranks_equal_one_device
    mindspore_api/nn/test_optimizers.py::test_layers_of_sequences mindspore_api/test_notebook.py
    mindspore_api/train/test_tutorial_loss.py ops/collective/test_collectives.py::test_borders_of_four_ranks_in_a_square
    ops/collective/test_collectives.py::test_a_side_from_which_nothing_comes_stays_as_it_is
    ops/collective/test_collectives.py::test_what_is_refused
    ops/collective/test_collectives.py::test_it_takes_one_tensor_of_four_dimensions
    ops/collective/test_collectives.py::test_what_a_user_gives_is_checked_where_it_is_called
    ops/cuda/test_cuda_images.py ops/fused/test_fused_elementwise.py::test_bits_are_those_of_the_lines
    ops/fused/test_fused_elementwise.py::test_group_does_what_its_members_do
    ops/fused/test_fused_elementwise.py::test_all_results_of_a_group_of_adams ops/fused/test_update_copies.py
    ops/nn/test_attention.py ops/test_details.py::test_kernel_equals_numpy
    ops/test_details.py::test_operands_stay_as_they_lie
    ops/test_details.py::test_one_bad_element_on_one_rank_is_known_to_all
    ops/test_hard_values.py::test_ranks_have_what_one_device_has
    ops/test_hard_values.py::test_every_operand_has_every_kind_alone_in_some_sample
    ops/test_hard_values.py::test_places_that_there_are_not_are_among_the_cases oracle/test_networks_against_torch.py
    passes/communication/test_schedule_communication.py passes/fusion/test_channels_last.py
    passes/fusion/test_fuse_attention.py passes/fusion/test_fuse_elementwise.py passes/fusion/test_pack_attention.py
    passes/sharding/test_bytes.py::test_an_optimizer_of_small_operators_sends_as_much_as_momentum
    passes/sharding/test_bytes.py::test_states_follow_parameters_that_replicas_share_out
    passes/sharding/test_bytes.py::test_the_borders_of_windows_count_beside_changes_of_layout
    pipelining/test_stage_programs.py::test_masks_are_those_of_their_micro_batch pipelining/test_stage_communication.py
    pipelining/test_random_pipelines.py
    pipelining/test_schedule_table.py::test_stages_that_wait_for_each_other_are_among_them
    pipelining/test_stage_programs.py::test_schedules_have_the_same_bits
    plans/test_strategies_in_files.py::test_what_is_written_and_read_again
    plans/test_strategies_in_files.py::test_states_are_written_where_that_is_asked
    plans/test_strategies_in_files.py::test_what_a_file_cuts_is_said_to_be_the_files
    plans/test_strategies_in_files.py::test_files_of_auto_parallel
    plans/test_strategies_in_files.py::test_a_compile_writes_the_file
    plans/test_strategies_in_files.py::test_a_file_of_another_network_is_refused
    plans/test_strategies_in_files.py::test_a_file_that_is_none_is_refused
    runtime/faults/test_stalled.py::test_pauses_end_no_job
    runtime/faults/test_stalled.py::test_a_rank_that_stays_stopped_is_named_and_ends_the_job runtime/test_memory_plan.py
    samples/test_resnet_on_ranks.py samples/test_transformer.py::test_one_rank_learns
    samples/test_transformer.py::test_losses_equal_one_ranks
    samples/test_transformer.py::test_losses_under_mpi_equal_one_ranks
    samples/test_transformer.py::test_eight_ranks_are_two_groups_of_four
    samples/test_transformer.py::test_the_text_fits_the_vocabulary search/calibration/test_calibration.py
    search/layouts/test_cheapest.py search/plans/test_limited_plans.py search/plans/test_plan_files.py
    search/plans/test_stated_gaps.py test_grouped.py test_house.py test_layering.py test_planted_errors.py
""".split()
)
"""Files with a test whose first case is slow; in `test_grouped.py` one test looks at all cases of another."""


@cache
def quick_tests(file: Path) -> frozenset[str]:
    """Names of the tests of a file that are quick: none of a file that loads PyTorch itself."""
    name = file.relative_to(FOLDER).as_posix()
    text = file.read_text(encoding="utf-8")
    defined = {each: statement for statement in ast.parse(text).body for each in _names_defined(statement)}
    tests = {each for each in defined if each.startswith("test_")}
    if name in ALSO:
        return frozenset(tests)
    if name in SLOW or re.search(r"^(?:import torch|from torch|torch\b|pytest\.importorskip)", text, re.MULTILINE):
        return frozenset()
    sources = {each: ast.get_source_segment(text, statement) or "" for each, statement in defined.items()}
    decorated = {each: "".join(map(ast.unparse, getattr(s, "decorator_list", ()))) for each, s in defined.items()}
    slow = {each for each, source in sources.items() if STARTS.search(source + decorated[each])}
    used = {each: {*re.findall(r"\w+", sources[each] + decorated[each])} & defined.keys() for each in defined}
    while more := {each for each in defined if used[each] & slow} - slow:
        slow |= more
    return frozenset(each for each in tests - slow if f"{name}::{each}" not in SLOW)


def _names_defined(statement: ast.stmt) -> list[str]:
    """Return the names that a statement of a module defines."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return [statement.name]
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    return [each.id for each in targets if isinstance(each, ast.Name)]


def is_quick(file: Path, test: str = "") -> bool:
    """Whether the first cases of a test, or of any of a file's tests, are among the quick ones."""
    return test in quick_tests(file) if test else bool(quick_tests(file))


def is_first_case(item: pytest.Item) -> bool:
    """Whether a test has no cases, or this is the first of them."""
    case = getattr(item, "callspec", None)
    return case is None or not any(case.indices.values())
