"""Every public name of ops, mint and Tensor has a judge, is compared on the samples of PyTorch's database, or has a
reason."""

from __future__ import annotations

from mspc import mint, ops
from mspc.mindspore_api.ops.method_table import method_names
from tests.oracle.judging import public
from tests.oracle.test_counterparts import NAMES
from tests.oracle.test_database import listed
from tests.oracle.test_judges import JUDGES
from tests.test_omissions import excepted

THROUGH_FUNCTIONS = "rare in networks; tests/oracle judges the functions that scripts call"
"""The reason in tests/omissions.toml why these operators have no counterpart."""

REASONS = {
    "ranks talk to each other, or say how a network is split: tests of collectives and of sharding hold them":
        """ops.AllGather ops.AllReduce ops.AlltoAll ops.barrier ops.Barrier ops.Broadcast ops.Exchange
        ops.NeighborExchange ops.NeighborExchangeV2 ops.Receive ops.Redistribute ops.ReduceScatter ops.Regroup ops.Send
        ops.ReceiveFromStage ops.SendToStage ops.ShardingConstraint ops.shard ops.LocalSlice ops.PasteSlices ops.reshard
        ops._VirtualDataset ops.ReduceOp ops.AlltoAllV ops.CollectiveGather ops.CollectiveScatter ops.Reduce
        mint.distributed""",
    "a graph's statement, nothing to compute":
        """ops.Depend ops.depend ops.MakeTuple ops.TupleGetItem ops.TupleGetItems ops.Gradient ops.GradOperation
        ops.grad ops.value_and_grad ops.StopGradient ops.stop_gradient ops.HyperMap ops.Map ops.MultitypeFuncGraph
        ops.Primitive ops.partial ops.Morph ops.constexpr ops._primexpr ops.Print ops.Partial ops._constexpr
        ops.add_flags ops.identity ops.make_range ops.Bounded ops.tuple_len ops.GradientPlaceholder ops.OwnGradient""",
    "nodes that run graphs: tests/runtime/test_regions.py":
        "ops.Call ops.For ops.If ops.While ops.MakeStack ops.TurnCount",
    "they run the script's functions: tests/compiler/frontend/test_tensor_loops.py":
        "ops.Scan ops.WhileLoop ops.switch",
    "the script's own function: tests/compiler/test_backward_hooks.py": "ops.HookBackward",
    "made of operators that are judged: tests/compiler/test_composed_operators.py":
        "ops.Index ops.GroupNorm ops.dropout_ext_op",
    "an older name of GeLU and FastGeLU, which are judged: tests/mindspore_api/test_index.py": "ops.Gelu ops.FastGelu",
    "made of operators that are judged: tests/mindspore_api/common/test_small_names.py":
        """ops.add_layer_norm ops.add_rms_norm ops.deepcopy ops.mixed_precision_cast ops.swiglu ops.DropoutExt
        ops.FloatStatus ops.NPUAllocFloatStatus ops.NPUClearFloatStatus ops.NPUClearFloatStatusV2 ops.NPUGetFloatStatus
        ops.NPUGetFloatStatusV2 ops.clip_by_norm ops.tensor_dot ops.InvertPermutation ops.HistogramSummary
        ops.ImageSummary ops.ScalarSummary ops.TensorSummary""",
    "made of operators that are judged: tests/mindspore_api/common/test_public_code_names.py":
        """ops.BCEWithLogitsLoss ops.Diag ops.DiagPart ops.Einsum ops.Meshgrid ops.NLLLoss ops.ReverseSequence
        ops.ScalarCast ops.ScalarToArray ops.ScalarToTensor ops.Scatter""",
    "made of operators that are judged: tests/mindspore_api/common/test_operator_classes.py":
        """ops.Bernoulli ops.Cross ops.Dense ops.GLU ops.IndexAdd ops.LogSigmoid ops.MaskedSelect ops.MatrixBandPart
        ops.Multinomial ops.NonZero ops.RandomCategorical ops.RandomShuffle ops.RandpermV2 ops.ReduceStd
        ops.ResizeNearestNeighborV2 ops.Roll ops.SearchSorted ops.TensorScatterElements ops.TensorShape ops.Unique
        ops.print_ ops.embedding""",
    "tests/oracle/test_rare_losses.py, margins": "ops.multi_margin_loss ops.multilabel_margin_loss",
    "modules": "mint.linalg mint.special",
    "known at compile time":
        "ops.is_tensor ops.DType ops.Rank ops.Shape ops.Size ops.TupleToArray ops.dtype ops.tuple_to_array Tensor.type",
    "passes make it of other operators, and hold it against these":
        """ops.BatchStatistics ops.DropoutMask ops.FusedElementwise ops.FusedLayerNorm ops.FusedMatMul ops.FusedUpdate
        ops.GroupedLookups ops.GroupedRowSums ops.GroupedRowUpdate ops.GroupedUpdate ops.JoinMovingStatistics
        ops.MovingStatistics""",
    "the gradient of an operator that has a judge":
        "ops.LayerNormGammaGrad ops.ReluGrad ops.SoftmaxBackward ops.FlashAttentionScoreShiftGrad ops.LibraryGradient",
    "its functions are compared with PyTorch's samples: tests/readers/pytorch/test_operators.py": "ops.LibraryFunction",
    "its functions are compared with NumPy: tests/readers/stablehlo/test_kinds.py": "ops.XlaFunction",
    "it overwrites a parameter: tests/oracle/test_updates.py":
        """ops.inplace_index_add ops.scatter_add ops.scatter_div ops.scatter_max ops.scatter_min ops.scatter_mul
        ops.scatter_nd_add ops.scatter_nd_div ops.scatter_nd_max ops.scatter_nd_min ops.scatter_nd_mul
        ops.scatter_nd_sub ops.scatter_nd_update ops.scatter_update ops.Assign ops.AssignAdd ops.AssignSub ops.assign
        ops.assign_add ops.assign_sub ops.ScatterAdd ops.ScatterDiv ops.ScatterMax ops.ScatterMin ops.ScatterMul
        ops.ScatterSub ops.ScatterUpdate ops.ScatterNdAdd ops.ScatterNdSub ops.ScatterNdUpdate ops.InplaceCopy""",
    "an optimizer's update, judged as the optimizer":
        """ops.Adam ops.AdamWeightDecay ops.ApplyGradientDescent ops.ApplyMomentum ops.SGD ops.AllFinite
        ops.clip_by_global_norm""",
    "random numbers, which no two libraries share: tests of sampling hold their distribution":
        """ops.dropout ops.dropout_ext ops.StandardNormal ops.UniformInt ops.bernoulli ops.rand_like ops.randn_like
        ops.randint ops.randint_like ops.randperm ops.shuffle ops.multinomial ops.random_categorical ops.gumbel_softmax
        ops.bernoulli_ext Tensor.multinomial Tensor.random_categorical Tensor.uniform Tensor.bernoulli mint.rand
        mint.randn mint.randint mint.randint_like mint.rand_like mint.randn_like mint.randperm mint.normal
        mint.multinomial mint.bernoulli ops.normal ops.rand ops.randn ops.standard_normal ops.uniform ops.dropout1d
        ops.dropout2d ops.dropout3d ops.Dropout2D ops.Dropout3D ops.UniformReal""",
    "a loss, an activation or a norm, judged with the cells":
        """ops.flash_attention_score ops.log_softmax ops.softmax mint.softmax mint.nn Tensor.softmax
        ops.binary_cross_entropy ops.fast_gelu ops.hardsigmoid ops.kl_div ops.leaky_relu ops.multi_margin_loss
        ops.multilabel_margin_loss ops.prelu ops.smooth_l1_loss ops.soft_margin_loss ops.softmin ops.threshold""",
    "of images: tests/oracle/test_convolutions.py":
        """mint.conv2d ops.adaptive_avg_pool1d ops.adaptive_avg_pool3d ops.avg_pool1d ops.avg_pool2d ops.avg_pool3d
        ops.batch_norm ops.conv1d ops.conv2d ops.conv3d ops.interpolate ops.Conv2DBackpropFilter ops.Conv2DBackpropInput
        ops.Conv3DBackpropFilter ops.Conv3DBackpropInput""",
    "tests/oracle/test_rare_losses.py": "ops.max ops.min ops.repeat_elements ops.repeat_interleave ops.rot90",
    "of images: tests/oracle/test_image_functions.py":
        """ops.Col2Im ops.adaptive_max_pool1d ops.adaptive_max_pool3d ops.affine_grid ops.conv_transpose2d ops.fold
        ops.grid_sample ops.upsample""",
    "tokens of experts, against formulas: tests/mindspore_api/common/test_names_of_language_models.py":
        "ops.moe_token_permute ops.moe_token_unpermute",
    "complex numbers and transforms: tests/oracle/test_fourier.py":
        "mint.imag Tensor.imag ops.DoubledFrequencies ops.FitSizes ops.imag",
    "parts of layers of experts and of attention over sharded sequences: tests/experts, tests/context":
        """ops.AddRows ops.ExpertOuter ops.ExpertPlaces ops.ExpertProduct ops.ExpertRows ops.ExpertSums ops.FetchRows
        ops.JoinAttention ops.SendRows ops.SetRows ops.TakeRows""",
    "copies between the memory of a device and of its host: tests/offload":
        "ops.AssignOnHost ops.AwaitHost ops.FromHost ops.ToHost",
    "groups of rows or sequences: tests/ops hold each against its own operator":
        """ops.FlashAttentionVarlen ops.GroupedMatmul ops.GroupedOuter ops.GroupedProduct ops.GroupedRows
        ops.GroupedSums""",
    "sums over the edges of a graph, against the operators that they fuse: tests/passes/fusion/test_fuse_edges.py":
        "ops.EdgeProducts ops.EdgeSums ops.OrderRows",
    "a recurrence, against a loop: tests/ops/test_scans.py": "ops.LinearRecurrence",
    "tests/ops/nn/test_token_routing.py, against loops": "ops.TopKRouter",
    "tests/ops/test_gamma.py, against SciPy": "ops.digamma ops.zeta Tensor.digamma",
    "a step of BatchNorm on a rank":
        """ops.BatchNormApply ops.BatchNormGradInput ops.BatchNormGradSums ops.ChannelMean ops.ChannelStatistics
        ops.ChannelVariance ops.JoinStatistics""",
    "a module of optimizers: tests/oracle/test_optimizer_steps.py": "mint.optim",
    "PyTorch has nothing like it: samples in tests/ops hold it against NumPy":
        """ops.rms_norm ops.dyn_shape mint.empty mint.empty_like ops.Eye ops.Fill ops.fill ops.Ones ops.Zeros ops.Range
        ops.LinSpaceBetween ops.PadV3""",
}  # fmt: skip
"""Names without a judge in these tables, by the reason."""


def names() -> set[str]:
    found = {f"ops.{name}" for name in dir(ops)} | {f"mint.{name}" for name in dir(mint)}
    return found | {f"Tensor.{name}" for name in method_names()}


def in_place() -> set[str]:
    """Forms that change a tensor: tests/mindspore_api/common/test_changes_in_place.py compares them."""
    return {name for name in names() if name.endswith("_")}


def another_names(judged: set[str]) -> set[str]:
    """Names of ops and mint that stand for an object that is judged under another name."""
    objects = {id(getattr(ops, name[4:])) for name in judged if name.startswith("ops.")}
    found = {f"{place}.{name}": getattr(module, name) for place, module in (("ops", ops), ("mint", mint))
             for name in dir(module)}  # fmt: skip
    return {name for name, value in found.items() if id(value) in objects}


def test_every_public_name_has_a_judge_or_a_reason() -> None:
    judged = {name for judge in JUDGES for name in judge.names}
    through_functions = excepted()["without_counterpart"][THROUGH_FUNCTIONS]
    judged_on_samples = {f"ops.{name}" for name in (*NAMES, *through_functions)}  # tests/oracle/test_counterparts.py
    excused = {name for listed in REASONS.values() for name in listed.split()} | in_place()
    derived = {name for name in names() if name.removesuffix("Grad") in names() - {name}}
    others = excused | derived | judged_on_samples | another_names(judged | {*listed()}) | {*listed()}
    assert sorted(names() - judged - others) == []
    assert sorted((judged | {*listed()}) & (excused - in_place())) == [], "they have a judge and a reason to have none"
    assert sorted(excused - names()) == [], "there is no such name"
    assert all(callable(public(name)) for name in judged)
