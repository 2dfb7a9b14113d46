// c += A B
__device__ __forceinline__ void multiply(float (&c)[4], const Part& a, u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." PTX "." PTX ".f32 "
        "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.at[0]), "r"(a.at[1]), "r"(a.at[2]), "r"(a.at[3]), "r"(b0), "r"(b1));
}
// Four matrices of 8 x 8 elements, transposed; lane 8 m + r says where row r of matrix m is, and gets a part of every
// column.
__device__ __forceinline__ Part load_transposed(const void* row) {
    Part to;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
        : "=r"(to.at[0]), "=r"(to.at[1]), "=r"(to.at[2]), "=r"(to.at[3]) : "r"(shared_at(row)));
    return to;
}
__device__ __forceinline__ u32 pair(float low, float high) {
    u32 r; asm("cvt.rn." PTX "x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low)); return r;
}
