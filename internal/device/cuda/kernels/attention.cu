// Paged causal attention with an online softmax (Milakov and Gimelshein 2018; Dao 2023) on tensor cores.
//
// A block takes a tile of query rows of one KV head: row r is query head r % group of the group, token r / group. It
// walks the keys from position 0 in tiles of 64, so what a row becomes depends on its own keys alone: a tile that a row
// does not see changes nothing in it, and how rows share a block does not matter.
#include "prelude.cuh"

#include "softmax.cuh"

// piece is where 16 bytes of a row lie, swizzled so that ldmatrix meets no bank twice.
template <int DP> DEV u32 piece(int r, int c) {
    const int x = DP >= 64 ? r & 7 : DP == 32 ? r >> 1 & 3 : r >> 2 & 1;
    return r * (DP * 2) + ((c ^ x) << 4);
}

// WARPS warps of 16 rows each or, where SHARED is set, of the same 16 rows: then each scores a part of the keys, all take
// the softmax of all scores, and each weighs a part of the values. The sums are the same, in the same order.
template <int DP, int WARPS, bool SHARED, int STAGES> struct Flash {
    static const int TILE = KEYS * DP * 2, PIECES = DP / 8, STEPS = DP / 16, OUT = SHARED ? WARPS : 1, NT = DP / 8 / OUT;

    const Attend &p;
    unsigned char *mem;
    u32 smem;
    int4 t;
    int group, kvh, total;

    __device__ __forceinline__ Flash(const Attend &a, unsigned char *s) : p(a), mem(s), smem(smem_addr(s)) {
        t = p.tiles[blockIdx.y];
        kvh = blockIdx.x;
        group = p.heads / p.kv_heads;
        total = t.y + t.z; // keys that the last row sees
    }

    __device__ __forceinline__ const char *slot(int pos) {
        const i64 b = p.tables[t.w + (pos >> p.shift)];
        return p.pool + b * p.block + p.layer + kvh * p.head + (i64)(pos & ((1 << p.shift) - 1)) * p.dim * 2;
    }

    // load starts the copy of keys and values from position k0 on. What lies past the last is zero.
    __device__ __forceinline__ void load(int stage, int k0) {
        const u32 at = stage * 2 * TILE;
        if (p.dim % 8 == 0) {
            for (int i = threadIdx.x; i < KEYS * PIECES; i += WARPS * 32) {
                const int r = i / PIECES, c = i % PIECES;
                const bool ok = k0 + r < total && c * 8 < p.dim;
                const char *src = ok ? slot(k0 + r) + c * 16 : p.pool;
                copy16(smem + at + piece<DP>(r, c), src, ok);
                copy16(smem + at + TILE + piece<DP>(r, c), ok ? src + p.value : src, ok);
            }
        } else {
            for (int i = threadIdx.x; i < KEYS * DP; i += WARPS * 32) {
                const int r = i / DP, d = i % DP;
                const bool ok = k0 + r < total && d < p.dim;
                const u16 *src = (const u16 *)(ok ? slot(k0 + r) : p.pool);
                const u32 off = at + piece<DP>(r, d / 8) + d % 8 * 2;
                *(u16 *)(mem + off) = ok ? src[d] : 0;
                *(u16 *)(mem + off + TILE) = ok ? src[p.value / 2 + d] : 0;
            }
        }
        copy_commit();
    }

    // query reads two neighbouring elements of a query row.
    __device__ __forceinline__ u32 query(int r, int d) {
        const int token = r / group;
        if (token >= t.z || d >= p.dim) return 0;
        const u16 *q = p.q + (i64)(t.x + token) * p.ld + (i64)(kvh * group + r % group) * p.dim + d;
        return (u32)q[0] | (d + 1 < p.dim ? (u32)q[1] << 16 : 0);
    }

    // shared_scores computes the scores of 16 keys a warp and gives all of them to all.
    __device__ __forceinline__ void shared_scores(float (&s)[8][4], const u32 (&q)[STEPS][4], int stage) {
        const int lane = threadIdx.x & 31, m = lane >> 3, r = lane & 7, warp = threadIdx.x / 32;
        const u32 at = smem + stage * 2 * TILE;
        float part[2][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            u32 b[4];
            load4(b, at + piece<DP>(warp * 16 + (m >> 1) * 8 + r, k * 2 + (m & 1)));
            mma(part[0], q[k], b[0], b[1]);
            mma(part[1], q[k], b[2], b[3]);
        }
        float4 *all = (float4 *)(mem + STAGES * 2 * TILE); // [tile of 8 keys][lane]
#pragma unroll
        for (int j = 0; j < 2; j++) all[(warp * 2 + j) * 32 + lane] = make_float4(part[j][0], part[j][1], part[j][2], part[j][3]);
        __syncthreads();
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float4 v = all[j * 32 + lane];
            s[j][0] = v.x, s[j][1] = v.y, s[j][2] = v.z, s[j][3] = v.w;
        }
    }

    __device__ __forceinline__ void scores(float (&s)[8][4], const u32 (&q)[STEPS][4], int stage) {
        if (SHARED) return shared_scores(s, q, stage);
        const int lane = threadIdx.x & 31, m = lane >> 3, r = lane & 7;
        const u32 at = smem + stage * 2 * TILE;
#pragma unroll
        for (int k = 0; k < STEPS; k++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                u32 b[4];
                load4(b, at + piece<DP>(j * 16 + (m >> 1) * 8 + r, k * 2 + (m & 1)));
                mma(s[2 * j], q[k], b[0], b[1]);
                mma(s[2 * j + 1], q[k], b[2], b[3]);
            }
    }

    __device__ __forceinline__ void weigh(float (&o)[NT][4], float (&s)[8][4], int stage) {
        const int lane = threadIdx.x & 31, m = lane >> 3, r = lane & 7;
        const u32 at = smem + stage * 2 * TILE + TILE;
        const int first = SHARED ? threadIdx.x / 32 * NT : 0; // 8 dims each
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const u32 a[4] = {pack2(s[2 * k][0], s[2 * k][1]), pack2(s[2 * k][2], s[2 * k][3]),
                              pack2(s[2 * k + 1][0], s[2 * k + 1][1]), pack2(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < NT / 2; j++) {
                u32 b[4];
                load4_transposed(b, at + piece<DP>(k * 16 + (m & 1) * 8 + r, first + j * 2 + (m >> 1)));
                mma(o[2 * j], a, b[0], b[1]);
                mma(o[2 * j + 1], a, b[2], b[3]);
            }
        }
    }

    __device__ __forceinline__ void write(const float (&o)[NT][4], int h, int r, float sum) {
        const int token = r / group, lane = threadIdx.x & 31;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (token >= t.z) return;
        u16 *out = p.out + (i64)(t.x + token) * p.ld + (i64)(kvh * group + r % group) * p.dim;
        const float inv = 1 / sum;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const int d = (SHARED ? threadIdx.x / 32 * NT + j : j) * 8 + lane % 4 * 2;
            if (d < p.dim) out[d] = to_bf16(o[j][h * 2] * inv);
            if (d + 1 < p.dim) out[d + 1] = to_bf16(o[j][h * 2 + 1] * inv);
        }
    }

    __device__ __forceinline__ void run() {
        const int lane = threadIdx.x & 31, r0 = (SHARED ? 0 : threadIdx.x / 32 * 16) + lane / 4, r1 = r0 + 8;
        u32 q[STEPS][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            const int d = k * 16 + lane % 4 * 2;
            q[k][0] = query(r0, d), q[k][1] = query(r1, d), q[k][2] = query(r0, d + 8), q[k][3] = query(r1, d + 8);
        }
        float o[NT][4] = {}, top[2] = {-INFINITY_F, -INFINITY_F}, sum[2] = {};
        const int last0 = t.y + r0 / group + 1, last1 = t.y + r1 / group + 1; // keys that each row sees
#pragma unroll
        for (int i = 0; i < STAGES - 1; i++) load(i, i * KEYS);
        for (int k0 = 0, stage = 0; k0 < total; k0 += KEYS, stage = stage + 1 == STAGES ? 0 : stage + 1) {
            copy_wait<STAGES - 2>();
            __syncthreads(); // the stage is there, and all are done with the one before
            load(stage == 0 ? STAGES - 1 : stage - 1, k0 + (STAGES - 1) * KEYS);
            float s[8][4] = {};
            scores(s, q, stage);
            const float f0 = softmax<true>(s, 0, last0 - k0, p.scale, top[0], sum[0]), f1 = softmax<true>(s, 1, last1 - k0, p.scale, top[1], sum[1]);
#pragma unroll
            for (int j = 0; j < NT; j++) o[j][0] *= f0, o[j][1] *= f0, o[j][2] *= f1, o[j][3] *= f1;
            weigh(o, s, stage);
        }
        copy_wait<0>();
        write(o, 0, r0, sum[0]);
        write(o, 1, r1, sum[1]);
    }
};

#define ATTEND(DP, ROWS, WARPS, SHARED, STAGES)                                                                        \
    extern "C" __global__ void __launch_bounds__(WARPS * 32) attend_##DP##_##ROWS(const Attend p) {                     \
        extern __shared__ __align__(1024) unsigned char smem[];                                                         \
        Flash<DP, WARPS, SHARED, STAGES>(p, smem).run();                                                                \
    }

ATTEND(16, narrow, 1, false, 2)
ATTEND(16, wide, 8, false, 2)
ATTEND(32, narrow, 1, false, 2)
ATTEND(32, wide, 8, false, 2)
ATTEND(64, narrow, 4, true, 3)
ATTEND(64, wide, 8, false, 2)
#ifdef SMALL_SHARED // 99 KiB a block
ATTEND(128, narrow, 4, true, 2)
#else
ATTEND(128, narrow, 4, true, 3)
#endif
ATTEND(128, wide, 8, false, 2)
