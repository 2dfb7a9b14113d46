"""stay_on_main_stream: a view and a stored copy may stand ahead of what waits; large collectives keep their stream."""

from __future__ import annotations

from mspc.ir.text.parser import parse
from mspc.ops.op import REGISTRY, load_operators
from mspc.passes.communication.stay_on_main_stream import StayOnMainStream

load_operators()
SUM = (
    'primitive_attrs: {op: "sum", group: "2-5004544844489628105", rank_list: (0, 1)} '
    'cnode_attrs: {stream: "communication"}'
)
PROGRAM = """\
#IR entry      : @sums
#Total subgraph: 1

#attrs         :
mode : "auto_parallel"
ranks : 2
rank : 0
#Total params  : 3

%para1_x: <Tensor[Float32], (64, 128)>
%para2_y: <Tensor[Float32], (128)>
%para3_w: <Ref[Tensor[Float32]], (64, 128), ref_key=w>  :  has_default {trainable: true}

subgraph @sums() {
  %0 = AllReduce(%para2_y) SUM
      : (<Tensor[Float32], (128)>) -> (<Tensor[Float32], (128)>)
  %1 = Cast(%para3_w) primitive_attrs: {dst_type: BFloat16} cnode_attrs: {kept: true}
      : (<Tensor[Float32], (64, 128)>) -> (<Tensor[BFloat16], (64, 128)>)
  %2 = Reshape(%0) primitive_attrs: {shape: (1, 128)}
      : (<Tensor[Float32], (128)>) -> (<Tensor[Float32], (1, 128)>)
  %3 = Mul(%para1_x, %2)
      : (<Tensor[Float32], (64, 128)>, <Tensor[Float32], (1, 128)>) -> (<Tensor[Float32], (64, 128)>)
  %4 = AllReduce(%3) SUM
      : (<Tensor[Float32], (64, 128)>) -> (<Tensor[Float32], (64, 128)>)
  %5 = Cast(%4) primitive_attrs: {dst_type: BFloat16}
      : (<Tensor[Float32], (64, 128)>) -> (<Tensor[BFloat16], (64, 128)>)
  %6 = Add(%5, %1)
      : (<Tensor[BFloat16], (64, 128)>, <Tensor[BFloat16], (64, 128)>) -> (<Tensor[BFloat16], (64, 128)>)
  Return(%6)
      : (<Tensor[BFloat16], (64, 128)>)
}
"""


def test_only_what_is_small_and_waited_for_at_once_changes_its_stream() -> None:
    graph = parse(PROGRAM.replace("SUM", SUM), REGISTRY, file="sums.ir", frames=True).main
    assert StayOnMainStream().run(graph)
    assert [node.attrs.get("stream") for node in graph.nodes if node.op.is_collective] == [None, "communication"]
    assert not StayOnMainStream().run(graph)
