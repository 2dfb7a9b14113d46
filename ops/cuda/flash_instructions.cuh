// Products of fragments on tensor cores, in which the kernels of fused attention differ by the type of their elements.
//
// Tensor cores multiply fragments; lane 4g + t of a warp holds a part of each (PTX ISA). C is 16 x 8: the lane holds
// C[g, 2t], C[g, 2t + 1], C[g + 8, 2t], C[g + 8, 2t + 1]. Registers of A hold 4 bytes each of row g, row g + 8, and of
// both again 16 bytes further on; those of B 4 bytes of column g, and again 16 bytes further on:
//
// * halves, mma.m16n8k16: two elements in a register, so that two neighbouring C are the A of the next product;
// * Float32, mma.m16n8k8 of TF32: one element. The order of a sum's terms does not matter: places t and t + 4 of the
//   next product are columns 2t and 2t + 1 of C, so that a C is an A.
//
// Either way 32 bytes of a row are a step of a product over the depth, and ldmatrix loads the bytes that a lane needs.

#include "copy_instructions.cuh"

// Everything that is written in PTX, one instruction each.
typedef unsigned int u32;
struct Part { u32 at[4]; };
// Four matrices of 8 rows of 16 bytes; lane 8 m + r says where row r of matrix m is, and lane 4 r + c gets bytes from
// 4 c on of row r of every one.
__device__ __forceinline__ Part load_matrices(const void* row) {
    Part to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"(shared_at(row)));
    return to;
}
// 16 bytes from global to shared memory, or zeros; see close_copies() and await_copies().
__device__ __forceinline__ void copy_async(void* to, const void* from, bool there) {
    const int bytes = there ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
        :: "r"(shared_at(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ float power_of_2(float v) {
    float r; asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(v)); return r;
}
