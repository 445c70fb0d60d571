// What attention kernels share: the batch, and the softmax of a tile of keys, whose every rounding is the same in all.
#pragma once

struct Attend {
    const u16 *q; // [rows][heads][dim], pitch ld
    u16 *out;     // the same shape
    const char *pool;
    const int *tables;  // block numbers of all sequences
    const int4 *tiles;  // {row of the first token, its position, tokens, where its sequence's blocks start in tables}
    i64 ld;
    i64 block, layer, head, value; // bytes: of a block; to the layer; of one head's K; from K to V
    int heads, kv_heads, dim, shift; // a block has 1 << shift tokens
    float scale;                     // log2(e) / sqrt(dim)
};

const int KEYS = 64; // of a tile

// power is 2^x; 0 for -inf, 1 for 0.
DEV float power(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

// softmax turns a thread's scores of one row into weights relative to the running maximum and returns by how much that
// shrank, which is 1 where it stays. s holds two rows of an accumulator; h says which is meant. Where MASK is set the row
// sees only seen keys of the tile.
template <bool MASK> DEV float softmax(float (&s)[8][4], int h, int seen, float scale, float &top, float &sum) {
    const int lane = threadIdx.x & 31;
    float high = top;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float &v = s[j][h * 2 + e];
            if (MASK && j * 8 + lane % 4 * 2 + e >= seen) v = -INFINITY_F;
            high = fmaxf(high, v);
        }
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 1));
    high = fmaxf(high, __shfl_xor_sync(~0u, high, 2));
    const float zero = __fmul_rn(high, scale), shrink = power(__fsub_rn(__fmul_rn(top, scale), zero));
    float part = 0;
#pragma unroll
    for (int j = 0; j < 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            float &v = s[j][h * 2 + e];
            v = power(__fmaf_rn(v, scale, -zero));
            part = __fadd_rn(part, v);
        }
    sum = __fmaf_rn(sum, shrink, part);
    top = high;
    return shrink;
}
