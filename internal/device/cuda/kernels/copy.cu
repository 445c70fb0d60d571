// Copies of many pieces between the GPU's memory and pinned memory of the host, which the threads read and write over
// the link themselves. It takes a few multiprocessors while it runs; the copy engines take none.
#include "prelude.cuh"

struct Piece {
    uint4 *dst;
    const uint4 *src;
    i64 n; // in 16 bytes
};

// As many as fit the 4 KiB that a kernel's arguments may have.
struct Pieces {
    Piece at[160];
    i64 count;
};

DEV uint4 read16(const uint4 *p) {
    uint4 v;
    asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
    return v;
}

DEV void write16(uint4 *p, uint4 v) {
    asm volatile("st.global.cs.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(p), "r"(v.x), "r"(v.y), "r"(v.z), "r"(v.w) : "memory");
}

const int DEEP = 8, THREADS = 256, CHUNK = DEEP * THREADS; // 32 KiB of reads are under way in a block

// Blocks take chunks in turn, over the ends of pieces.
extern "C" __global__ void __launch_bounds__(256) copy_pieces(Pieces p) {
    const int blocks = gridDim.x;
    int mine = blockIdx.x; // the next chunk of this block, counted from the piece's first
    for (int i = 0; i < p.count; i++) {
        const uint4 *src = p.at[i].src;
        uint4 *dst = p.at[i].dst;
        const i64 n = p.at[i].n;
        const int chunks = (int)((n + CHUNK - 1) / CHUNK);
        for (; mine < chunks; mine += blocks) {
            const i64 first = (i64)mine * CHUNK + threadIdx.x;
            uint4 v[DEEP];
#pragma unroll
            for (int k = 0; k < DEEP; k++)
                if (first + k * THREADS < n) v[k] = read16(src + first + k * THREADS);
#pragma unroll
            for (int k = 0; k < DEEP; k++)
                if (first + k * THREADS < n) write16(dst + first + k * THREADS, v[k]);
        }
        mine -= chunks;
    }
}
