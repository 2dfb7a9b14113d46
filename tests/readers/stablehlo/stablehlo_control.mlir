// ----- scanned
module @jit_scan {
  func.func public @main(%h: tensor<2x3xf32>, %w: tensor<3x3xf32>, %x: tensor<@turns@x3xf32>) -> (tensor<2x3xf32>, tensor<@turns@x2x3xf32>) {
    %z = stablehlo.constant dense<0.0> : tensor<f32>
    %y = stablehlo.broadcast_in_dim %z, dims = [] : (tensor<f32>) -> tensor<@turns@x2x3xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:5 = stablehlo.while(%xs = %x, %v = %w, %i = %c, %s = %h, %o = %y) : tensor<@turns@x3xf32>, tensor<3x3xf32>, tensor<i32>, tensor<2x3xf32>, tensor<@turns@x2x3xf32>
    cond {
      %n = stablehlo.constant dense<@turns@> : tensor<i32>
      %1 = stablehlo.compare LT, %i, %n, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
@index@
      %1 = stablehlo.constant dense<0> : tensor<i32>
      %2 = stablehlo.dynamic_slice %xs, %j, %1, sizes = [1, 3] : (tensor<@turns@x3xf32>, tensor<i32>, tensor<i32>) -> tensor<1x3xf32>
      %3 = stablehlo.broadcast_in_dim %2, dims = [0, 1] : (tensor<1x3xf32>) -> tensor<2x3xf32>
      %4 = stablehlo.dot_general %s, %v, contracting_dims = [1] x [0] : (tensor<2x3xf32>, tensor<3x3xf32>) -> tensor<2x3xf32>
      %5 = stablehlo.add %4, %3 : tensor<2x3xf32>
      %6 = stablehlo.tanh %5 : tensor<2x3xf32>
      %7 = func.call @put(%o, %6, %j) : (tensor<@turns@x2x3xf32>, tensor<2x3xf32>, tensor<i32>) -> tensor<@turns@x2x3xf32>
      %8 = stablehlo.constant dense<1> : tensor<i32>
      %9 = stablehlo.add %i, %8 : tensor<i32>
      stablehlo.return %xs, %v, %9, %6, %7 : tensor<@turns@x3xf32>, tensor<3x3xf32>, tensor<i32>, tensor<2x3xf32>, tensor<@turns@x2x3xf32>
    }
    return %0#3, %0#4 : tensor<2x3xf32>, tensor<@turns@x2x3xf32>
  }
  func.func private @put(%o: tensor<@turns@x2x3xf32>, %r: tensor<2x3xf32>, %i: tensor<i32>) -> tensor<@turns@x2x3xf32> {
    %0 = stablehlo.broadcast_in_dim %r, dims = [1, 2] : (tensor<2x3xf32>) -> tensor<1x2x3xf32>
    %c = stablehlo.constant dense<0> : tensor<i32>
    %1 = stablehlo.dynamic_update_slice %o, %0, %i, %c, %c : (tensor<@turns@x2x3xf32>, tensor<1x2x3xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<@turns@x2x3xf32>
    return %1 : tensor<@turns@x2x3xf32>
  }
}
// ----- a_loop_that_ends_when_a_condition_fails
    %0:2 = stablehlo.while(%a = %x, %n = %c) : tensor<2xf32>, tensor<i32>
    cond {
      %z = stablehlo.constant dense<0.0> : tensor<f32>
      %m = stablehlo.constant dense<100.0> : tensor<f32>
      %1 = stablehlo.reduce(%a init: %z) applies stablehlo.add across dimensions = [0] : (tensor<2xf32>, tensor<f32>) -> tensor<f32>
      %2 = stablehlo.compare LT, %1, %m, FLOAT : (tensor<f32>, tensor<f32>) -> tensor<i1>
      stablehlo.return %2 : tensor<i1>
    } do {
      %1 = stablehlo.add %a, %a : tensor<2xf32>
      %2 = stablehlo.constant dense<1> : tensor<i32>
      %3 = stablehlo.add %n, %2 : tensor<i32>
      stablehlo.return %1, %3 : tensor<2xf32>, tensor<i32>
    }
// ----- branches
    %0 = "stablehlo.case"(%i) ({
      %1 = stablehlo.negate %x : tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
    }, {
      %1 = stablehlo.exponential %x : tensor<2xf32>
      stablehlo.return %1 : tensor<2xf32>
    }, {
      stablehlo.return %x : tensor<2xf32>
    }) : (tensor<i32>) -> tensor<2xf32>
    %c = stablehlo.constant dense<1> : tensor<i32>
    %2 = stablehlo.compare LT, %i, %c, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %3 = "stablehlo.if"(%2) ({
      stablehlo.return %x : tensor<2xf32>
    }, {
      %4 = stablehlo.add %x, %x : tensor<2xf32>
      stablehlo.return %4 : tensor<2xf32>
    }) : (tensor<i1>) -> tensor<2xf32>
