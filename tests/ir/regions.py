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

PROGRAM = """\
#IR entry      : @net
#Total subgraph: 9

#attrs         :
#Total params  : 4

%para1_x: <Tensor[Float32], (4)>
%para2_n: <Tensor[Int64], ()>
%para3_xs: <Tensor[Float32], (3, 4)>
%para4_w: <Ref[Tensor[Float32]], (4), ref_key=w>  :  has_default {trainable: true}

subgraph @net() {
  %0 = Greater(%para2_n, Tensor(shape=[], dtype=Int64, value=0))
      : (<Tensor[Int64], ()>, <Tensor[Int64], ()>) -> (<Tensor[Bool], ()>)
  %1 = If(%0, %para1_x) {regions: @if_1_then, @if_1_else}
      : (<Tensor[Bool], ()>, <Tensor[Float32], (4)>) -> (<Tuple[Tensor[Float32]], TupleShape((4))>)
  %2 = TupleGetItem(%1) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((4))>) -> (<Tensor[Float32], (4)>)
  %3 = While(Tensor(shape=[], dtype=Int64, value=0), %2, %para2_n, %para4_w) \
{regions: @while_2_condition, @while_2_body} primitive_attrs: {carried: 2}
      : (<Tensor[Int64], ()>, <Tensor[Float32], (4)>, <Tensor[Int64], ()>, <Tensor[Float32], (4)>) -> \
(<Tuple[Tensor[Int64],Tensor[Float32]], TupleShape((), (4))>)
  %4 = TupleGetItem(%3) primitive_attrs: {index: 1}
      : (<Tuple[Tensor[Int64],Tensor[Float32]], TupleShape((), (4))>) -> (<Tensor[Float32], (4)>)
  %5 = For(%4) {regions: @for_3_body} primitive_attrs: {carried: 1, stacked: 1, turns: 3}
      : (<Tensor[Float32], (4)>) -> (<Tuple[Tensor[Float32]*2], TupleShape((4), (3, 4))>)
  %6 = TupleGetItem(%5) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]*2], TupleShape((4), (3, 4))>) -> (<Tensor[Float32], (4)>)
  %7 = Scan(%6, %para3_xs) {regions: @scan_4_body} primitive_attrs: {carried: 1, scanned: 1, turns: 3}
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (3, 4)>) -> (<Tuple[Tensor[Float32]], TupleShape((4))>)
  %8 = TupleGetItem(%7) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((4))>) -> (<Tensor[Float32], (4)>)
  %9 = Call(%8, %para4_w) {regions: @layer}
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tuple[Tensor[Float32]], TupleShape((4))>)
  %10 = TupleGetItem(%9) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((4))>) -> (<Tensor[Float32], (4)>)
  %11 = Call(%10, %para4_w) {regions: @layer}
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tuple[Tensor[Float32]], TupleShape((4))>)
  %12 = TupleGetItem(%11) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32]], TupleShape((4))>) -> (<Tensor[Float32], (4)>)
  %13 = For(%para2_n, %12) {regions: @for_5_body} primitive_attrs: {carried: 1, stacked: 1, turns: -1}
      : (<Tensor[Int64], ()>, <Tensor[Float32], (4)>) -> \
(<Tuple[Tensor[Float32],Stack[Float32]], TupleShape((4), (4))>)
  %14 = TupleGetItem(%13) primitive_attrs: {index: 0}
      : (<Tuple[Tensor[Float32],Stack[Float32]], TupleShape((4), (4))>) -> (<Tensor[Float32], (4)>)
  %15 = TupleGetItem(%5) primitive_attrs: {index: 1}
      : (<Tuple[Tensor[Float32]*2], TupleShape((4), (3, 4))>) -> (<Tensor[Float32], (3, 4)>)
  Return((%14, %15))
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (3, 4)>)
}

%para5_x: <Tensor[Float32], (4)>
subgraph @if_1_then(%para5_x) {
  %0 = Tanh(%para5_x)
      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}

%para6_x: <Tensor[Float32], (4)>
subgraph @if_1_else(%para6_x) {
  %0 = Neg(%para6_x)
      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}

%para7_i: <Tensor[Int64], ()>
%para8_y: <Tensor[Float32], (4)>
%para9_n: <Tensor[Int64], ()>
%para10_w: <Tensor[Float32], (4)>
subgraph @while_2_condition(%para7_i, %para8_y, %para9_n, %para10_w) {
  %0 = Less(%para7_i, %para9_n)
      : (<Tensor[Int64], ()>, <Tensor[Int64], ()>) -> (<Tensor[Bool], ()>)
  Return(%0)
      : (<Tensor[Bool], ()>)
}

%para11_i: <Tensor[Int64], ()>
%para12_y: <Tensor[Float32], (4)>
%para13_n: <Tensor[Int64], ()>
%para14_w: <Tensor[Float32], (4)>
subgraph @while_2_body(%para11_i, %para12_y, %para13_n, %para14_w) {
  %0 = Add(%para11_i, Tensor(shape=[], dtype=Int64, value=1))
      : (<Tensor[Int64], ()>, <Tensor[Int64], ()>) -> (<Tensor[Int64], ()>)
  %1 = Mul(%para12_y, %para14_w)
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return((%0, %1))
      : (<Tensor[Int64], ()>, <Tensor[Float32], (4)>)
}

%para15_turn: <Tensor[Int64], ()>
%para16_y: <Tensor[Float32], (4)>
subgraph @for_3_body(%para15_turn, %para16_y) {
  %0 = Tanh(%para16_y)
      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return((%0, %para16_y))
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>)
}

%para17_total: <Tensor[Float32], (4)>
%para18_x: <Tensor[Float32], (4)>
subgraph @scan_4_body(%para17_total, %para18_x) {
  %0 = Add(%para17_total, %para18_x)
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}

%para19_x: <Tensor[Float32], (4)>
%para20_w: <Tensor[Float32], (4)>
subgraph @layer(%para19_x, %para20_w) {
  %0 = Mul(%para19_x, %para20_w)
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return(%0)
      : (<Tensor[Float32], (4)>)
}

%para21_turn: <Tensor[Int64], ()>
%para22_y: <Tensor[Float32], (4)>
subgraph @for_5_body(%para21_turn, %para22_y) {
  %0 = Neg(%para22_y)
      : (<Tensor[Float32], (4)>) -> (<Tensor[Float32], (4)>)
  Return((%0, %para22_y))
      : (<Tensor[Float32], (4)>, <Tensor[Float32], (4)>)
}
"""
"""One of each operator that runs graphs, as docs/reference/ir-regions.md shows them."""
