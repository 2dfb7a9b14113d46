// ----- step
module @jit_step attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<8x8xf32> {mhlo.sharding = "{devices=[1,2,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}, %arg1: tensor<8x8xf32> {mhlo.sharding = "{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}"}, %arg2: tensor<2x8xf32> {mhlo.sharding = "{devices=[2,1,2]<=[4] last_tile_dim_replicate}"}) -> (tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>) {
    %cst = stablehlo.constant dense<1.000000e-01> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %1 = stablehlo.dot %arg2, %arg0 : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32>
    %2 = "mhlo.fusion"(%1) <{fusion_kind = #mhlo<fusion_kind kLoop>}> ({
    ^bb0(%arg3: tensor<2x8xf32>):
      %cst_1 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
      %14 = stablehlo.broadcast_in_dim %cst_1, dims = [] : (tensor<f32>) -> tensor<2x8xf32>
      %15 = stablehlo.maximum %arg3, %14 : tensor<2x8xf32>
      mhlo.return %15 : tensor<2x8xf32>
    }) : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %3 = stablehlo.dot_general %arg2, %2, contracting_dims = [0] x [0] : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %4 = "stablehlo.all_reduce"(%3) <{channel_handle = #stablehlo.channel_handle<handle = 3, type = 0>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %14 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %14 : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %5 = stablehlo.multiply %0, %4 : tensor<8x8xf32>
    %6 = stablehlo.subtract %arg0, %5 : tensor<8x8xf32>
    %7 = stablehlo.dot %2, %arg1 : (tensor<2x8xf32>, tensor<8x8xf32>) -> tensor<2x8xf32> loc(fused["jit(step)/mlp/dot_general", "step.py":7:11])
    %8 = "stablehlo.all_reduce"(%7) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1], [2, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %14 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %14 : tensor<f32>
    }) : (tensor<2x8xf32>) -> tensor<2x8xf32> loc(fused["jit(step)/mlp/dot_general", "step.py":7:11])
    %9 = stablehlo.dot_general %2, %8, contracting_dims = [0] x [0] : (tensor<2x8xf32>, tensor<2x8xf32>) -> tensor<8x8xf32>
    %10 = "stablehlo.all_reduce"(%9) <{channel_handle = #stablehlo.channel_handle<handle = 4, type = 0>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %14 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %14 : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<8x8xf32>
    %11 = stablehlo.subtract %arg1, %10 : tensor<8x8xf32>
    %cst_0 = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %12 = stablehlo.reduce(%8 init: %cst_0) applies stablehlo.add across dimensions = [0, 1] : (tensor<2x8xf32>, tensor<f32>) -> tensor<f32>
    %13 = "stablehlo.all_reduce"(%12) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 0>, replica_groups = dense<[[0, 2], [1, 3]]> : tensor<2x2xi64>, use_global_device_ids}> ({
    ^bb0(%arg3: tensor<f32>, %arg4: tensor<f32>):
      %14 = stablehlo.add %arg3, %arg4 : tensor<f32>
      stablehlo.return %14 : tensor<f32>
    }) : (tensor<f32>) -> tensor<f32>
    return %6, %11, %13 : tensor<8x8xf32>, tensor<8x8xf32>, tensor<f32>
  }
}

// ----- gather
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<8x8xf32> {
    %0 = "stablehlo.all_gather"(%arg0) <{all_gather_dim = 0 : i64, channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, use_global_device_ids}> : (tensor<2x8xf32>) -> tensor<8x8xf32>
    return %0 : tensor<8x8xf32>
  }
}

// ----- ring
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<2x8xf32> {
    %0 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %1 = "stablehlo.collective_permute"(%0) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 0>, source_target_pairs = dense<[[1, 0], [2, 1], [3, 2], [0, 3]]> : tensor<4x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
    return %1 : tensor<2x8xf32>
  }
}

// ----- line
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<2x8xf32> {
    %0 = stablehlo.partition_id : tensor<ui32>
    %c = stablehlo.constant dense<3> : tensor<ui32>
    %1 = stablehlo.compare  EQ, %0, %c : (tensor<ui32>, tensor<ui32>) -> tensor<i1>
    %2 = "stablehlo.collective_permute"(%arg0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3]]> : tensor<3x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %3 = "stablehlo.collective_permute"(%2) <{channel_handle = #stablehlo.channel_handle<handle = 2, type = 0>, source_target_pairs = dense<[[1, 0], [2, 1], [3, 2], [0, 3]]> : tensor<4x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
    %4 = stablehlo.select %1, %arg0, %3 : tensor<i1>, tensor<2x8xf32>
    return %4 : tensor<2x8xf32>
  }
}

// ----- slices
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<8x2xf32> {
    %0 = stablehlo.slice %arg0 [0:2, 0:2] : (tensor<2x8xf32>) -> tensor<2x2xf32>
    %1 = stablehlo.slice %arg0 [0:2, 2:4] : (tensor<2x8xf32>) -> tensor<2x2xf32>
    %2 = stablehlo.slice %arg0 [0:2, 4:6] : (tensor<2x8xf32>) -> tensor<2x2xf32>
    %3 = stablehlo.slice %arg0 [0:2, 6:8] : (tensor<2x8xf32>) -> tensor<2x2xf32>
    %4:4 = "mhlo.all_to_all"(%0, %1, %2, %3) <{channel_handle = #mhlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>}> : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>)
    %5 = stablehlo.concatenate %4#0, %4#1, %4#2, %4#3, dim = 0 : (tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>, tensor<2x2xf32>) -> tensor<8x2xf32>
    return %5 : tensor<8x2xf32>
  }
}

// ----- scatter
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<8x2xf32> {
    %cst = stablehlo.constant dense<0.000000e+00> : tensor<f32>
    %0 = stablehlo.broadcast_in_dim %cst, dims = [] : (tensor<f32>) -> tensor<8x8xf32>
    %c = stablehlo.constant dense<[0, 2, 4, 6]> : tensor<4xi32>
    %1 = stablehlo.partition_id : tensor<ui32>
    %2 = stablehlo.dynamic_slice %c, %1, sizes = [1] : (tensor<4xi32>, tensor<ui32>) -> tensor<1xi32>
    %3 = stablehlo.reshape %2 : (tensor<1xi32>) -> tensor<i32>
    %c_0 = stablehlo.constant dense<0> : tensor<i32>
    %4 = stablehlo.dynamic_update_slice %0, %arg0, %3, %c_0 : (tensor<8x8xf32>, tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<8x8xf32>
    %5 = "stablehlo.reduce_scatter"(%4) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, replica_groups = dense<[[0, 1, 2, 3]]> : tensor<1x4xi64>, scatter_dimension = 1 : i64, use_global_device_ids}> ({
    ^bb0(%arg1: tensor<f32>, %arg2: tensor<f32>):
      %6 = stablehlo.add %arg1, %arg2 : tensor<f32>
      stablehlo.return %6 : tensor<f32>
    }) : (tensor<8x8xf32>) -> tensor<8x2xf32>
    return %5 : tensor<8x2xf32>
  }
}

// ----- other_order_in_memory
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<2x8xf32> {
    %0 = mhlo.bitcast %arg0 {result_layout = dense<[0, 1]> : tensor<2xindex>, source_layout = dense<[1, 0]> : tensor<2xindex>, xla_shape = "f32[8,2]{0,1}"} : (tensor<2x8xf32>) -> tensor<8x2xf32>
    %1 = stablehlo.transpose %0, dims = [1, 0] : (tensor<8x2xf32>) -> tensor<2x8xf32>
    return %1 : tensor<2x8xf32>
  }
}

// ----- loop
module @rows attributes {mhlo.num_partitions = 4 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{devices=[4,1]<=[4]}"}) -> tensor<2x8xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0:2 = stablehlo.while(%iterArg = %c, %iterArg_0 = %arg0) : tensor<i32>, tensor<2x8xf32>
    cond {
      %c_1 = stablehlo.constant dense<4> : tensor<i32>
      %1 = stablehlo.compare  LT, %iterArg, %c_1 : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %1 : tensor<i1>
    } do {
      %c_1 = stablehlo.constant dense<1> : tensor<i32>
      %1 = stablehlo.add %iterArg, %c_1 : tensor<i32>
      %2 = "stablehlo.collective_permute"(%iterArg_0) <{channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>, source_target_pairs = dense<[[0, 1], [1, 2], [2, 3], [3, 0]]> : tensor<4x2xi64>}> : (tensor<2x8xf32>) -> tensor<2x8xf32>
      stablehlo.return %1, %2 : tensor<i32>, tensor<2x8xf32>
    }
    return %0#1 : tensor<2x8xf32>
  }
}

// ----- slices_in_two
module @slices attributes {mhlo.num_partitions = 2 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{replicated}"}, %arg1: tensor<i32> {mhlo.sharding = "{replicated}"}) -> tensor<2x3xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %0 = stablehlo.dynamic_slice %arg0, %c, %arg1, sizes = [2, 6] : (tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x6xf32>
    %c_0 = stablehlo.constant dense<[0, 3]> : tensor<2xi32>
    %1 = stablehlo.partition_id : tensor<ui32>
    %2 = stablehlo.dynamic_slice %c_0, %1, sizes = [1] : (tensor<2xi32>, tensor<ui32>) -> tensor<1xi32>
    %3 = stablehlo.reshape %2 : (tensor<1xi32>) -> tensor<i32>
    %4 = stablehlo.dynamic_slice %0, %c, %3, sizes = [2, 3] : (tensor<2x6xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %4 : tensor<2x3xf32>
  }
}

// ----- start_beyond
module @slices attributes {mhlo.num_partitions = 2 : i32} {
  func.func @main(%arg0: tensor<2x8xf32> {mhlo.sharding = "{replicated}"}, %arg1: tensor<i32> {mhlo.sharding = "{replicated}"}) -> tensor<2x3xf32> {
    %c = stablehlo.constant dense<0> : tensor<i32>
    %c_0 = stablehlo.constant dense<[0, 3]> : tensor<2xi32>
    %0 = stablehlo.partition_id : tensor<ui32>
    %1 = stablehlo.dynamic_slice %c_0, %0, sizes = [1] : (tensor<2xi32>, tensor<ui32>) -> tensor<1xi32>
    %2 = stablehlo.reshape %1 : (tensor<1xi32>) -> tensor<i32>
    %3 = stablehlo.add %arg1, %2 : tensor<i32>
    %4 = stablehlo.dynamic_slice %arg0, %c, %3, sizes = [2, 3] : (tensor<2x8xf32>, tensor<i32>, tensor<i32>) -> tensor<2x3xf32>
    return %4 : tensor<2x3xf32>
  }
}

// ----- momentum
module @jit_step attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["data"=2, "fsdp"=2, "model"=2]>
  func.func public @main(
      %w: tensor<8x16xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {"model"}]>},
      %m: tensor<8x16xf32> {tf.aliasing_output = 1 : i32, sdy.sharding = #sdy.sharding<@mesh, [{"fsdp"}, {"model"}]>},
      %x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "fsdp"}, {}]>})
      -> (tensor<8x16xf32>, tensor<8x16xf32>, tensor<f32>) {
    %zero = stablehlo.constant dense<0.0> : tensor<f32>
    %decay = stablehlo.constant dense<0.9> : tensor<8x16xf32>
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
    %t = stablehlo.tanh %y : tensor<16x16xf32>
    %g = stablehlo.dot_general %x, %t, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
    %sq = stablehlo.multiply %g, %g : tensor<8x16xf32>
    %norm = stablehlo.reduce(%sq init: %zero) applies stablehlo.add across dimensions = [0, 1] : (tensor<8x16xf32>, tensor<f32>) -> tensor<f32>
    %spread = stablehlo.broadcast_in_dim %norm, dims = [] : (tensor<f32>) -> tensor<8x16xf32>
    %clipped = stablehlo.divide %g, %spread : tensor<8x16xf32>
    %old = stablehlo.multiply %m, %decay : tensor<8x16xf32>
    %new = stablehlo.add %old, %clipped : tensor<8x16xf32>
    %after = stablehlo.subtract %w, %new : tensor<8x16xf32>
    return %after, %new, %norm : tensor<8x16xf32>, tensor<8x16xf32>, tensor<f32>
  }
}

// ----- rows
module @jit_step attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["data"=2, "fsdp"=2, "model"=2]>
  func.func public @main(
      %w: tensor<20x8x16xf32> {tf.aliasing_output = 0 : i32, sdy.sharding = #sdy.sharding<@mesh, [{}, {"fsdp"}, {"model"}]>},
      %x: tensor<16x8xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data", "fsdp"}, {}]>}) -> (tensor<20x8x16xf32>, tensor<i32>) {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %end = stablehlo.constant dense<20> : tensor<i32>
    %none = stablehlo.constant dense<0.0> : tensor<20x8x16xf32>
    %r:2 = stablehlo.while(%i = %zero, %rows = %none) : tensor<i32>, tensor<20x8x16xf32>
    cond {
      %c = stablehlo.compare LT, %i, %end, SIGNED : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %c : tensor<i1>
    } do {
      %first = stablehlo.constant dense<0> : tensor<i32>
      %step = stablehlo.constant dense<1> : tensor<i32>
      %own = stablehlo.dynamic_slice %w, %i, %first, %first, sizes = [1, 8, 16] : (tensor<20x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<1x8x16xf32>
      %flat = stablehlo.reshape %own : (tensor<1x8x16xf32>) -> tensor<8x16xf32>
      %y = stablehlo.dot_general %x, %flat, contracting_dims = [1] x [0] : (tensor<16x8xf32>, tensor<8x16xf32>) -> tensor<16x16xf32>
      %g = stablehlo.dot_general %x, %y, contracting_dims = [0] x [0] : (tensor<16x8xf32>, tensor<16x16xf32>) -> tensor<8x16xf32>
      %row = stablehlo.reshape %g : (tensor<8x16xf32>) -> tensor<1x8x16xf32>
      %more = stablehlo.dynamic_update_slice %rows, %row, %i, %first, %first : (tensor<20x8x16xf32>, tensor<1x8x16xf32>, tensor<i32>, tensor<i32>, tensor<i32>) -> tensor<20x8x16xf32>
      %next = stablehlo.add %i, %step : tensor<i32>
      stablehlo.return %next, %more : tensor<i32>, tensor<20x8x16xf32>
    }
    %after = stablehlo.subtract %w, %r#1 : tensor<20x8x16xf32>
    return %after, %r#0 : tensor<20x8x16xf32>, tensor<i32>
  }
}
