"""Reader of Megatron-LM's arguments: a file of command-line arguments, or a `model_config.yaml` of its tests.

Defaults and derived values are those of megatron/training/arguments.py and megatron/core/transformer/
transformer_config.py (Megatron-LM, August 2026).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import accumulate

from mspc.analysis.cost.training.model_shape import (
    AttentionShape,
    FeedForwardShape,
    MambaShape,
    ModelLayer,
    ModelShape,
    Recomputation,
    TrainingRun,
)
from mspc.analysis.cost.training.stage_memory import chunks_in_turn, stage_parameters, uneven_layers
from mspc.readers.configurations.settings import MAX_LAYERS, ConfigurationSettings, Setting, tables_of

LONGEST = 100_000
"""Longest layout of stages that is written out; longer ones have more layers than any model."""
_TABLES = tables_of("models")
VOCABULARIES: Mapping[str, int] = _TABLES["vocabularies"]
"""Rows of the vocabulary if no argument states them, before padding, by family."""
PUBLISHED = {tuple(map(int, key.split())): rows for key, rows in _TABLES["published-vocabularies"].items()}
"""Rows of the vocabularies of published models, by hidden size, heads, feed-forward width and experts."""
LLAVA: Mapping[str, int] = _TABLES["llava"]
"""Sizes of Megatron's LLaVA example that its arguments do not state."""
FLAGS = tables_of("megatron_arguments")["flags"]
"""Fields of a run that a flag sets, and those that are true unless one is set."""
_SCRIPT = re.compile(r"(?m)^#!|^\s*(export )?\w+=")
_VARIABLE = re.compile(r"\$\{?(\w+)\}?")
_ASSIGNED = re.compile(r"""(?:export )?(\w+)=["']?(?:\$\{\w+:?-)?([\w./]+)\}?["']?;?""")
"""An assignment of a shell script, `NAME=value` or `NAME=${NAME:-value}`."""
_ARGUMENT = re.compile(r"""(?:^|(?<=[\s("']))--([\w-]+)(?:=|\s+|$)((?:(?!(?<=\s)--[A-Za-z]).)*)""")
"""An argument with its value, which ends before the next argument."""
BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
"""Bytes of an element of optimizer states, by the name of its type."""


def argument_settings(text: str) -> Iterator[Setting]:
    """Yield the arguments of a file, `--name`, `--name value` or `--name=value`, one or more on a line; of a shell
    script with the values of its variables, without its commands, and of the first branch of each condition."""
    variables: dict[str, str] = {}
    script, taken = _SCRIPT.search(text), True
    for number, raw in enumerate(text.splitlines(), 1):
        line = _VARIABLE.sub(lambda name: variables.get(name[1], name[0]), raw.split("#")[0]).strip().rstrip("\\ ")
        if script and re.match(r"(elif|else|fi)\b", line):
            taken = line.startswith("fi")
        if not taken:
            continue
        assigned = _ASSIGNED.fullmatch(line)
        if assigned is not None:
            variables[assigned[1]] = assigned[2]
        if line and not line.startswith("--") and not script:
            yield Setting(line.split()[0], True, number)
        for name, value in _ARGUMENT.findall(line):
            yield Setting(name.replace("_", "-"), value.strip().strip("'\")") or True, number)


def family(found: ConfigurationSettings) -> str:
    """Return the family of model that the arguments describe: "t5", "bert", "hybrid" or "gpt"."""
    names: tuple[str, ...] = ("encoder-num-layers", "decoder-num-layers", "vocab-extra-ids")
    if "img-h" not in found and any(name in found for name in names):
        return "t5"
    if "hybrid-override-pattern" in found or "hybrid-layer-pattern" in found or "is-hybrid-model" in found:
        return "hybrid"
    names = ("hidden-size", "num-layers", "num-attention-heads", "max-position-embeddings")
    sizes = [found.count(name) for name in names]
    learned = found.text("position-embedding-type", "learned_absolute") == "learned_absolute"
    if learned and sizes in _TABLES["bert"]["sizes"]:
        found.notes.append("taken for BERT, whose sizes these are")
        return "bert"
    return "gpt"


class MegatronReader:
    """Reader of the run that Megatron's arguments describe. Mistakes are recorded in `found`."""

    def __init__(self, found: ConfigurationSettings, ranks: int, sequence: int) -> None:
        self.found, self.ranks, self.kind = found, ranks, family(found)
        self.tensor = tensor = found.count("tensor-model-parallel-size", 1)
        found.notes += ["no hidden size is stated: Megatron's sizes are taken"] * ("hidden-size" not in found)
        lengths = sequence or "seq-length" in found or "encoder-seq-length" in found
        found.notes += ["no sequence length is set: 1,024 tokens are assumed; --sequence sets it"] * (not lengths)
        self.hidden = found.count("hidden-size", 1024)
        self.heads = found.count("num-attention-heads", 16)
        self.gated = any(found.flag(name) for name in ("swiglu", "geglu", "quick-geglu"))
        gated_width = int(4 * self.hidden * 2 / 3) // 64 * 64
        self.width = found.count("ffn-hidden-size", gated_width if found.flag("swiglu") else 4 * self.hidden)
        self.sequence = sequence or found.count("seq-length") or found.count("encoder-seq-length", 1024)
        self.image = 0
        if "img-h" in found and "patch-dim" in found:
            patch = found.count("patch-dim", 14)
            rows, columns = found.count("img-h", patch) // patch, found.count("img-w", patch) // patch
            self.image = rows * columns + (not found.flag("disable-vision-class-token"))
            parts = 2 * tensor * found.count("context-parallel-size", 1)
            self.sequence = -(-(self.sequence + self.image) // parts) * parts
        self.local = "local" in (found.text("transformer-impl", "transformer_engine"), found.text("spec"))

    def run(self) -> TrainingRun:
        """Return the run."""
        found = self.found
        provider = found.text("model-provider", "gpt")
        model = self.model() if provider != "llava_vlm" else self.vision_model()
        pipeline = found.count("pipeline-model-parallel-size", 1)
        micro = found.count("micro-batch-size", 1)
        context = found.count("context-parallel-size", 1)
        expert = found.count("expert-model-parallel-size", 1)
        data = max(1, self.ranks // (self.tensor * pipeline * context))
        sharding = self.sharding()
        half = found.flag("bf16") or found.flag("fp16")
        instances = found.count("num-distributed-optimizer-instances", 1)
        stages, projected = self.layout(model, pipeline), 1024 + model.hidden
        per_chunk = found.count("num-layers-per-virtual-pipeline-stage")
        chunks = found.count("num-virtual-stages-per-pipeline-rank", 1)
        if per_chunk and pipeline > 1:
            chunks = max(1, len(model.layers) // pipeline // per_chunk)
        if stages:
            chunks = len(stages[0])
        sequence_parallel = found.flag("sequence-parallel") and self.tensor > 1
        accounted = [found.flag(f"account-for-{part}-in-pipeline-split") for part in ("embedding", "loss")]
        precisions = [name.partition(":") for name in found.names("module-precisions")]
        run = TrainingRun(
            model=model, ranks=self.ranks, micro_batch=micro,
            global_batch=self.batch(micro * data), tensor=self.tensor,
            pipeline=pipeline, context=context, expert=expert,
            expert_tensor=found.count("expert-tensor-parallel-size", self.tensor),
            chunks=chunks, group=found.count("microbatch-group-size-per-virtual-pipeline-stage"), stages=stages,
            first_layers=found.count("decoder-first-pipeline-num-layers"),
            last_layers=found.count("decoder-last-pipeline-num-layers"),
            sequence_parallel=sequence_parallel, sharding=sharding,
            divided=data * context // instances if sharding != "none" else 0,
            outer_states=found.text("outer-dp-sharding-strategy") == "optim",
            parameter=2 if half else 4,
            gradient=2 if self.half_gradients() else 4, state=self.state_bytes(half),
            eight=self.eight(), half_layers=(self.half_layers("start"), self.half_layers("end")),
            gathered_operands=found.flag("fp8-param-gather") or found.flag("fp4-param-gather"),
            precisions=tuple((part[0], part[2].removeprefix("bf16")) for part in precisions),
            loss=self.loss(), backend=self.backend(), library="local" if self.local else "te",
            # The adapters of LoRA are left out.
            frozen=found.flag("lora") if provider != "llava_vlm" else LLAVA["encoder"] + model.hidden * projected,
            # No limit means all micro-batches.
            deferred_embedding=(found.count("wgrad-deferral-limit", 0, 0) or 1 << 30)
            * found.flag("defer-embedding-wgrad-compute"),
            software=found.number("software-release"),
            widths=len(found.names("emb-int-list")) if found.flag("flextron") else 0,
            graphs=self.graphs(), recomputation=self.recomputation(),
            **{field: found.flag(name) for field, name in FLAGS["set"].items()},
            **{field: not found.flag(name) for field, name in FLAGS["unset"].items()},
        )  # fmt: skip
        run = replace(run, reserved=self.reserved(run))
        return replace(run, stages=uneven_layers(run, *accounted)) if any(accounted) and pipeline > 1 else run

    def sharding(self) -> str:
        """Return the part of the states that data-parallel ranks divide."""
        found = self.found
        if found.flag("use-torch-fsdp2"):
            return "parameters"
        if found.flag("use-megatron-fsdp") or found.flag("use-custom-fsdp"):
            kinds = {"optim": "states", "optim_grads": "gradients", "optim_grads_params": "parameters"}
            return kinds.get(found.text("data-parallel-sharding-strategy"), "none")
        return "states" if found.flag("use-distributed-optimizer") else "none"

    def batch(self, least: int) -> int:
        """Return the global batch; the first of a schedule."""
        schedule = self.found.text("step-batch-size-schedule")
        if schedule:
            first = re.match(r"\s*\w+:(\d+)", schedule)
            if first is not None:
                return max(1, int(first[1]))
            self.found.mistake("step-batch-size-schedule", f"is {schedule!r}", "0:384 200B:768 is one")
        return self.found.count("global-batch-size", least)

    def half_gradients(self) -> bool:
        """Return if gradients are summed in half precision: with fp16 unless told otherwise, with bf16 if told so."""
        found = self.found
        fp32 = found.flag("accumulate-allreduce-grads-in-fp32")
        narrow = found.text("main-grads-dtype") == "bf16" or found.flag("grad-reduce-in-bf16")
        return narrow or (found.flag("fp16") and not fp32)

    def state_bytes(self, half: bool) -> int:
        """Return the bytes of optimizer states of an element: main weights beside half ones, and two moments. They are
        Float32 unless other types are set; a share of them may be on the host."""
        found = self.found
        count = {"sgd": 1, "muon": 1, "dist_muon": 1, "lion": 1}.get(found.text("optimizer", "adam"), 2)
        names = (*(("main-params-dtype",) if half else ()), *("exp-avg-dtype", "exp-avg-sq-dtype")[:count])
        nbytes = sum(BYTES[found.text(name, "fp32")] for name in names)
        here = 1 - found.number("optimizer-offload-fraction", 1.0) * found.flag("optimizer-cpu-offload")
        return int(nbytes * min(1.0, max(0.0, here)))

    def graphs(self) -> frozenset[str]:
        """Return the modules whose kernels CUDA graphs start."""
        found = self.found
        kind = found.text("cuda-graph-impl", "local" if found.flag("enable-cuda-graph") else "none")
        modules = found.names("cuda-graph-modules") or found.names("cuda-graph-scope")
        if kind == "none" and "full_iteration" not in modules:
            return frozenset()
        return frozenset(modules) - {"full_iteration"} or frozenset(("all",))

    def eight(self) -> str:
        """Return the recipe of matmuls in 8 or 4 bits, or "" if there are none."""
        recipes = (("fp8", "delayed"), ("fp4", "nvfp4"))
        found = (self.found.text(f"{bits}-recipe", usual) for bits, usual in recipes if f"{bits}-format" in self.found)
        return next(found, "")

    def half_layers(self, end: str) -> int:
        """Return the number of layers at an end whose matmuls stay in half precision."""
        count = self.found.count(f"num-layers-at-{end}-in-bf16", 1, 0)
        return count if self.found.flag("first-last-layers-bf16") else 0

    def reserved(self, run: TrainingRun) -> int:
        """Return the bytes of the key and value cache of reinforcement learning, 40 GiB unless told otherwise, and of
        the weights of a second model for inference if that has degrees of its own."""
        found, name = self.found, "rl-inference-{}-model-parallel-size".format
        if not found.flag("perform-rl-step"):
            return 0
        tensor, expert = found.count(name("tensor"), run.tensor), found.count(name("expert"), run.expert)
        second = replace(run, tensor=tensor, expert=expert, expert_tensor=found.count(name("expert-tensor"), tensor))
        weights = sum(stage_parameters(second, list(run.model.layers), True, True)) * run.parameter
        cache = int(found.number("inference-dynamic-batching-buffer-size-gb", 40.0) * (1 << 30))
        return cache + weights * any(name(kind) in found for kind in ("tensor", "expert", "expert-tensor"))

    def loss(self) -> str:
        """Return the implementation of the loss."""
        if not self.found.flag("cross-entropy-loss-fusion"):
            return "plain"
        return self.found.text("cross-entropy-fusion-impl", "native")

    def backend(self) -> str:
        """Return the attention's implementation."""
        named = self.found.text("attention-backend", "auto")
        if self.local or named == "local":
            return "flash" if self.found.flag("use-flash-attn") and self.local else "local"
        if named == "auto":
            named = "flash" if self.found.flag("use-flash-attn") else "fused"
        # Fused kernels load 16 bytes of a head at once.
        return "unfused" if self.found.count("kv-channels", self.hidden // self.heads) % 8 else named

    def recomputation(self) -> Recomputation:
        """Return the recomputation and offloading."""
        found = self.found
        granularity = found.text("recompute-granularity")
        if found.flag("recompute-activations"):
            granularity = granularity or "selective"
        modules = found.names("recompute-modules") if granularity == "selective" else []
        if granularity == "selective" and found.raw("recompute-modules") is None:
            modules = ["core_attn"]
        offloaded = found.names("offload-modules") if found.flag("fine-grained-activation-offloading") else []
        return Recomputation(
            granularity, frozenset(modules), found.text("recompute-method") == "block",
            found.count("recompute-num-layers", 1), frozenset(offloaded),
            found.count("cpu-offloading-num-layers", 0, 0),
        )  # fmt: skip

    def model(self) -> ModelShape:
        """Return the sizes of the model."""
        found, kind = self.found, self.kind
        rotary = found.text("position-embedding-type", "learned_absolute")
        if found.flag("use-rotary-position-embeddings"):
            rotary = "rope"
        layers, encoders = self.layers(rotary == "rope")
        positions = found.count("max-position-embeddings", self.sequence) if rotary == "learned_absolute" else 0
        positions = max(positions, self.sequence) if self.image and positions else positions
        tied = not found.flag("untie-embeddings-and-output-weights")
        sequence = self.sequence
        if kind == "t5":
            sequence = found.count("decoder-seq-length", 128)
        predictions = found.count("mtp-num-layers", len(self.pattern()) - 1, 0)
        return ModelShape(
            family=kind, hidden=self.hidden, vocabulary=self.vocabulary(), layers=layers, sequence=sequence,
            positions=positions, types=2 if kind == "bert" else 0,
            tied=tied, biased=not found.flag("disable-bias-linear"), query_biased=found.flag("add-qkv-bias"),
            rms=found.text("normalization", "LayerNorm") == "RMSNorm",
            dropout=found.number("hidden-dropout", 0.1), attention_dropout=found.number("attention-dropout", 0.1),
            heads=2 if kind == "bert" else 0, predictions=predictions, encoders=encoders,
        )  # fmt: skip

    def vision_model(self) -> ModelShape:
        """Return the language model of Megatron's LLaVA example, Vicuna 7B, whatever the other arguments say."""
        sequence = self.found.count("total-seq-length", self.sequence)
        if "packing-buffer-size" not in self.found:
            # Samples are as long as their longest, which total-seq-length bounds: an image and a caption.
            sequence = min(sequence, LLAVA["image_tokens"] + LLAVA["caption_tokens"])
        layer = ModelLayer(sequence, (AttentionShape(32, 32, 128, 128, rotated=True),), FeedForwardShape(11008, True))
        return ModelShape(
            family="llava", hidden=4096, vocabulary=32256, layers=(layer,) * 32, sequence=sequence, tied=True,
            biased=False, rms=True, dropout=0.0, attention_dropout=0.0,
        )  # fmt: skip

    def vocabulary(self) -> int:
        """Return the padded rows of the embedding."""
        found = self.found
        padded = found.count("padded-vocab-size")
        if padded:
            return padded
        default = VOCABULARIES.get(self.kind, VOCABULARIES["gpt"])
        if self.kind == "gpt":
            sizes = self.hidden, self.heads, self.width, found.count("num-experts")
            default = PUBLISHED.get(sizes, default)
        if "vocab-size" not in found:
            found.notes.append(
                f"the tokenizer is not read: the vocabulary has {default:,} rows; --vocab-size states it"
            )
        rows = found.count("vocab-size", default)
        rows += found.count("vocab-extra-ids", 0, 0)
        multiple = found.count("make-vocab-size-divisible-by", 128) * self.tensor
        return -(-rows // multiple) * multiple

    def layers(self, rotated: bool) -> tuple[tuple[ModelLayer, ...], int]:
        """Return all layers, and the number of those that are an encoder's."""
        found = self.found
        dense = FeedForwardShape(self.width, self.gated)
        if self.kind == "t5":
            count = found.count("encoder-num-layers") or found.count("num-layers", 12)
            second = found.count("decoder-num-layers", count)
            short = found.count("decoder-seq-length", 128)
            here = found.count("encoder-seq-length", self.sequence)
            own = self.attention(rotated, False)
            causal = self.attention(rotated, True)
            cross = AttentionShape(own.heads, own.groups, own.queries, own.values, causal=False, cross=True, keys=here)
            encoder = ModelLayer(here, (own,), dense)
            return (encoder,) * count + (ModelLayer(short, (causal, cross), dense),) * second, count
        count = found.count("num-layers", 12)
        if self.kind == "hybrid":
            pattern = self.pattern()
            letters = pattern[0].replace("|", "")
            if not letters or not set(letters) <= set("MG*+D-E"):
                problem = f"is {'/'.join(pattern)!r}" if letters else "is not set"
                found.mistake("hybrid-layer-pattern", problem, "it has a letter of MG*+D-E for each layer")
            return tuple(self.hybrid(letter, rotated, dense) for letter in letters), 0
        attention = self.attention(rotated, self.kind != "bert")
        layers: list[ModelLayer] = []
        if self.image:
            layer = ModelLayer(self.image, (replace(attention, causal=False),), dense)
            layers += [layer] * found.count("encoder-num-layers", count)
        window = int(next(iter(re.findall(r"\d+", found.text("window-size"))), 0))
        local = replace(attention, window=window)
        expert = self.experts()
        every = found.count("window-attn-skip-freq", 0, 0)
        for number, has in enumerate(self.expert_layers(count)):
            mixer = local if window and (not every or (number + 1) % every) else attention
            layers.append(ModelLayer(self.sequence, (mixer,), expert if expert is not None and has else dense))
        return tuple(layers), len(layers) - count

    def pattern(self) -> list[str]:
        """Return the layers of a hybrid model as letters, and those of each further prediction."""
        found = self.found
        pattern = found.text("hybrid-override-pattern") or found.text("hybrid-layer-pattern")
        return expanded_layout(pattern).split("/")

    def hybrid(self, letter: str, rotated: bool, dense: FeedForwardShape) -> ModelLayer:
        """Return the layer of a letter of a hybrid pattern: Mamba M, gated delta rule G, attention *, + or D, dense -,
        experts E."""
        found = self.found
        if letter == "G":
            heads, head = found.count("linear-num-value-heads", 32), found.count("linear-value-head-dim", 128)
            keys = found.count("linear-num-key-heads", 16), found.count("linear-key-head-dim", 128)
            return ModelLayer(self.sequence, (MambaShape(heads, head, keys[1], keys[0]),))
        if letter == "M":
            head = found.count("mamba-head-dim", 64)
            heads = found.count("mamba-num-heads", 2 * self.hidden // head)
            shape = MambaShape(heads, head, found.count("mamba-state-dim", 128), found.count("mamba-num-groups", 8))
            return ModelLayer(self.sequence, (shape,))
        if letter in "*+D":
            return ModelLayer(self.sequence, (self.attention(rotated, True),))
        return ModelLayer(self.sequence, (), self.experts() if letter == "E" else dense)

    def attention(self, rotated: bool, causal: bool) -> AttentionShape:
        """Return the sizes of the attention."""
        found = self.found
        head = found.count("kv-channels", self.hidden // self.heads)
        if found.flag("multi-latent-attention"):
            return AttentionShape(
                self.heads, self.heads, found.count("qk-head-dim", 128), found.count("v-head-dim", 128),
                query_rank=found.count("q-lora-rank", 0), key_rank=found.count("kv-lora-rank", 512),
                rotary=found.count("qk-pos-emb-head-dim", 64), rotated=True, causal=causal,
            )  # fmt: skip
        groups = found.count("num-query-groups", 1) if found.flag("group-query-attention") else self.heads
        return AttentionShape(
            self.heads, groups, head, head, rotated=rotated, normalized=found.flag("qk-layernorm"), causal=causal
        )

    def experts(self) -> FeedForwardShape | None:
        """Return the sizes of a layer of experts, or None if there are none."""
        found = self.found
        count = found.count("num-experts")
        if not count:
            return None
        routing = "bias" if found.flag("moe-router-enable-expert-bias") else "loss"
        return FeedForwardShape(
            found.count("moe-ffn-hidden-size", self.width), self.gated, experts=count,
            choices=found.count("moe-router-topk", 2), shared=found.count("moe-shared-expert-intermediate-size", 0, 0),
            grouped=found.flag("moe-grouped-gemm"), dispatcher=found.text("moe-token-dispatcher-type", "allgather"),
            latent=found.count("moe-latent-size"),
            clamped=found.flag("quick-geglu") and found.number("activation-func-clamp-value") > 0,
            routing="forced" if found.flag("moe-router-force-load-balancing") else routing,
        )  # fmt: skip

    def expert_layers(self, count: int) -> list[bool]:
        """Return if each layer has experts, by `moe-layer-freq`: a period, or an expression of lists."""
        text = self.found.text("moe-layer-freq", "1").replace(" ", "")
        if text.isdecimal() and int(text):
            return [number % int(text) == 0 for number in range(count)]
        found: list[bool] = []
        for items, times in re.findall(r"\[([01,]*)\](?:\*(\d+))?", text):
            found += [item == "1" for item in items.split(",") if item] * min(int(times or 1), MAX_LAYERS)
        if len(found) != count:
            self.found.mistake("moe-layer-freq", f"names {len(found)} layers of {count}", f"it has {count} entries")
            return [True] * count
        return found

    def layout(self, model: ModelShape, pipeline: int) -> tuple[tuple[tuple[int, ...], ...], ...]:
        """Return the layers of every chunk of a custom layout such as `Et*3|(tt|)*6mL`, or () without one."""
        text, pattern = self.found.text("pipeline-model-parallel-layout"), self.pattern()[0]
        if not text and "|" not in pattern:
            return ()
        # Bars between the letters of a hybrid model are a layout, too.
        parts = expanded_layout(text).split("|") if text else pattern.split("|")
        if len(parts) % pipeline:
            name = "pipeline-model-parallel-layout" if text else "hybrid-layer-pattern"
            self.found.mistake(name, f"has {len(parts)} parts", f"a multiple of {pipeline} stages works")
            return ()
        borders = [*accumulate((part.count("t") if text else len(part) for part in parts), initial=0)]
        if text and self.kind == "hybrid" and 2 * borders[-1] == len(model.layers):
            borders = [2 * border for border in borders]  # a mixer and a feed-forward layer are one
        if borders[-1] != len(model.layers):
            self.found.mistake("pipeline-model-parallel-layout", f"has {borders[-1]} layers",
                               f"the model has {len(model.layers)}")  # fmt: skip
            return ()
        return chunks_in_turn(borders, pipeline)


def expanded_layout(text: str) -> str:
    """Return a layout without repetitions: `(tt|)*2` and `t*3` are written out."""
    text = text.replace(" ", "").replace(",", "")
    repeated = re.compile(r"\(([^()]*)\)\*(\d+)|([A-Za-z|])\*(\d+)")
    while len(text) < LONGEST and (found := repeated.search(text)) is not None:
        part, times = (found[1], found[2]) if found[2] else (found[3], found[4])
        text = text[: found.start()] + part * min(int(times), 1 + LONGEST // len(part or " ")) + text[found.end() :]
    return text
