// What all kernels share: types, bf16, tensor-core and asynchronous-copy instructions of compute capability 8.0. No
// header of the toolkit is needed.
#pragma once

typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef long long i64;

#define DEV static __device__ __forceinline__

#define INFINITY_F __int_as_float(0x7f800000)

DEV float from_bf16(u16 b) { return __uint_as_float((u32)b << 16); }

DEV u16 to_bf16(float f) {
    u16 b;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(b) : "f"(f));
    return b;
}

// pack2 rounds two values; lo is the lower half.
DEV u32 pack2(float lo, float hi) {
    u32 r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

// smem_addr is a pointer's address within shared memory.
DEV u32 smem_addr(const void *p) { return (u32)__cvta_generic_to_shared(p); }

// copy16 starts a copy of 16 bytes to shared memory; where ok is false it writes zeros and reads nothing.
DEV void copy16(u32 dst, const void *src, bool ok) {
    int n = ok ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(dst), "l"(src), "r"(n) : "memory");
}

DEV void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// copy_wait waits until at most N of this thread's groups are under way.
template <int N> DEV void copy_wait() { asm volatile("cp.async.wait_group %0;" ::"n"(N) : "memory"); }

// load4 reads four 8x8 matrices of bf16; each lane gives the address of one of their rows.
DEV void load4(u32 r[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

DEV void load4_transposed(u32 r[4], u32 addr) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(addr)
                 : "memory");
}

// mma adds the product of a 16x16 and a 16x8 matrix to c. An element's sum does not depend on its place.
DEV void mma(float c[4], const u32 a[4], u32 b0, u32 b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEV float warp_sum(float v) {
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) v += __shfl_xor_sync(~0u, v, d);
    return v;
}
