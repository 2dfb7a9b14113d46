"""Configurations of other trainers: each family is read, and every mistake is named with its line and a right value."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mspc.analysis.cost.training.model_shape import AttentionShape, FeedForwardShape, MambaShape
from mspc.ir.diagnostics import MspcError
from mspc.readers.configurations.megatron import argument_settings, expanded_layout
from mspc.readers.configurations.mistakes import broken, check_settings, rules
from mspc.readers.configurations.reading import Configuration, read_arguments, read_configuration, read_preset
from mspc.readers.configurations.settings import ConfigurationSettings, Setting, tables_of
from mspc.readers.configurations.text_formats import file_values
from tests.errors import error_of
from tests.grouped import grouped

GPT = """\
--num-layers 12
--hidden-size 512
--num-attention-heads 8
--seq-length 1024
--max-position-embeddings 1024
--micro-batch-size 4
--global-batch-size 32
--bf16
"""
STAGES = "--pipeline-model-parallel-size 2\n"
EXPERTS = "--num-experts 8\n--expert-model-parallel-size 4\n--moe-router-topk 2\n"
TABLE = tables_of("mistakes")
LLAMA = {
    "model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "tie_word_embeddings": False,
    "max_position_embeddings": 8192,
}  # fmt: skip
COMMON = """
def _base(cfg):
    cfg.ddp.use_megatron_fsdp = True
    cfg.ddp.data_parallel_sharding_strategy = "optim_grads_params"
    cfg.comm_overlap.tp_comm_overlap = True
    cfg.train.micro_batch_size = 1
"""
RECIPE = """from recipes.common import _base
from recipes.names import second as third
def qwen3_30b_a3b_pretrain_config():
    third(cfg)
    cfg.model.tensor_model_parallel_size = 2
    cfg.model.expert_model_parallel_size = 8
def llama9_config():
    cfg.model.tensor_model_parallel_size = 2
    return cfg
def llama3_70b_pretrain_64gpu_h100_bf16_config():
    cfg = llama9_config()
    cfg.model.pipeline_model_parallel_size = 4
    cfg.mixed_precision = precision("bf16")
    cfg.train.global_batch_size = 100
    return cfg
def llama3_70b_pretrain_64gpu_gb300_fp8mx_config():
    cfg = llama3_70b_pretrain_64gpu_h100_bf16_config()
    _base(cfg)
    cfg.mixed_precision = precision("fp8_mx")
    cfg.model.virtual_pipeline_model_parallel_size = 5
    cfg.model.sequence_parallel = False
    cfg.model.recompute_granularity = "selective"
    cfg.model.recompute_modules = ["layernorm", "mlp"]
    cfg.model.cuda_graph_impl = "full_iteration"
    cfg.train.micro_batch_size = 2
    cfg.train.global_batch_size = 256
    return cfg
def _provider(**kwargs):
    model = provider()
    model.pipeline_model_parallel_size = 1
    return model
def qwen3_1p7b_pretrain_config():
    cfg.model = _provider(tensor_model_parallel_size=16)
    cfg.train.micro_batch_size = 4
    return cfg
def qwen3_600m_sft_config(**more):
    given: Arguments = {"tensor_model_parallel_size": 16, "micro_batch_size": 4, "pipeline_model_parallel_size": 1}
    return common(**{**given, **more})
"""
IMPORTED = """
from llama3.config_registry import llama3_8b_tp
from models.qwen3_5 import model_registry as qwen_registry
from . import model_registry
def _reinforced_model_registry(flavor):
    return qwen_registry(flavor)
def of_llama():
    return changed(llama3_8b_tp(), model_registry)
def of_qwen():
    return Controller.Config(model_spec=_reinforced_model_registry("4B"),
        trainer=PolicyTrainer.Config(parallelism=ParallelismConfig(tensor_parallel_degree=2)))
def of_hugging_face():
    return Config(hf_model="Qwen/Qwen3-8B-Base", model_spec=model_registry("full"))
"""
REGISTRY = """\
raise SystemExit("nothing runs")

def llama3_8b():
    spec = model_registry("8B", converters=[MXFP8LinearConverter.Config(model_compile_enabled=True)])
    return Trainer.Config(
        model_spec=spec,
        training=TrainingConfig(num_tokens_per_microbatch_per_dp_rank=2 * 4096, max_context_length=4096),
        activation_checkpoint=SelectiveAC.Config(),
    )

def llama3_8b_tp():
    config = llama3_8b()
    config.parallelism.tensor_parallel_degree = 8
    config.activation_checkpoint = None
    return config
"""


def arguments(folder: Path, more: str, ranks: int | None = 8) -> Configuration:
    file = folder / "gpt.args"
    file.write_text(GPT + more)
    return read_arguments(file, ranks, 0)


@pytest.mark.parametrize(
    ("more", "line", "problem", "right"),
    [
        ("--tensor-model-parallel-size 16\n", 9, "does not divide 8 ranks", "--ranks 16 works"),
        ("--tensor-model-parallel-size 3\n", 9, "no divisor of 8 attention heads", "2 works"),
        ("--pipeline-model-parallel-size 8\n", 1, "8 stages of 1 chunks do not divide", "6 works, or 16 layers"),
        ("--context-parallel-size 2\n--seq-length 1023\n", 10, "no multiple of 4", "1024 works"),
        ("--seq-length 2048\n", 5, "less than 2048 tokens", "2048 works"),
        ("--fp8-format hybrid\n--ffn-hidden-size 1000\n", 10, "no multiple of 16", "1008 on a rank"),
        (EXPERTS.replace("size 4", "size 16"), 10, "does not divide 8 ranks", "8 works"),
        (EXPERTS + "--tensor-model-parallel-size 2\n", 0, "experts with tensor parallelism need it", "set it"),
        (EXPERTS + "--moe-layer-freq ([0]*1+[1]*3)\n", 12, "names 4 layers of 12", "12 entries"),
        ("--hiden-size 512\n", 9, "is no setting", "--hidden-size"),
        ("--num-layers 12000000000\n", 9, "is 12,000,000,000", "between 1 and"),
        ("--step-batch-size-schedule full\n", 9, "is 'full'", "0:384"),
        ("--is-hybrid-model\n", 0, "is not set", "a letter of M"),
        (STAGES + "--decoder-first-pipeline-num-layers 64\n", 10, "leaves -52 of 12 layers", "leave it out"),
        ("--recompute-granularity selective\n--recompute-modules core_attn mpl\n", 10, "is 'mpl'", "mlp"),
        (STAGES + "--num-layers-per-virtual-pipeline-stage 4\n", 10, "no divisor of the 6", "3 works"),
        (STAGES + "--pipeline-model-parallel-layout Et*3|t*8L\n", 10, "has 11 layers", "has 12"),
    ],
)  # fmt: skip
def test_a_mistake_is_named_with_its_line_and_a_right_value(
    tmp_path: Path, more: str, line: int, problem: str, right: str
) -> None:
    told = error_of(arguments, tmp_path, more).render(1000).splitlines()
    place = f"gpt.args:{line}: " if line else "gpt.args: "
    assert any(place in each and problem in each and right in each for each in told), told


RULES = [(f"{k} {family}", *rule) for k in ("refused", "unused") for family in TABLE[k] for rule in rules(k, family)]


def fulfilled(setting: str, conditions: str) -> dict[str, Any]:
    """Return settings with which the conditions of a rule hold; settings that are not named are left out."""
    found: dict[str, Any] = {}
    for condition in (setting, *conditions.split()):
        name, operator, right = re.fullmatch(r"([\w.-]+)(<>|!=|>=|[=<>%~])(.+)", condition).groups() if re.search(
            r"[=<>%~]", condition
        ) and not condition.startswith("!") else (condition, "", "")  # fmt: skip
        if name[0] in "!@":
            continue
        other = float(right) if re.fullmatch(r"-?[\d.]+", right) else 4
        if operator in ("<", ">", ">=", "<>", "%") and not re.fullmatch(r"-?[\d.]+", right):
            found |= dict.fromkeys(right.split("*"), other)
        value = {"": True, "=": right.split(",")[0], "!=": "none-of-them", "<": other - 1, ">": other + 1, "<>": 7,
                 ">=": other, "%": other + 1, "~": f"{found.get(name, '')} {right}".strip()}[operator]  # fmt: skip
        if operator or name not in found:
            found[name] = {"True": True, "False": False}.get(value, value) if isinstance(value, str) else value
    return found


@grouped(RULES)
def test_every_rule_is_told_where_it_is_broken_and_nowhere_else(
    group: str, setting: str, conditions: str, problem: str, right: str
) -> None:
    (kind, family), found, name = group.split(), fulfilled(setting, conditions), setting.lstrip("!@")
    pattern = re.sub(r"\\{.*?\\}", ".*", re.escape(problem))

    def is_told(found: dict[str, Any]) -> bool:
        return any(each[0] == name and re.match(pattern, each[1]) for each in broken(kind, family, found.get))

    assert is_told(found)
    assert setting.startswith("!") or not is_told({name: False})
    for condition in (each for each in conditions.split() if each.startswith("!") and "~" not in each):
        assert not is_told(found | {re.split(r"!=|>=|[=<>%~]", condition[1:])[0]: "set"})
    if family == "megatron":
        base = {setting.name: setting.value for setting in argument_settings(GPT)}
        settings = {name: value for name, value in (base | found).items() if f"!{name}" not in conditions.split()}
        read = ConfigurationSettings("test", [Setting(name, value) for name, value in settings.items()], "--")
        check_settings(read, 8)
        told = read.notes if kind == "unused" else [text for _, text in read.mistakes]
        assert any(re.search(pattern, text) for text in told)


def test_all_mistakes_are_told_together(tmp_path: Path) -> None:
    error = error_of(arguments, tmp_path, "--pipeline-model-parallel-size 8\n--fp16\n--tp-comm-overlap\n")
    assert len([error.message, *error.notes]) == 3


def test_settings_without_effect_are_noted(tmp_path: Path) -> None:
    found = arguments(tmp_path, "--sequence-parallel\n--num-query-groups 2\n--unheard-of 3\n--hidden-size 1024\n")
    notes = "\n".join(found.notes)
    assert "--sequence-parallel has no effect" in notes
    assert "--num-query-groups has no effect" in notes
    assert "not known, so ignored: --unheard-of" in notes
    assert "'512' on line 2 and '1024' on line 12, which counts" in notes
    assert found.run.model.hidden == 1024


def test_types_of_optimizer_states_count_with_an_optimizer_that_knows_them(tmp_path: Path) -> None:
    types = "--main-grads-dtype bf16\n--exp-avg-dtype bf16\n--exp-avg-sq-dtype fp8\n--use-distributed-optimizer\n"
    error = error_of(arguments, tmp_path, types)
    assert len([error.message, *error.notes]) == 3
    run = arguments(tmp_path, types + "--use-precision-aware-optimizer\n").run
    assert (run.gradient, run.state) == (2, 7)
    assert arguments(tmp_path, "--optimizer muon\n").run.state == 8


def test_scripts_of_a_shell_are_read_with_their_variables(tmp_path: Path) -> None:
    lines = GPT.replace("--hidden-size 512", 'ARGS=(--hidden-size "${WIDTH}" --vocab-size 64').replace("\n", " \\\n")
    more = "if [ $A = 1 ]; then\n  ARGS+=(--tensor-model-parallel-size ${TP})\nelse\n  --mock-data --data-path a\nfi\n"
    found = read_arguments(written(tmp_path, "a.sh", f"#!/bin/sh\nWIDTH=${{WIDTH:-512}}\n{lines}\n)\n{more}"), 8, 0)
    assert (found.run.model.hidden, found.run.model.vocabulary, found.run.tensor) == (512, 128, 1)
    assert found.notes == ["--tensor-model-parallel-size is ${TP}, which is not known: the default is taken"]


def test_ranks_that_are_not_stated_are_the_fewest_hosts_and_layouts_are_written_out(tmp_path: Path) -> None:
    more = STAGES + EXPERTS + "--tensor-model-parallel-size 2\n--disable-bias-linear\n--sequence-parallel\n"
    assert arguments(tmp_path, more, None).run.ranks == 16
    assert expanded_layout("Et*3|(tt|)*2mL") == "Ettt|tt|tt|mL"


def written(folder: Path, name: str, text: str) -> Path:
    file = folder / name
    file.write_text(text)
    return file


def test_megatron_yaml(tmp_path: Path) -> None:
    pairs = (line.partition(" ") for line in GPT.splitlines())
    lines = "".join(f"  {name}: {value or 'true'}\n" for name, _, value in pairs)
    text = "ENV_VARS:\n  A: 1 # a comment\nMODEL_ARGS:\n" + lines + "TEST_TYPE: regular\nMETRICS:\n  - \"lm loss\"\n"
    run = read_configuration(written(tmp_path, "model_config.yaml", text), 8, 0).run
    assert (run.model.hidden, len(run.model.layers), run.data, run.parameter) == (512, 12, 8, 2)


def test_bridge_rows(tmp_path: Path) -> None:
    row = {"#-GPUs": "64", "CP": "1", "EP": "n/a", "GBS": "256", "MBS": "1", "PP": "8", "Precision": "FP8", "TP": "4",
           "Sequence Length": "8192", "System": "DGX-H100", "VP": "5", "section": "LLAMA3_70B"}  # fmt: skip
    run = read_configuration(written(tmp_path, "row.json", json.dumps(row)), None, 0).run
    assert (run.ranks, run.tensor, run.pipeline, run.chunks, run.data, run.eight) == (64, 4, 8, 5, 2, "tensorwise")


def test_torchtitan(tmp_path: Path) -> None:
    text = "[model]\nname = \"llama3\"\nflavor = \"8B\"\n[training]\nseq_len = 4096\nlocal_batch_size = 2\n" \
        "[parallelism]\ntensor_parallel_degree = 4\n[activation_checkpoint]\nmode = \"none\"\n"  # fmt: skip
    run = read_configuration(written(tmp_path, "train.toml", text), 16, 0).run
    assert (run.tensor, run.data, run.sharding, run.micro_batch, run.model.sequence) == (4, 4, "parameters", 2, 4096)
    wrong = text.replace("tensor_parallel_degree = 4", "tensor_parallel_degree = 16")
    told = r"train.toml:8: error: parallelism.tensor_parallel_degree .*more than 8 query groups"
    with pytest.raises(MspcError, match=told):
        read_configuration(written(tmp_path, "train.toml", wrong), 16, 0)


def test_torchtitan_registries_are_data(tmp_path: Path) -> None:
    folder = tmp_path / "llama3"
    folder.mkdir()
    file = written(folder, "config_registry.py", REGISTRY)
    run = read_configuration(Path(f"{file}:llama3_8b_tp"), 16, 0).run
    assert (run.model.hidden, run.model.sequence, run.micro_batch, run.tensor) == (4096, 4096, 2, 8)
    assert (run.recomputation.granularity, run.eight) == ("", "mxfp8")
    assert "did you mean 'llama3_8b'" in error_of(read_configuration, Path(f"{file}:llama3_9b"), 16, 0).notes[0]
    (tmp_path / "trainer").mkdir()
    file = written(tmp_path / "trainer", "config_registry.py", IMPORTED)
    for name, hidden, tensor in (("of_llama", 4096, 8), ("of_qwen", 2560, 2), ("of_hugging_face", 4096, 1)):
        run = read_configuration(Path(f"{file}:{name}"), 16, 0).run
        assert (run.model.hidden, run.tensor) == (hidden, tensor)
    layers = read_configuration(Path(f"{file}:of_qwen"), 16, 0).run.model.layers
    assert layers[4].mixers == (MambaShape(32, 128, 128, 16),)


def test_recipes_of_megatron_bridge_are_data(tmp_path: Path) -> None:
    (tmp_path / "recipes").mkdir()
    written(tmp_path / "recipes", "common.py", COMMON)
    written(tmp_path / "recipes", "names.py", "from recipes.common import _base as second\n")
    file = written(tmp_path, "llama3.py", RECIPE)
    found = read_configuration(Path(f"{file}:llama3_70b_pretrain_64gpu_gb300_fp8mx_config"), None, 0)
    run, how = found.run, found.run.recomputation
    assert (found.family, found.machine, run.ranks, run.eight) == ("Megatron-Bridge", "gb300", 64, "mxfp8")
    assert (run.tensor, run.pipeline, run.chunks, run.micro_batch, run.global_batch) == (2, 4, 5, 2, 256)
    assert (how.modules, run.sharding, run.overlapped_tensor) == ({"layernorm", "mlp"}, "parameters", False)
    assert run.graphs == {"all"}
    with pytest.raises(MspcError, match=r"llama3.py:14: error: train.global_batch_size is 100, no multiple of"):
        read_configuration(Path(f"{file}:llama3_70b_pretrain_64gpu_h100_bf16_config"), None, 0)
    with pytest.raises(MspcError, match="of no published model"):
        read_configuration(Path(f"{file}:llama9_config"), None, 0)
    run = read_configuration(Path(f"{file}:qwen3_30b_a3b_pretrain_config"), 16, 0).run
    assert (run.sharding, run.expert, run.expert_tensor) == ("parameters", 8, 1)
    # A function that makes the model, and a table of keyword arguments; more tensor ranks than query groups.
    for recipe, layers in (("qwen3_1p7b_pretrain_config", 28), ("qwen3_600m_sft_config", 28)):
        run = read_configuration(Path(f"{file}:{recipe}"), 16, 0).run
        assert (run.tensor, run.pipeline, run.micro_batch, len(run.model.layers)) == (16, 1, 4, layers)


def test_maxtext(tmp_path: Path) -> None:
    text = "base_config: base.yml\nmodel_name: llama3-8b\nquantization: te_nvfp4\n" \
        "ici_fsdp_parallelism: -1\nici_tensor_parallelism: 2\n" \
        "per_device_batch_size: 4 # rows\nmax_target_length: 2048\n"  # fmt: skip
    run = read_configuration(written(tmp_path, "llama.yml", text), 8, 0).run
    assert (run.tensor, run.micro_batch, run.model.sequence, run.sharding) == (2, 4, 2048, "parameters")
    assert run.eight == "nvfp4"
    sizes = "base_emb_dim: 512\nbase_num_query_heads: 8\nbase_num_decoder_layers: 6\nbase_mlp_dim: 1024\n" \
        "attention_type: mla\nfirst_num_dense_layers: 2\nnum_experts: 4\nbase_moe_mlp_dim: 256\nshared_experts: 2\n" \
        "mlp_activations: [gelu]\nkv_lora_rank: 64\n"  # fmt: skip
    layers = read_configuration(written(tmp_path, "own.yml", sizes), 8, 0).run.model.layers
    assert [layer.feed.experts for layer in layers if layer.feed is not None] == [0, 0, 4, 4, 4, 4]
    assert layers[2].feed == FeedForwardShape(256, experts=4, choices=2, shared=512)
    assert layers[0].mixers[0] == AttentionShape(8, 8, 128, 128, key_rank=64, rotary=64, rotated=True)
    with pytest.raises(MspcError, match=r"llama.yml:2: error: model_name is 'llama9'"):
        read_configuration(written(tmp_path, "llama.yml", text.replace("llama3-8b", "llama9")), 8, 0)


def test_deepspeed_and_accelerate_take_the_model_beside_them(tmp_path: Path) -> None:
    content = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4,
               "zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}  # fmt: skip
    file = written(tmp_path, "ds.json", json.dumps(content, indent=1))
    with pytest.raises(MspcError, match="does not describe a model"):
        read_configuration(file, 8, 0)
    written(tmp_path, "config.json", json.dumps(LLAMA))
    run = read_configuration(file, 8, 0).run
    assert (run.sharding, run.micro_batch, run.global_batch, run.model.vocabulary) == ("gradients", 2, 64, 128256)
    with pytest.raises(MspcError, match=r"ds.json:2: error: train_batch_size 64 is not .*; 128 works"):
        read_configuration(file, 16, 0)
    content["zero_optimization"] |= {"offload_optimizer": {"device": "cpu"}}
    either = {"fp16": {"enabled": "auto"}, "bf16": {"enabled": "auto"}}
    run = read_configuration(written(tmp_path, "host.json", json.dumps(content | either)), 8, 0).run
    assert (run.state, run.parameter) == (0, 2)
    text = "compute_environment: LOCAL_MACHINE\ndistributed_type: FSDP\nfsdp_config:\n" \
        "  fsdp_sharding_strategy: FULL_SHARD\nmixed_precision: bf16\nnum_processes: 16\n"  # fmt: skip
    run = read_configuration(written(tmp_path, "accelerate.yaml", text), None, 0).run
    assert (run.ranks, run.sharding, run.parameter) == (16, "parameters", 2)
    text += "parallelism_config:\n  parallelism_config_tp_size: 2\n  parallelism_config_cp_size: 4\n"
    text = text.replace("fsdp_config:\n", "fsdp_config:\n  fsdp_activation_checkpointing: true\n")
    run = read_configuration(written(tmp_path, "degrees.yaml", text), None, 0).run
    assert (run.tensor, run.context, run.data, run.recomputation.granularity) == (2, 4, 2, "full")


def test_mindformers(tmp_path: Path) -> None:
    text = "runner_config:\n  batch_size: 1\nparallel_config:\n  data_parallel: 2\n  model_parallel: 4\n" \
        "  pipeline_stage: 2\n  micro_batch_num: 8\nmodel:\n  model_config:\n    hidden_size: 4096\n" \
        "    num_layers: 32\n    num_heads: 32\n    n_kv_heads: 8\n"  # fmt: skip
    file = written(tmp_path, "llama.yaml", text)
    run = read_configuration(file, 16, 0).run
    assert (run.data, run.tensor, run.pipeline, run.micro_batches) == (2, 4, 2, 8)
    one = text.replace("model_parallel: 4", "model_parallel: 1\n  use_seq_parallel: True")
    assert not read_configuration(written(tmp_path, "one.yaml", one), 4, 0).run.sequence_parallel
    more = "    kv_lora_rank: 64\nmoe_config:\n  expert_num: 8\n  moe_intermediate_size: 512\n" \
        "  first_k_dense_replace: 1\n  shared_expert_num: 2\n"  # fmt: skip
    layers = read_configuration(written(tmp_path, "experts.yaml", text + more), 16, 0).run.model.layers
    assert [layer.feed.shared for layer in layers[:3] if layer.feed is not None] == [0, 1024, 1024]
    wide = text.replace("hidden_size: 4096", "hidden_size: 8192").replace("num_heads: 32", "num_heads: 64")
    wide += "    ffn_dim_multiplier: 1.3\n    multiple_of: 256\n"
    feed = read_configuration(written(tmp_path, "wide.yaml", wide), 16, 0).run.model.layers[0].feed
    assert feed is not None
    assert feed.width == 28672
    nemo = "MODEL_ARGS:\n  model.config.num_layers: 12\n  model.config.hidden_size: 768\n  data.micro_batch_size: 4\n"
    assert read_configuration(written(tmp_path, "nemo.yaml", nemo), 8, 0).run.model.hidden == 768
    text = "exp_manager:\n  name: a\ntrainer:\n  devices: 8\n  num_nodes: 2\n  precision: bf16\nmodel:\n" \
        "  hidden_size: 1024\n  num_layers: 8\n  num_attention_heads: 8\n  tensor_model_parallel_size: 2\n" \
        "  encoder_seq_length: 2048\n  ffn_hidden_size: ${multiply:4, ${.hidden_size}}\n  normalization: rmsnorm\n"
    found = read_configuration(written(tmp_path, "gpt.yaml", text), None, 0)
    assert (found.family, found.run.ranks, found.run.tensor, found.run.model.rms) == ("NeMo", 16, 2, True)
    assert found.run.model.layers[0].feed == FeedForwardShape(4096)
    told = r"llama.yaml:4: error: parallel_config.data_parallel 2 .* make 16, not .*; --ranks 16 works"
    with pytest.raises(MspcError, match=told):
        read_configuration(file, 32, 0)


def test_presets() -> None:
    run = read_preset("llama3-70b", 64, 8192).run
    assert (run.model.hidden, len(run.model.layers), run.global_batch) == (8192, 80, 128)
    assert "did you mean 'llama3-70b'" in error_of(read_preset, "lama3-70b", 64, 0).notes[0]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: 1\njust words\n", "2: while scanning a simple key could not find expected ':'"),
        ("a: !python/name:os 1\n", "1: the value has the tag !python/name:os; write it without the tag"),
        ("- a\n", "1: the file has no mapping of settings"),
        ("a: &a\n  b: *a\n", "1: more than 64 levels"),
        ("a: &a [1]\n" + "".join(f"{y}: &{y} [*{x}, *{x}, *{x}, *{x}, *{x}, *{x}, *{x}, *{x}, *{x}]\n"
         for x, y in zip("abcdefgh", "bcdefghi", strict=True)), "1: more than 64 levels or 100,000 values"),
    ],
)
def test_yaml_that_is_not_read_is_told_with_its_line(text: str, told: str) -> None:
    assert f"f.yaml:{told.replace(': ', ': error: ', 1)}" in error_of(file_values, "f.yaml", text, ".yaml").render(1000)


def test_yaml_values() -> None:
    text = "base: &b\n  p: 1\nnew:\n  <<: *b\n  q: [1,\n    2]\n"
    found = file_values("f.yaml", text, ".yaml")
    assert {path: setting.value for path, setting in found.by_path.items()} == {
        "base.p": 1, "new.p": 1, "new.q": [1, 2],
    }  # fmt: skip
    text = "---\na: {b: 1, 'c': x}\nlist:\n- p: 1\n  q: [1, 2]\n- \"#no\" # yes\nlong: |\n  one\n  two\nf: 1e-4\n"
    found = file_values("f.yaml", text, ".yaml")
    assert {path: setting.value for path, setting in found.by_path.items()} == {
        "a.b": 1, "a.c": "x", "list.0.p": 1, "list.0.q": [1, 2], "list.1": "#no", "long": "one\ntwo", "f": 1e-4,
    }  # fmt: skip
    assert found.by_path["list.0.q"].line == 5


def test_unknown_files(tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="there is no configuration"):
        read_configuration(tmp_path / "none.yaml", 8, 0)
    with pytest.raises(MspcError, match="no configuration of a family"):
        read_configuration(written(tmp_path, "a.yaml", "a: 1\n"), 8, 0)
    with pytest.raises(MspcError, match="is no JSON file"):
        read_configuration(written(tmp_path, "a.json", "{"), 8, 0)
