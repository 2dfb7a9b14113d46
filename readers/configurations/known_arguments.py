"""Names of Megatron-LM's arguments: a setting that is near one of them but none of them is a slip of the pen."""

KNOWN = frozenset(
    """
    account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split accumulate-allreduce-grads-in-fp32
    activation-func-clamp-value add-qkv-bias apply-layernorm-1p apply-query-key-layer-scaling
    apply-wd-to-qk-layernorm attention-backend attention-dropout attention-output-gate attention-softmax-in-fp32
    auto-detect-ckpt-format bf16 binary-mask calculate-per-token-loss check-weight-hash-across-dp-replicas-interval
    clip-grad context-parallel-size cp-comm-type cross-entropy-fusion-impl cross-entropy-loss-fusion
    dataset-provider decode-only-cuda-graphs decoder-first-pipeline-num-layers decoder-last-pipeline-num-layers
    decoder-num-layers decoder-seq-length decoupled-lr decoupled-min-lr defer-embedding-wgrad-compute
    delay-wgrad-compute deterministic-mode disable-bias-linear disable-gloo-process-groups
    disable-vision-class-token emb-int-list empty-unused-memory-level enable-chunked-prefill enable-cuda-graph
    enable-experimental enable-router encoder-num-layers encoder-seq-length exp-avg-dtype exp-avg-sq-dtype
    experimental-attention-variant expert-model-parallel-size expert-tensor-parallel-size ffn-hidden-size
    fine-grained-activation-offloading finetune first-last-layers-bf16 flash-decode flextron fp16 fp8-format
    fp8-param-gather fp8-recipe geglu global-batch-size glu-linear-offset grad-reduce-in-bf16 group-query-attention
    hard-sample-th hidden-dropout hidden-size hierarchical-context-parallel-sizes high-priority-stream-groups
    hybrid-layer-pattern hybrid-override-pattern img-h img-w init-method-std is-hybrid-model kv-channels
    kv-lora-rank language-model-checkpoint loss-alpha main-grads-dtype main-params-dtype
    make-vocab-size-divisible-by mamba-head-dim mamba-inference-conv-states-dtype mamba-inference-ssm-states-dtype
    mamba-int-list mamba-num-groups mamba-num-heads mamba-state-dim max-position-embeddings max-tokens-to-oom
    merge-file micro-batch-size microbatch-group-size-per-virtual-pipeline-stage min-lr mlp-int-list mock-data
    model-provider moe-aux-loss-coeff moe-enable-routing-replay moe-expert-int-list moe-ffn-hidden-size
    moe-grouped-gemm moe-latent-size moe-layer-freq moe-pad-experts-for-cuda-graph-inference moe-permute-fusion
    moe-shared-expert-gate moe-shared-expert-intermediate-size moe-shared-expert-overlap moe-token-dispatcher-type
    moe-z-loss-coeff multi-latent-attention no-bias-gelu-fusion no-check-for-nan-in-loss-and-grad
    no-create-attention-mask-in-dataloader no-gradient-accumulation-fusion no-masked-softmax-fusion
    no-mmap-bin-files no-persist-layer-norm no-record-throughput no-rope-fusion no-use-layer-wise-param-layout
    no-use-tokenizer-model-from-checkpoint-args no-yarn-correction-range-round-to-int norm-epsilon normalization
    num-attention-heads num-distributed-optimizer-instances num-experts num-layers num-layers-at-end-in-bf16
    num-layers-at-start-in-bf16 num-layers-per-virtual-pipeline-stage num-query-groups num-tokens-to-generate
    num-virtual-stages-per-pipeline-rank num-workers offload-modules optimizer original-model-sample-prob
    outer-dp-sharding-strategy output-every-n-results output-path overlap-grad-reduce
    overlap-moe-expert-parallel-comm overlap-p2p-communication-warmup-flush overlap-param-gather
    overlap-param-gather-with-optimizer-step override-opt-param-scheduler packing-buffer-size padded-vocab-size
    patch-dim perform-rl-step pipeline-model-parallel-layout pipeline-model-parallel-size position-embedding-type
    q-lora-rank qk-head-dim qk-layernorm qk-pos-emb-head-dim quick-geglu recompute-activations recompute-granularity
    recompute-method recompute-modules recompute-num-layers refit-method rerun-mode return-log-probs
    reuse-grad-buf-for-mxfp8-param-ag seed seq-length sequence-parallel sft sft-tokenizer-prompt-format soft-mask
    softmax-type spec split squared-relu step-batch-size-schedule straggler-minmax-count swiglu
    tensor-model-parallel-size test-mode tiktoken-pattern total-seq-length tp-comm-overlap tp-comm-overlap-cfg
    transformer-impl untie-embeddings-and-output-weights use-checkpoint-args use-checkpoint-opt-param-scheduler
    use-coordinator use-custom-fsdp use-distributed-optimizer use-flash-attn use-flashinfer-fused-rope
    use-fused-weighted-squared-relu use-legacy-static-engine use-megatron-fsdp use-mup use-packed-sequence
    use-persistent-ckpt-worker use-rotary-position-embeddings use-torch-fsdp2 use-tp-pp-dp-mapping
    use-transformer-engine-op-fuser v-head-dim verify-integrity vocab-extra-ids vocab-file vocab-size weight-decay
    wgrad-deferral-limit world-size
""".split()
)
"""Arguments of the model, its parallelism and its precision, as the configurations of Megatron-LM's tests use them."""
IGNORED_PREFIXES = (
    "adam-",
    "async-",
    "bert-",
    "budget-",
    "calib-",
    "check-for",
    "ckpt-",
    "cuda-graph-",
    "data-",
    "dataloader-",
    "ddp-",
    "dist-ckpt",
    "distributed-",
    "dsa-",
    "error-",
    "eval-",
    "exit-",
    "export-",
    "fim-",
    "grpo-",
    "incoming-",
    "inference-",
    "langrl-",
    "linear-",
    "load",
    "log-",
    "logging",
    "lr",
    "manual-gc",
    "megatron-fsdp-",
    "moe-flex-",
    "moe-hybridep",
    "moe-router-",
    "mscale",
    "mtp-",
    "muon-",
    "mup-",
    "no-ckpt",
    "no-load",
    "no-rl-",
    "no-save",
    "non-persistent",
    "profile",
    "prompt",
    "retro",
    "rl-",
    "rotary-",
    "router-",
    "save",
    "suspend-",
    "tau-",
    "te-",
    "tensorboard",
    "timing-",
    "tokenizer-",
    "train-",
    "use-mcore",
    "vision-",
    "wandb",
    "window-",
    "yarn-",
)
"""Beginnings of the names of arguments without effect on memory and time of a step: data, logs, checkpoints, learning
rates, inference."""
