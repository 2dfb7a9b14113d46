"""Parallel training through the newer interface, under mspc's own name."""

import mspc as ms
from mspc import nn, ops
from mspc.ir.types import DType
from mspc.parallel.auto_parallel import AutoParallel

ms.set_context(mode=ms.GRAPH_MODE, device_target="Ascend", max_call_depth=10000)  # ignored mspc.set_context(device_target), mspc.set_context(max_call_depth)
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", pipeline_stages_of_all=4)  # lacks mspc.set_auto_parallel_context(pipeline_stages_of_all)
ms.set_auto_parallel_context(parallel_optimizer_config={"gradient_accumulation_shard": True, "parallel_optimizer_threshold": 0})  # ignored mspc.set_auto_parallel_context(parallel_optimizer_config['gradient_accumulation_shard'])
ms.runtime.set_memory(max_size="28GB")  # ignored mspc.runtime.set_memory(max_size)
ms.runtime.launch_blocking()  # ignored mspc.runtime.launch_blocking()


class Layer(nn.Cell):
    def __init__(self, hidden):
        super().__init__()
        self.weight = ms.Parameter(ms.Tensor([[1.0]]), name="weight", requires_grad=True, on="npu")  # lacks mspc.Parameter(on)
        self.matmul = ops.MatMul(transpose_b=True).shard(((2, 4), (1, 4)))
        self.matmul.shard(in_strategy=((2, 4), (1, 4)), out_plan=None)
        self.recompute(use_reentrant=False)

    def construct(self, x):
        return self.matmul(x, self.weight)


net = AutoParallel(Layer(8), parallel_mode="semi_auto")
net.hsdp(shard_size=-1, threshold=0, optimizer_level="level2")
net.print_local_norm()  # ignored mspc.parallel.auto_parallel.AutoParallel.print_local_norm()
net.save_everything_to("x")
print(DType, ms.Layout((2, 4), ("dp", "mp")))
