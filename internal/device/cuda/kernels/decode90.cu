// Attention of up to 16 query rows with heads of 128 for compute capability 9.0a. C blocks, a cluster, share a sequence's
// KV head without changing a bit of attention.cu's results: the sum over keys stays one sum, from position 0 on. What is
// shared is the work: of C tiles of keys each block scores one and sends the scores to all; each takes the whole softmax,
// and weighs its own part of the values' columns.
#include "prelude.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "softmax.cuh"
#include "tma.cuh"

template <int C, int STAGES> struct Decode {
    static const int DIM = 128, TILE = KEYS * DIM * 2, HALF = KEYS * 128, STEPS = DIM / 16, WARPS = 4;
    static const int NT = DIM / C / WARPS / 8; // tiles of 8 columns of a warp
    static const int SCORES = KEYS * 16 * 4, SLOTS = 4;

    const Attend &p;
    const TensorMap *map;
    unsigned char *mem;
    u32 smem, rank;
    int4 t;
    int group, kvh, total, steps, warp, lane;

    __device__ __forceinline__ Decode(const Attend &a, const TensorMap *m, unsigned char *s) : p(a), map(m), mem(s), smem(smem_addr(s)) {
        t = p.tiles[blockIdx.y];
        rank = C > 1 ? cluster_rank() : 0;
        kvh = blockIdx.x / C;
        group = p.heads / p.kv_heads;
        total = t.y + t.z;
        steps = (total + C * KEYS - 1) / (C * KEYS);
        warp = threadIdx.x / 32, lane = threadIdx.x & 31;
    }

    // A stage holds a tile of keys and, of C tiles of values, this block's columns. Scores of a step lie in one of four
    // slots: a block that writes the next but one does so after all have read the one four before.
    __device__ __forceinline__ u32 at(int i) { return smem + i % STAGES * 2 * TILE; }
    __device__ __forceinline__ u32 scores_at(int i, int tile) { return smem + STAGES * 2 * TILE + (i % SLOTS * C + tile) * SCORES; }
    __device__ __forceinline__ u32 full(int i) { return smem + STAGES * 2 * TILE + SLOTS * C * SCORES + i % STAGES * 16; }
    __device__ __forceinline__ u32 freed(int i) { return full(i) + 8; }
    __device__ __forceinline__ u32 scored(int i) { return full(0) + STAGES * 16 + i % SLOTS * 8; }

    __device__ __forceinline__ int pieces(int tile) {
        const int rows = min(KEYS, 1 << p.shift);
        return max(0, min(KEYS / rows, (total - tile * KEYS + rows - 1) / rows));
    }

    // rows_of finds a piece of a tile in the pool.
    __device__ __forceinline__ int rows_of(int tile, int piece, bool value) {
        const int rows = min(KEYS, 1 << p.shift), pos = tile * KEYS + piece * rows;
        const i64 from = p.tables[t.w + (pos >> p.shift)] * p.block + p.layer + kvh * p.head + (value ? p.value : 0);
        return (int)(from / (DIM * 2)) + (pos & ((1 << p.shift) - 1));
    }

    __device__ __forceinline__ void bring_keys(int tile, u32 to, u32 bar) {
        const int rows = min(KEYS, 1 << p.shift), n = pieces(tile);
        for (int j = 0; j < n; j++) {
            const int row = rows_of(tile, j, false);
            box_load(to + j * rows * 128, map, 0, row, bar);
            box_load(to + HALF + j * rows * 128, map, 64, row, bar);
        }
    }

    __device__ __forceinline__ void bring_values(int tile, u32 to, u32 bar) {
        const int rows = min(KEYS, 1 << p.shift), n = pieces(tile);
        for (int j = 0; j < n; j++) {
            const int row = rows_of(tile, j, true);
            box_load(to + j * rows * 128, map, C == 1 ? 0 : rank * 64, row, bar);
            if (C == 1) box_load(to + HALF + j * rows * 128, map, 64, row, bar);
        }
    }

    __device__ __forceinline__ void produce() {
        const int rows = min(KEYS, 1 << p.shift);
        for (int i = 0; i < steps; i++) {
            barrier_wait(freed(i), i / STAGES & 1 ^ 1);
            int n = pieces(i * C + rank) * 256;
            for (int j = 0; j < C; j++) n += pieces(i * C + j) * 256 / C;
            barrier_expect(full(i), n * rows);
            bring_keys(i * C + rank, at(i), full(i));
            for (int j = 0; j < C; j++) bring_values(i * C + j, at(i) + TILE + j * HALF, full(i));
        }
    }

    __device__ __forceinline__ u32 query(int r, int d) {
        const int token = r / group;
        if (token >= t.z) return 0;
        return *(const u32 *)(p.q + (i64)(t.x + token) * p.ld + (i64)(kvh * group + r % group) * DIM + d);
    }

    // score takes 16 keys of this block's tile and sends their scores to all blocks. A block alone has no cluster to send in.
    __device__ __forceinline__ void score(const u32 (&q)[STEPS][4], int i) {
        const int m = lane >> 3, r = lane & 7, row = warp * 16 + (m >> 1) * 8 + r;
        barrier_wait(full(i), i / STAGES & 1);
        if (C > 1 && threadIdx.x == 0) barrier_expect(scored(i), C * SCORES);
        float part[2][4] = {};
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            u32 b[4];
            const int c = k * 2 + (m & 1);
            load4(b, at(i) + (c >> 3) * HALF + row * 128 + (((c ^ row) & 7) << 4));
            mma(part[0], q[k], b[0], b[1]);
            mma(part[1], q[k], b[2], b[3]);
        }
        if constexpr (C == 1) {
            float4 *all = (float4 *)(mem + (scores_at(i, 0) - smem));
#pragma unroll
            for (int j = 0; j < 2; j++) all[(warp * 2 + j) * 32 + lane] = make_float4(part[j][0], part[j][1], part[j][2], part[j][3]);
            __syncwarp();
            if (lane == 0) barrier_arrive(scored(i));
        } else {
#pragma unroll
            for (int to = 0; to < C; to++)
#pragma unroll
                for (int j = 0; j < 2; j++)
                    send(place_in(scores_at(i, rank) + ((warp * 2 + j) * 32 + lane) * 16, to),
                         make_float4(part[j][0], part[j][1], part[j][2], part[j][3]), place_in(scored(i), to));
        }
    }

    // clear makes zero of values behind the last key, which may be anything.
    __device__ __forceinline__ void clear(int i) {
        for (int n = threadIdx.x; n < C * KEYS * 8; n += WARPS * 32) {
            const int tile = n / (KEYS * 8), row = n / 8 % KEYS;
            if ((i * C + tile) * KEYS + row < total) continue;
            unsigned char *v = mem + (at(i) - smem) + TILE + tile * HALF + n % (KEYS * 8) * 16;
            *(uint4 *)v = make_uint4(0, 0, 0, 0);
            if (C == 1) *(uint4 *)(v + HALF) = make_uint4(0, 0, 0, 0);
        }
        group_sync(0);
    }

    struct Rows {
        int last[2];
        float top[2], sum[2];
    };

    // weigh takes the softmax of a tile and adds its weighted values.
    __device__ __forceinline__ void weigh(float (&o)[NT][4], Rows &w, int i, int tile) {
        float s[8][4];
        const float4 *all = (const float4 *)(mem + (scores_at(i, tile) - smem));
#pragma unroll
        for (int j = 0; j < 8; j++) {
            const float4 v = all[j * 32 + lane];
            s[j][0] = v.x, s[j][1] = v.y, s[j][2] = v.z, s[j][3] = v.w;
        }
        const int k0 = (i * C + tile) * KEYS;
        const float f0 = softmax<true>(s, 0, w.last[0] - k0, p.scale, w.top[0], w.sum[0]);
        const float f1 = softmax<true>(s, 1, w.last[1] - k0, p.scale, w.top[1], w.sum[1]);
#pragma unroll
        for (int j = 0; j < NT; j++) o[j][0] *= f0, o[j][1] *= f0, o[j][2] *= f1, o[j][3] *= f1;
        const int m = lane >> 3, r = lane & 7;
        const u32 values = at(i) + TILE + tile * HALF;
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            const u32 a[4] = {pack2(s[2 * k][0], s[2 * k][1]), pack2(s[2 * k][2], s[2 * k][3]),
                              pack2(s[2 * k + 1][0], s[2 * k + 1][1]), pack2(s[2 * k + 1][2], s[2 * k + 1][3])};
#pragma unroll
            for (int j = 0; j < NT / 2; j++) {
                u32 b[4];
                const int row = k * 16 + (m & 1) * 8 + r, c = warp * NT + j * 2 + (m >> 1);
                load4_transposed(b, values + (c >> 3) * HALF + row * 128 + (((c ^ row) & 7) << 4));
                mma(o[2 * j], a, b[0], b[1]);
                mma(o[2 * j + 1], a, b[2], b[3]);
            }
        }
    }

    __device__ __forceinline__ void finish(float (&o)[NT][4], Rows &w, int i) {
        barrier_wait(scored(i), i / SLOTS & 1);
        if (i + 1 == steps) clear(i);
#pragma unroll
        for (int tile = 0; tile < C; tile++) weigh(o, w, i, tile);
        __syncwarp();
        if (lane == 0) barrier_arrive(freed(i));
    }

    __device__ __forceinline__ void write(const float (&o)[NT][4], int h, int r, float sum) {
        const int token = r / group;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (token >= t.z) return;
        u16 *out = p.out + (i64)(t.x + token) * p.ld + (i64)(kvh * group + r % group) * DIM + rank * (DIM / C) + warp * NT * 8;
        const float inv = 1 / sum;
#pragma unroll
        for (int j = 0; j < NT; j++) *(u32 *)(out + j * 8 + lane % 4 * 2) = pack2(o[j][h * 2] * inv, o[j][h * 2 + 1] * inv);
    }

    // consume scores a step before it weighs the one before, so that scores travel meanwhile.
    __device__ __forceinline__ void consume() {
        const int r0 = lane / 4, r1 = r0 + 8;
        u32 q[STEPS][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            const int d = k * 16 + lane % 4 * 2;
            q[k][0] = query(r0, d), q[k][1] = query(r1, d), q[k][2] = query(r0, d + 8), q[k][3] = query(r1, d + 8);
        }
        float o[NT][4] = {};
        Rows w = {{t.y + r0 / group + 1, t.y + r1 / group + 1}, {-INFINITY_F, -INFINITY_F}, {}};
        score(q, 0);
        for (int i = 1; i < steps; i++) {
            score(q, i);
            finish(o, w, i - 1);
        }
        finish(o, w, steps - 1);
        write(o, 0, r0, w.sum[0]);
        write(o, 1, r1, w.sum[1]);
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(full(i), 1);
                barrier_init(freed(i), WARPS);
            }
            for (int i = 0; i < SLOTS; i++) barrier_init(scored(i), C == 1 ? WARPS : 1);
            barrier_ready();
        }
        __syncthreads();
        if (C > 1) cluster_sync();
        if (warp < WARPS)
            consume();
        else if (lane == 0)
            produce();
        __syncwarp();
        if (C > 1) cluster_sync(); // others may still send scores here
    }
};

extern "C" __global__ void __launch_bounds__(160) attend_one(const Attend p, const __grid_constant__ TensorMap map) {
    extern __shared__ __align__(1024) unsigned char smem[];
    Decode<1, 3>(p, &map, smem).run();
}

extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(160)
    attend_two(const Attend p, const __grid_constant__ TensorMap map) {
    extern __shared__ __align__(1024) unsigned char smem[];
    Decode<2, 4>(p, &map, smem).run();
}
#endif
