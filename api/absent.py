"""What is known about names of MindSpore that mspc lacks: what to write instead, or why there is no such thing."""

from __future__ import annotations

from collections.abc import Iterable

REPLACEMENTS: dict[str, str] = {
    "nn.Tril": "ops.tril",
    "nn.Triu": "ops.triu",
    "nn.Range": "ops.arange",
    "nn.MatMul": "ops.matmul",
    "nn.OneHot": "ops.one_hot",
    "nn.Norm": "ops.norm",
    "nn.Roll": "ops.roll",
    "nn.WithGradCell": "value_and_grad",
    "ops.NonZero": "ops.nonzero",
    "ops.Roll": "ops.roll",
    "ops.Pack": "ops.Stack",
    "ops.Unpack": "ops.Unstack",
    "ops.Dense": "nn.Dense",
    "ops.FastGeLU": "ops.GeLU",
    "ops.FastGelu": "ops.GeLU",
    "ops.DynamicShape": "ops.shape",
    "ops.dyn_shape": "ops.shape",
    "ops.Randperm": "ops.randperm",
    "ops.TensorShape": "ops.shape",
    "dataset.RandomDataset": "dataset.GeneratorDataset over a function that draws rows",
    "dataset.QMnistDataset": "dataset.MnistDataset, which reads the same format",
}
"""Names without the first (`nn.Tril`) and what stands for them here. A name of `ops` counts in all its modules."""

REASONS: dict[str, str] = {
    "multiprocessing": "Python's own multiprocessing serves",
    "nn.probability": "there are no distributions; draw with ops.normal, ops.uniform and their like",
    "nn.thor": "second-order optimizers are not there; nn.Lamb and nn.AdamWeightDecay are",
    "ops.CustomRegOp": "operators are not written in other languages here; write it in Python with ops",
    "ops.CustomOpBuilder": "operators are not written in other languages here; write it in Python with ops",
    "ops.PyFunc": "a graph runs no Python; write it with ops, or call it between steps",
    "ops.ScalarSummary": "summaries are not written from a graph; return the value, and let a callback write it",
    "ops.ImageSummary": "summaries are not written from a graph; return the value, and let a callback write it",
    "ops.TensorSummary": "summaries are not written from a graph; return the value, and let a callback write it",
    "ops.HistogramSummary": "summaries are not written from a graph; return the value, and let a callback write it",
    "rewrite": "networks are not rewritten from outside; write them in Python",
    "offline_debug": "`mspc compile --save-graphs` writes every graph as text, and `mspc verify` compares values",
    "train.OnRequestExit": "a run that is interrupted ends; ModelCheckpoint and resume_training go on with it",
    "train.TrainFaultTolerance": "faults end all ranks at once; `mspc launch` starts them again",
    "SparseTensor": "COOTensor is its name today",
    "set_ps_context": "there is no parameter server; gradients are summed by collectives",
    "context.set_ps_context": "there is no parameter server; gradients are summed by collectives",
    "run_check": "`mspc verify` checks a script on this machine",
}
"""Names without the first, or beginnings of names, and why mspc has no such thing."""
_LIMITS = "streams have no work of their own here, and devices are not shared out to them"
_PLACED = "what stands where in a device's memory is planned when a network is compiled"
_SERVING = "networks that serve requests run as any other; there is no engine for them"
_ASCEND = "it is an operator of one kind of device; write it with other operators of ops"
_REWRITTEN = "networks are not rewritten from outside; write them in Python"
_BACKENDS = "passes and operators are classes in mspc itself: CONTRIBUTING has the recipes"
_FAMILIES = {
    _LIMITS: """StreamLimitCtx set_stream_limit get_stream_limit reset_stream_limit set_device_limit get_device_limit
        DeviceCtx""",
    _PLACED: """MemPool PluggableAllocator use_mem_pool memory_replay UntypedStorage ms_memory_recycle swap_tensors""",
    _SERVING: """mindio_preload set_mindio_server_info load_obf_params_into_net obfuscate_ckpt split_mindir
        split_dynamic_mindir""",
    _REWRITTEN: "SymbolTree Node NodeType ScopedValue ConvertModelUtils ConvertNetUtils",
    _BACKENDS: """CustomPassType register_custom_pass register_custom_backend register_op_infer register_op_wrapper
        clear_op_infer clear_op_wrapper""",
    _ASCEND: """ops.lightning_indexer ops.sparse_flash_attention ops.nsa_compress ops.nsa_compress_attention
        ops.nsa_select_attention ops.AkgAscendRegOp ops.AkgGpuRegOp ops.AiCPURegOp ops.TBERegOp ops.CpuRegOp
        ops.op_info_register ops.custom_info_register ops.kernel ops.ms_kernel ops.moe_distribute_combine
        ops.moe_distribute_dispatch ops.speed_fusion_attention ops.GeSwitch ops.geswitch""",
    "values of a network have no hooks: what its gradients keep is chosen when it is compiled, see Cell.recompute":
        "saved_tensors_hooks register_saved_tensors_hooks",
    "there is no parameter server; gradients are summed by collectives": "get_ps_context ops.Push ops.Pull",
    "element types of 8 bits or less have no arithmetic here": "float8_e4m3fn float8_e5m2 hifloat8 qint4x2 QuantDtype",
    "checkpoints hold what training needs; the network is the script": "export_split_mindir",
    "a network is one stage of a pipeline, and one file has the strategies of all of it":
        """merge_pipeline_strategys sync_pipeline_shared_parameters nn.PipelineGradReducer
        parallel.merge_pipeline_strategys parallel.sync_pipeline_shared_parameters""",
    "no engine notes operators one by one: gradients are asked for with value_and_grad, graphs with jit":
        "common.api._PyNativeExecutor",
    "tensors have their values always": "common._stub_tensor",
    "rows are read again in every epoch; leave `cache` out": "dataset.DatasetCache",
    "sounds are not read or changed; do it in Python, in a function that GeneratorDataset takes": "dataset.audio",
}
REASONS |= {name: why for why, names in _FAMILIES.items() for name in names.split()}


def why_absent(path: str, known: Iterable[str]) -> str:
    """What is said of a name that mspc lacks, `nn.Tril` without the first: what stands for it, why there is none, or
    the known names that are most like it; "" where nothing is known."""
    from mspc.ir.nearest import nearest  # only on the way to an error

    parts = path.split(".")
    for end in range(len(parts), 0, -1):
        beginning = ".".join(parts[:end])
        if beginning in REPLACEMENTS:
            return f"; write {REPLACEMENTS[beginning]}"
        if beginning in REASONS:
            return f"; {REASONS[beginning]}"
    found = nearest(parts[-1], known)
    return f"; did you mean {' or '.join(found)}?" if found else ""
