"""Proofs of the steps of torchtitan's debug models under mixes of parallelism, on ranks that are not there.

    python -m benchmarks.pytorch.torchtitan_steps [PREFIX ...]     # rows of `ROWS` whose text begins so

It needs torchtitan 0.3 beside mspc. Each row is captured by `mspc capture` of this file and compared with one device by
`mspc verify --scale`; a row that PyTorch or mspc refuses is printed with its last line.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

SEQUENCE, BATCH = 64, 8
ROWS = (
    "llama3 8 dp=8", "llama3 8 dp=4 rep=2", "llama3 8 dp=4 tp=2", "llama3 8 dp=4 tp=2 sequence_parallel=0",
    "llama3 8 dp=4 tp=2 backend=full_dtensor", "llama3 8 dp=1 tp=8", "llama3 16 dp=4 rep=2 tp=2", "llama3 64 dp=8 tp=8",
    "qwen3 8 dp=8", "qwen3 8 dp=4 tp=2", "qwen3 8 dp=2 rep=2 tp=2", "deepseek_v3 8 dp=8", "llama3 8 dp=4 cp=2 flex=1",
    "deepseek_v3 8 dp=8 ep=2 balance=1", "deepseek_v3 8 dp=4 pp=2 ep=2 balance=1", "llama3 8 dp=8 backend=spmd_types",
    "llama3 2 dp=1 pp=2", "llama3 8 dp=4 pp=2", "llama3 8 dp=2 tp=2 pp=2", "llama3 8 dp=2 rep=2 pp=2 schedule=GPipe",
    "llama3 8 dp=4 pp=2 layers=4 schedule=Interleaved1F1B", "qwen3 8 dp=4 pp=2", "llama3 64 dp=8 tp=4 pp=2",
    "deepseek_v3 8 dp=4 pp=2", "llama3 8 dp=2 rep=4", "qwen3 16 dp=4 rep=2 tp=2", "llama3 64 dp=4 rep=2 tp=8",
    "llama3 16 dp=2 rep=2 tp=2 pp=2", "llama3 8 dp=2 cp=2 tp=2 flex=1", "deepseek_v3 8 dp=4 tp=2",
    "deepseek_v3 8 dp=4 rep=2 ep=4 balance=1",
)  # fmt: skip
"""Model, ranks and degrees. dp: shards; rep: replicas; balance: tokens go to the experts in turns; flex: attention with
a function of its mask, which slices of a sequence need, and sequences of 4 times the length."""


def prove(row: str, folder: Path) -> str:
    """Return the result of a row."""
    model, ranks, *degrees = row.split()
    mspc = [sys.executable, "-P", "-m", "mspc"]
    common = [each for each in degrees if each.startswith(("layers=", "balance=", "flex="))]
    one, many = folder / "_".join((model, *common)), folder / row.replace(" ", "_")
    begin = time.perf_counter()
    for out, count, given in ((one, "1", common), (many, ranks, degrees)):
        command = [*mspc, "capture", __file__, "--ranks", count, "--out", str(out), "--", model, *given]
        done = None if out.exists() else subprocess.run(command, capture_output=True, text=True)
        if done is not None and done.returncode:
            said = [line for line in done.stderr.splitlines() if line.startswith(("error", "  note"))]
            return f"not captured: {(said or ['nothing was said'])[0][:200]}"
    captured = time.perf_counter()
    command = [*mspc, "verify", "--scale", str(many), "--against", str(one)]
    done = subprocess.run(command, capture_output=True, text=True)
    said = [line for line in (done.stderr + done.stdout).splitlines() if line.startswith(("equal", "differs", "error"))]
    seconds = f"captured in {captured - begin:.0f} s, proved in {time.perf_counter() - captured:.0f} s"
    return f"{(said or ['no result'])[0][:120]} ({seconds})"


def capture(model: str, given: dict[str, str]) -> None:
    """Record the step of a debug model of two layers, as `mspc capture` runs this file."""
    import importlib
    from types import SimpleNamespace

    import torch
    import torch.distributed._functional_collectives as functional
    from torch.nn.attention.flex_attention import create_block_mask
    from torchtitan.tools import utils

    utils.device_type, utils.device_module = "cpu", torch.cpu  # before modules take them from there
    from torchtitan.components.loss import CrossEntropyLoss
    from torchtitan.components.optimizer import register_moe_load_balancing_hook
    from torchtitan.config.configs import CompileConfig, ParallelismConfig, TrainingConfig
    from torchtitan.distributed import ParallelDims, full_dtensor, spmd_types
    from torchtitan.distributed import utils as distributed
    from torchtitan.distributed.context_parallel.api import prepare_context_parallel_input
    from torchtitan.models.common.attention import ScaledDotProductAttention, get_causal_mask_mod
    from torchtitan.models.common.config_utils import decoder_vocab_size
    from torchtitan.models.common.token_dispatcher import AllToAllTokenDispatcher
    from torchtitan.protocols.module import Module

    import mspc.capture

    Module._init_param = lambda *_: None  # values are not needed
    degree = {name: int(value) for name, value in given.items() if value.isdigit()}
    backend = given.get("backend", "partial_dtensor")
    spec = importlib.import_module(f"torchtitan.models.{model}").model_registry("debugmodel", attn_backend="flex")
    parallelism = ParallelismConfig(
        data_parallel_replicate_degree=degree.get("rep", 1), data_parallel_shard_degree=degree.get("dp", -1),
        tensor_parallel_degree=degree.get("tp", 1), context_parallel_degree=degree.get("cp", 1),
        expert_parallel_degree=degree.get("ep", 1), enable_sequence_parallel=bool(degree.get("sequence_parallel", 1)),
        context_parallel_load_balancer=None, spmd_backend=backend, pipeline_parallel_degree=degree.get("pp", 1),
        pipeline_parallel_schedule=given.get("schedule", "1F1B"), pipeline_parallel_microbatch_size=1,
    )  # fmt: skip
    own_rows = BATCH // (degree.get("rep", 1) * degree.get("dp", 1))
    length = SEQUENCE * 4 if "flex" in degree else SEQUENCE
    training = TrainingConfig(seq_len=length, local_batch_size=own_rows, mixed_precision_param="float32")
    config, compiled = spec.model, CompileConfig(enable=False)
    config.layers = config.layers[: degree.get("layers", 2)]
    for layer in config.layers:
        if "flex" not in degree:
            layer.attention.inner_attention = ScaledDotProductAttention.Config()
        if "balance" in degree and layer.moe is not None:
            layer.moe.router._debug_force_load_balance = True
    debug = SimpleNamespace(moe_force_load_balance=False, batch_invariant=False)
    config.update_from_config(config=SimpleNamespace(parallelism=parallelism, training=training, debug=debug))
    distributed.set_spmd_backend(backend)
    ranks, dims, place, shards = int(os.environ["WORLD_SIZE"]), None, 0, 1
    with torch.device("cpu" if ranks == 1 else "meta"):
        network = config.build()
    loss = CrossEntropyLoss.Config(global_vocab_size=decoder_vocab_size(spec)).build(compile_config=compiled)
    networks, schedule, ends = [network], None, (True, True)
    if ranks > 1:
        dims = ParallelDims.from_config(parallelism, ranks)
        common = {"parallel_dims": dims, "training": training, "parallelism": parallelism, "compile_config": compiled,
                  "ac_config": None, "dump_folder": ""}  # fmt: skip
        if dims.pp > 1:
            schedule, networks, *ends = spec.pipelining_fn(
                network, device=torch.device("cpu"), model_config=config, parallelize_fn=spec.parallelize_fn,
                loss_fn=loss, **common,
            )  # fmt: skip
        else:
            networks = [spec.parallelize_fn(network, **common)]
        shards = dims.dp_replicate * dims.dp_shard
        place = dims.get_mesh("batch").get_local_rank() if shards > 1 else 0
    for part in networks:
        if ranks > 1:
            part.to_empty(device="cpu")
        with torch.no_grad():
            part.init_weights(buffer_device=None)
    torch.manual_seed(0)
    rows = slice(place * BATCH // shards, (place + 1) * BATCH // shards)
    tokens, labels = (torch.randint(0, config.vocab_size, (BATCH, length))[rows] for _ in range(2))
    more: dict[str, Any] = {}
    if "flex" in degree:
        mask = create_block_mask(get_causal_mask_mod(), None, None, length, length, device="cpu")
        more = {"positions": torch.arange(length).expand_as(tokens), "attention_masks": mask}
    if dims is not None and dims.cp_enabled:
        cp = dims.get_mesh("cp")
        tokens, labels, more = prepare_context_parallel_input(tokens, labels, more, cp, torch.device("cpu"), None)
    if dims is not None and backend == "full_dtensor":
        tokens, labels, more = full_dtensor.parallelize_inputs(dims, tokens, labels, more)
    elif dims is not None and backend == "spmd_types":
        tokens, labels, more = spmd_types.annotate_input_spmd_types(dims, tokens, labels, more)

    class Network(torch.nn.Module):
        def __init__(self, network: torch.nn.Module) -> None:
            super().__init__()
            self.network = network

        def forward(self, tokens: torch.Tensor, labels: torch.Tensor, **more: Any) -> torch.Tensor:
            return loss(self.network(tokens, **more), labels, BATCH * length)[0]

    def run() -> torch.Tensor | None:
        losses: list[torch.Tensor] = []
        given = [tokens] if ends[0] else []
        schedule.step(*given, target=labels, losses=losses, loss_kwargs={"global_valid_tokens": BATCH * length})
        return torch.stack(losses).sum() if losses else None

    def even(dispatcher: Any, own: torch.Tensor, received: torch.Tensor, size: int) -> tuple[Any, ...]:
        rows = own_rows if schedule is None else parallelism.pipeline_parallel_microbatch_size
        counts = [rows * length * dispatcher.top_k // size] * size  # as routing in turns gives every rank
        return functional.wait_tensor(received).reshape(-1), counts, counts

    if "balance" in degree:
        AllToAllTokenDispatcher._sync_token_count_exchange = even
    optimizer = torch.optim.AdamW([each for part in networks for each in part.parameters()], lr=1e-3)
    alone = SimpleNamespace(get_optional_mesh=lambda *_: None, ep_enabled=False)
    register_moe_load_balancing_hook(optimizer, networks, dims or alone)
    inputs = {"tokens": tokens, "labels": labels, **more}
    mspc.capture.step(list(map(Network, networks)), inputs, optimizer=optimizer, run=run if schedule else None)


def main() -> None:
    wanted = tuple(sys.argv[1:]) or ("",)
    with tempfile.TemporaryDirectory() as folder:
        for row in ROWS:
            if row.startswith(wanted):
                print(f"{row:45} {prove(row, Path(folder))}", flush=True)


if __name__ == "__main__":
    if "MSPC_CAPTURE" in os.environ:  # run by mspc capture
        capture(sys.argv[1], dict(each.split("=") for each in sys.argv[2:]))
    else:
        main()
