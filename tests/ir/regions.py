"""Texts whose nodes run graphs, for tests."""

from __future__ import annotations

LOOP = """\
#IR entry      : @net
#Total subgraph: 5

#attrs         :
#Total params  : 3

%para1_x: <Tensor[Float32], (4)>
%para2_n: <Tensor[Int64], ()>
%para3_w: <Ref[Tensor[Float32]], (4), ref_key=w>  :  has_default {trainable: true}

subgraph @net() {
  %0 = While(Tensor(shape=[], dtype=Int64, value=0), %para1_x, %para2_n, %para3_w) \
{regions: @while_1_condition, @while_1_body} primitive_attrs: {carried: 2}
      : (<Tensor[Int64], ()>, <Tensor[Float32], (4)>, <Tensor[Int64], ()>, <Tensor[Float32], (4)>) -> \
(<Tuple[Tensor[Int64],Tensor[Float32]], TupleShape((), (4))>)
  %1 = TupleGetItem(%0) primitive_attrs: {index: 1}
      : (<Tuple[Tensor[Int64],Tensor[Float32]], TupleShape((), (4))>) -> (<Tensor[Float32], (4)>)
  Return(%1)
      : (<Tensor[Float32], (4)>)
}

%para4_turn: <Tensor[Int64], ()>
%para5_y: <Tensor[Float32], (4)>
%para6_n: <Tensor[Int64], ()>
%para7_w: <Tensor[Float32], (4)>
subgraph @while_1_condition(%para4_turn, %para5_y, %para6_n, %para7_w) {
  %0 = Less(%para4_turn, %para6_n)
      : (<Tensor[Int64], ()>, <Tensor[Int64], ()>) -> (<Tensor[Bool], ()>)
  Return(%0)
      : (<Tensor[Bool], ()>)
}

%para8_turn: <Tensor[Int64], ()>
%para9_y: <Tensor[Float32], (4)>
%para10_n: <Tensor[Int64], ()>
%para11_w: <Tensor[Float32], (4)>
subgraph @while_1_body(%para8_turn, %para9_y, %para10_n, %para11_w) {
  %0 = Add(%para8_turn, Tensor(shape=[], dtype=Int64, value=1))
      : (<Tensor[Int64], ()>, <Tensor[Int64], ()>) -> (<Tensor[Int64], ()>)
  %1 = Greater(%para10_n, Tensor(shape=[], dtype=Int64, value=3))
      : (<Tensor[Int64], ()>, <Tensor[Int64], ()>) -> (<Tensor[Bool], ()>)
  %2 = If(%1, %para9_y, %para11_w) {regions: @if_2_then, @if_2_else}
      : (<Tensor[Bool], ()>, <Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> \
(<Tuple[Tensor[Float32]], TupleShape((4))>)
  %3 = TupleGetItem(%2) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((4))>) -> (<Tensor[Float32], (4)>)
  Return((%0, %3))
      : (<Tensor[Int64], ()>, <Tensor[Float32], (4)>)
}

%para12_y: <Tensor[Float32], (4)>
%para13_w: <Tensor[Float32], (4)>
subgraph @if_2_then(%para12_y, %para13_w) {
  %0 = Mul(%para12_y, %para13_w)
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}

%para14_y: <Tensor[Float32], (4)>
%para15_w: <Tensor[Float32], (4)>
subgraph @if_2_else(%para14_y, %para15_w) {
  Return(%para15_w)
      : (<Tensor[Float32], (4)>)
}
"""
