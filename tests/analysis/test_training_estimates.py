"""Memory and step time of training runs beside figures that can be counted by hand, and beside public measurements."""

import itertools
import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.machine import KNOWN_MACHINES, Link, Rate
from mspc.analysis.cost.training.alternatives import best
from mspc.analysis.cost.training.constants import assumptions
from mspc.analysis.cost.training.model_shape import Recomputation, TrainingRun
from mspc.analysis.cost.training.stage_memory import in_flight, stage_layers, stage_memory, stage_parameters
from mspc.analysis.cost.training.step_time import group_ranks, kernels, model_operations, peak_bounds, step_time
from mspc.ir.diagnostics import MspcError
from mspc.readers.configurations.reading import megatron_configuration, read_preset
from mspc.readers.configurations.settings import Setting
from mspc.readers.configurations.trainers import machine_of_row, row_settings

H100 = KNOWN_MACHINES["h100"]

SHARED = Path(__file__).resolve().parents[3] / "shared" / "reference" / "configurations"
GPT = {
    "num-layers": 12, "hidden-size": 512, "num-attention-heads": 8, "seq-length": 1024, "bf16": True,
    "max-position-embeddings": 1024, "micro-batch-size": 4, "global-batch-size": 32,
    "no-gradient-accumulation-fusion": True,
}  # fmt: skip

GROUPED = {
    "tensor-model-parallel-size": 4, "expert-model-parallel-size": 2, "expert-tensor-parallel-size": 2,
    "pipeline-model-parallel-size": 2, "sequence-parallel": True, "num-experts": 8, "moe-router-topk": 2,
    "moe-ffn-hidden-size": 1024, "moe-shared-expert-intermediate-size": 512, "disable-bias-linear": True,
    "moe-grouped-gemm": True, "moe-token-dispatcher-type": "alltoall", "use-distributed-optimizer": True,
}  # fmt: skip
SHARDED = {
    "tensor-model-parallel-size": 2, "use-megatron-fsdp": True, "use-distributed-optimizer": True,
    "data-parallel-sharding-strategy": "optim_grads_params",
}  # fmt: skip
BIAS = {"moe-router-enable-expert-bias": True, "moe-router-score-function": "sigmoid"}
OVERLAP = {"tp-comm-overlap": True, "sequence-parallel": True}
SQUARE = {"tensor-model-parallel-size": 2, "pipeline-model-parallel-size": 2}


def run_of(content: dict[str, Any], ranks: int | None = 8) -> TrainingRun:
    settings = [Setting(name, value) for name, value in content.items()]
    return megatron_configuration("test", settings, ranks, 0, "--").run


@pytest.mark.parametrize(
    ("more", "measured"),
    [
        ({"use-distributed-optimizer": True}, 2691792384),
        ({"recompute-granularity": "full", "recompute-method": "uniform", "recompute-num-layers": 1}, 2561334272),
        ({"pipeline-model-parallel-size": 4}, 2211948544),
        ({"pipeline-model-parallel-size": 4, "num-layers-per-virtual-pipeline-stage": 1}, 2643299328),
        (SQUARE, 1428171264),
        (SQUARE | {"cross-entropy-loss-fusion": True}, 1837640192),
        ({"use-distributed-optimizer": True, "attention-backend": "unfused"}, 4702430720),
        (GROUPED, 1149626368),
        (SHARDED, 1469652992),
    ],
)  # fmt: skip
def test_memory_of_the_last_stage_is_as_measured(more: dict[str, Any], measured: int) -> None:
    """The peaks that Megatron-LM's tests record on H100."""
    run = run_of(GPT | more)
    assert stage_memory(run, run.pipeline - 1).peak == pytest.approx(measured, rel=0.01)


def test_earlier_stages_hold_more_micro_batches_and_uneven_ones_all_layers() -> None:
    run = run_of(GPT | {"pipeline-model-parallel-size": 4, "global-batch-size": 64})
    assert [len(in_flight(run, stage)) for stage in range(4)] == [4, 3, 2, 1]
    chunks = replace(run, chunks=3)
    assert [len(in_flight(chunks, stage)) for stage in range(4)] == [15, 13, 11, 9]
    run = run_of(GPT | {"num-layers": 15, "pipeline-model-parallel-size": 4, "global-batch-size": 64,
                        "account-for-embedding-in-pipeline-split": True})  # fmt: skip
    chunks = [chunk for number in range(run.chunks) for chunk in (stage[number] for stage in stage_layers(run))]
    assert [layer for chunk in chunks for layer in chunk] == list(range(15))
    assert [len(stage[0]) for stage in stage_layers(run)] == [3, 4, 4, 4]


def test_hybrid_patterns_state_chunks_and_predictions() -> None:
    pattern = {"hybrid-layer-pattern": "M-M|G-|*-|+ED/*-/*-", "num-experts": 8}
    run = run_of(GPT | {"pipeline-model-parallel-size": 2} | pattern)
    assert stage_layers(run) == (((0, 1, 2), (5, 6)), ((3, 4), (7, 8, 9)))
    assert run.chunks == run.model.predictions == 2


def test_attention_without_fused_kernels_stores_scores() -> None:
    scores = [
        stage_memory(run_of(GPT | more), 0).parts["activations: attention"]
        for more in ({}, {"attention-backend": "unfused"}, {"kv-channels": 52},
                     {"attention-backend": "unfused", "seq-length": 1020})
    ]  # fmt: skip
    assert scores[0] < scores[1] == scores[2] < scores[3] < 3 * scores[1]


def test_inference_models_and_overlapped_streams_take_memory() -> None:
    one, second = (run_of(GPT | {"perform-rl-step": True} | more).reserved for more in (
        {}, {"rl-inference-tensor-model-parallel-size": 2}))  # fmt: skip
    assert second - one > 2 * 12 * 12 * 512 * 512 / 2
    plain, overlapped = (stage_memory(run_of(GPT | SQUARE | more), 0).parts["workspaces"] for more in ({}, OVERLAP))
    assert overlapped == plain + 2 * 32 * 2**20


def test_sharding_divides_the_states() -> None:
    run = replace(run_of(GPT), sharding="none")
    whole = stage_memory(run, 0).parts
    states, gradients, everything = (
        stage_memory(replace(run, sharding=kind), 0).parts for kind in ("states", "gradients", "parameters")
    )
    assert states["optimizer states"] * 8 == whole["optimizer states"]
    assert states["gradients"] == whole["gradients"] == gradients["gradients"] * 8
    assert everything["weights"] * 8 == whole["weights"]


def test_parameters_are_those_of_gpt_and_operations_six_per_parameter_and_token() -> None:
    run = run_of(GPT)
    layer = 12 * 512 * 512 + 13 * 512
    outer = 50304 * 512 + 1024 * 512 + 2 * 512
    assert stage_parameters(run, list(run.model.layers), True, True) == (12 * layer + outer, 0)
    run = run_of(GPT | {"hidden-size": 4096, "num-attention-heads": 32})
    layers = 12 * 12 * 4096 * 4096
    scores = 12 * 4 * 1024 * 4096 / 2
    expected = 32 * 1024 * (6 * (layers + 4096 * 50304) + 3 * scores)
    assert model_operations(run) == pytest.approx(expected, rel=0.002)


def test_small_models_wait_for_the_host() -> None:
    assert step_time(run_of(GPT), H100).host_bound
    large = run_of(GPT | {"hidden-size": 8192, "num-attention-heads": 64, "tensor-model-parallel-size": 8})
    assert not step_time(large, H100).host_bound
    assert sum(step_time(large, H100).parts.values()) == pytest.approx(step_time(large, H100).seconds)


def test_faster_settings_fit_and_divide() -> None:
    wide = {"hidden-size": 4096, "num-attention-heads": 32, "num-layers": 32, "use-distributed-optimizer": True}
    run = run_of(GPT | wide | {"tensor-model-parallel-size": 8, "sequence-parallel": True})
    run = replace(run, recomputation=Recomputation("full"))
    found = best(run, H100, 5)
    assert found
    assert found[0].seconds < step_time(run, H100).seconds
    assert all(each.peak <= H100.capacity and each.run.global_batch % each.run.data == 0 for each in found)


WIDE = {"hidden-size": 4096, "num-attention-heads": 32, "fp8-format": "hybrid", "fp8-recipe": "mxfp8"}


def test_first_and_last_layers_stay_in_half_precision() -> None:
    ends = {"num-layers-at-start-in-bf16": 0, "num-layers-at-end-in-bf16": 4}
    eight, mixed = (run_of(GPT | WIDE | more) for more in ({}, ends | {"first-last-layers-bf16": True}))
    assert run_of(GPT | WIDE | ends).half_layers == eight.half_layers == (0, 0) != mixed.half_layers
    assert [mixed.at_layer(number).eight for number in (0, 7, 8, 11)] == ["mxfp8", "mxfp8", "", ""]
    assert step_time(eight, H100).seconds < step_time(mixed, H100).seconds
    norms = [stage_memory(run, 0).parts["activations: norms"] for run in (eight, mixed)]
    assert norms[0] < norms[1]


def test_four_bits_are_faster_on_machines_that_have_them() -> None:
    four = run_of(GPT | {"hidden-size": 8192, "num-attention-heads": 64, "fp4-format": "e2m1"})
    eight = replace(four, eight="mxfp8")
    assert four.eight == "nvfp4"
    parts = [stage_memory(run, 0).parts for run in (four, eight, replace(four, gathered_operands=True))]
    assert parts[0]["activations: norms"] < 0.8 * parts[1]["activations: norms"]
    assert parts[2]["weights"] < 0.7 * stage_memory(replace(four, eight=""), 0).parts["weights"] < parts[0]["weights"]
    matmuls = [step_time(run, KNOWN_MACHINES["gb200"]).parts["matmuls"] for run in (four, eight)]
    assert matmuls[0] < 0.6 * matmuls[1]


def test_attention_in_eight_bits_skips_no_keys_and_wide_heads_gain_most() -> None:
    """cuDNN's times on GB200: causal, 4,096 tokens; a window of 128 in 8 bits is slower than in half precision."""
    times: dict[tuple[int, int], list[float]] = {}
    for head, window in ((128, 0), (192, 0), (64, 0), (64, 128)):
        more = {"kv-channels": head, "seq-length": 4096, "max-position-embeddings": 4096}
        run = run_of(GPT | WIDE | more | ({"window-size": f"({window},0)"} if window else {}))
        both = run, replace(run, eight_attention=True)
        times[head, window] = [step_time(each, KNOWN_MACHINES["gb200"]).parts["attention"] for each in both]
    assert times[128, 0][1] == pytest.approx(times[128, 0][0], rel=0.05)
    assert times[192, 0][1] < 0.8 * times[192, 0][0]
    assert times[64, 0][0] > 0.8 * times[128, 0][0]
    assert times[64, 128][0] < 0.3 * times[64, 0][0]
    assert times[64, 128][1] > times[64, 128][0]


def test_few_rows_for_each_expert_take_longer() -> None:
    """The same rows of a rank, over 8 experts of it or over 64."""
    sizes = {"hidden-size": 2048, "num-experts": 64, "moe-router-topk": 8, "global-batch-size": 256}
    degrees = {"tensor-model-parallel-size": 1, "expert-tensor-parallel-size": 1}
    few = run_of(GPT | GROUPED | sizes | degrees | {"expert-model-parallel-size": 8}, 128)
    near, far = (step_time(each, KNOWN_MACHINES["b300"]).parts for each in (few, replace(few, expert=1)))
    assert near["memory"] < far["memory"]
    assert near["matmuls"] == far["matmuls"]


def test_experts_wait_for_the_host_slices_take_time_and_modules_have_precisions() -> None:
    wide = run_of(GPT | GROUPED | {"hidden-size": 8192, "seq-length": 8192, "max-position-embeddings": 8192,
                                   "moe-ffn-hidden-size": 64, "quick-geglu": True})  # fmt: skip
    waits, graphs = (step_time(each, H100) for each in (wide, replace(wide, graphs=frozenset(("all",)))))
    assert waits.parts["host"] > graphs.parts["host"]
    assert waits.bounds["host"] < waits.bounds["device"]
    clamped = run_of(GPT | GROUPED | {"quick-geglu": True, "activation-func-clamp-value": 7})
    more = clamped, replace(clamped, fused_experts=True), replace(clamped, model=replace(clamped.model, biased=True))
    memory = [step_time(run, H100).parts["memory"] for run in more]
    assert memory[1] < memory[0] < memory[2]
    kinds = ((), (("attention", "mxfp8"),), (("attention", ""),))
    four = [replace(wide, eight="nvfp4", precisions=own) for own in kinds]
    parts = [step_time(run, KNOWN_MACHINES["gb200"]).parts["matmuls"] for run in four]
    assert parts == sorted(set(parts))


def test_assumptions_are_those_of_the_run() -> None:
    plain, experts = (assumptions(run_of(GPT | more)) for more in ({}, GROUPED))
    assert plain == ["three tenths of collectives exposed if they overlap", "600 MiB of the CUDA context"]
    assert set(plain) < set(experts)
    assert any("busiest experts" in each for each in experts)


@pytest.mark.parametrize(
    ("name", "billions"),
    [("llama3.2-1b", 1.24), ("qwen3-0.6b", 0.6), ("qwen3-1.7b", 1.72), ("qwen2.5-7b", 7.62), ("gemma2-2b", 2.61),
     ("gemma3-27b", 27.0), ("glm4.5-355b", 355), ("deepseek-v2", 236), ("olmoe-7b", 6.92), ("nemotronh-56b", 56.3),
     ("qwen3-next-80b-a3b", 79.7), ("ministral3-14b", 13.5), ("exaone4-1.2b", 1.28),
     ("exaone4-32b", 32.0), ("exaone-moe-236b-a23b", 236), ("nemotron-3.5-lightning", 31.6)],
)  # fmt: skip
def test_published_models_have_their_parameters(name: str, billions: float) -> None:
    run = replace(read_preset(name, 8, 0).run, tensor=1, expert=1, expert_tensor=1)
    assert sum(stage_parameters(run, list(run.model.layers), True, True)) / 1e9 == pytest.approx(billions, rel=0.02)


def test_stages_are_near_or_replicas_are() -> None:
    degrees = {"pipeline-model-parallel-size": 4, "micro-batch-size": 1, "global-batch-size": 128, "hidden-size": 4096}
    run = run_of(GPT | degrees | {"num-attention-heads": 32, "use-distributed-optimizer": True}, 64)
    inner = run_of(GPT | degrees | {"num-attention-heads": 32, "use-distributed-optimizer": True,
                                    "use-tp-pp-dp-mapping": True}, 64)  # fmt: skip
    assert inner == replace(run, pipeline_inner=True)
    assert (list(group_ranks(run, "pipeline")), list(group_ranks(inner, "pipeline"))) == ([0, 16, 32, 48], [0, 1, 2, 3])
    near, far = (step_time(each, H100).parts for each in (inner, run))
    assert near["pipeline"] < far["pipeline"]
    assert near["data"] > far["data"]
    for each in best(replace(inner, stages=stage_layers(inner)), H100, 3, True):
        other = replace(each.run, pipeline_inner=not each.run.pipeline_inner)
        assert each.seconds <= step_time(other, H100).seconds


def rows(name: str) -> list[dict[str, Any]]:
    file = SHARED / name
    if not file.is_file():
        pytest.skip("the measurements are not beside this checkout")
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_memory_beside_public_measurements() -> None:
    errors: list[float] = []
    for row in rows("megatron-h100.jsonl"):
        run = run_of(row["args"], None)
        errors.append(stage_memory(run, run.pipeline - 1).peak / row["max_allocated_bytes"] - 1)
    assert statistics.median(map(abs, errors)) <= 0.015
    assert sum(abs(error) <= 0.1 for error in errors) >= 0.9 * len(errors)
    assert min(errors) >= -0.1


@pytest.mark.parametrize("more", [{}, SQUARE, GROUPED, SHARDED, SQUARE | OVERLAP])
def test_no_bound_exceeds_the_step(more: dict[str, Any]) -> None:
    run = run_of(GPT | {"hidden-size": 2048, "overlap-grad-reduce": True} | more)
    for machine in (H100, replace(H100, link=Link(1e-3, Rate.of(1e8)))):
        time = step_time(run, machine)
        assert 0.3 * time.seconds < max(time.bounds.values()) <= time.seconds * (1 + 1e-9)
        least = peak_bounds(run, machine)
        assert max(time.bounds.values()) >= max(least.values()) > 0
        assert time.bounds["critical path"] >= time.bounds["device"] > least["device"]
        assert ("links, tensor" in time.bounds) == (run.tensor > 1)


def test_collectives_between_hosts_share_a_network_card() -> None:
    far = {"hidden-size": 4096, "seq-length": 8192, "max-position-embeddings": 8192, "micro-batch-size": 1,
           "num-experts": 64, "expert-model-parallel-size": 64, "context-parallel-size": 4, "overlap-grad-reduce": True,
           "pipeline-model-parallel-size": 1, "overlap-moe-expert-parallel-comm": True, "overlap-param-gather": True,
           "expert-tensor-parallel-size": 1}  # fmt: skip
    run = run_of(GPT | GROUPED | far, 256)
    for bandwidth in (1e10, 1e9):
        time = step_time(run, replace(H100, network=Link(1e-5, Rate.of(bandwidth))))
        assert time.parts["network card"] > 0
        assert time.bounds["network card"] + time.bounds["links, data"] < time.seconds


def test_elastic_widths_graphs_and_slow_balance_change_what_they_should() -> None:
    run = run_of(GPT | GROUPED)
    slow = stage_memory(run_of(GPT | GROUPED | BIAS), 1)
    balanced = stage_memory(run, 1)
    forced = stage_memory(run_of(GPT | GROUPED | {"moe-router-force-load-balancing": True}), 1)
    experts = [stage.parts["activations: experts"] for stage in (slow, balanced, forced)]
    assert experts[0] > experts[1] > experts[2]
    hosted = run_of(GPT | {"cpu-offloading-num-layers": 8})
    assert stage_memory(hosted, 0).peak < stage_memory(run_of(GPT), 0).peak
    assert step_time(hosted, H100).bounds["copies to the host"] > 0
    assert stage_memory(replace(run, widths=3), 1).parts["activations: masked values"] > 0
    graphs = [frozenset(names) for names in ((), ("attn",), ("all",))]
    started = [sum(kernels(replace(run, graphs=each), run.model.layers[0])) for each in graphs]
    assert started[0] > started[1] > started[2] == 0
    assert sum(kernels(replace(run, widths=3), run.model.layers[0])) > started[0]
    assert step_time(replace(run, software=1.0), H100).seconds < step_time(run, H100).seconds


def test_throughput_beside_public_measurements() -> None:
    errors: dict[str, list[float]] = {}
    for row in rows("megatron-bridge.jsonl"):
        name = machine_of_row(row)
        try:
            run = megatron_configuration("row", list(row_settings(row)), None, 0, "").run
        except MspcError:
            continue
        time, tokens = step_time(run, KNOWN_MACHINES[name]), run.global_batch * run.model.sequence / run.ranks
        measured = tokens / float(str(row["Tokens / sec / GPU"]).split()[0].replace(",", ""))
        assert max(peak_bounds(run, KNOWN_MACHINES[name]).values()) < min(measured, time.seconds)
        errors.setdefault(name, []).append(abs(measured / time.seconds - 1))
    assert len(errors) == 5
    assert all(statistics.median(each) <= (0.1 if name == "h100" else 0.15) for name, each in errors.items())
    assert statistics.median(itertools.chain.from_iterable(errors.values())) <= 0.085


def test_recomputed_modules_take_time() -> None:
    wide = {"hidden-size": 4096, "recompute-granularity": "selective"}
    modules = ("", "layernorm", "moe_act", "core_attn", "moe")
    runs = [run_of(GPT | GROUPED | wide | ({"recompute-modules": name} if name else {})) for name in modules]
    runs[0] = replace(runs[0], recomputation=Recomputation())
    times = [step_time(run, H100).bounds["device"] for run in runs]
    assert times[0] == min(times) < sorted(times)[1]
    assert times[-1] == max(times)


def test_step_times_beside_public_measurements() -> None:
    errors: list[float] = []
    for row in rows("megatron-h100.jsonl"):
        run = run_of(row["args"], None)
        if "release" not in row["case"] and not run.reserved:
            errors.append(abs(step_time(run, H100).seconds / row["iteration_seconds"] - 1))
            assert max(peak_bounds(run, H100).values()) < row["iteration_seconds"]
    assert statistics.median(errors) <= 0.12
