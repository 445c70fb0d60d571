// Attention of many rows with heads of 128 for warpgroups of compute capability 9.0a (Shah et al. 2024): one warp lets the
// copy engine bring keys and values, warpgroups of 64 query rows consume them. What a row becomes is what attention.cu
// makes of it, bit for bit: the same tiles of keys, in the same order, and the same softmax.
#include "prelude.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "softmax.cuh"
#include "tma.cuh"
#include "wgmma.cuh"

template <int GROUPS, int STAGES> struct Wide {
    static const int DIM = 128, TILE = KEYS * DIM * 2, HALF = KEYS * 128, STEPS = DIM / 16;

    const Attend &p;
    const TensorMap *map; // the pool as rows of one token and head
    unsigned char *mem;
    u32 smem;
    int4 t;
    int group, kvh, total, tiles;

    __device__ __forceinline__ Wide(const Attend &a, const TensorMap *m, unsigned char *s) : p(a), map(m), mem(s), smem(smem_addr(s)) {
        t = p.tiles[blockIdx.y];
        kvh = blockIdx.x;
        group = p.heads / p.kv_heads;
        total = t.y + t.z; // keys that the last row sees
        tiles = (total + KEYS - 1) / KEYS;
    }

    // A stage holds the keys and the values of a tile, each with a barrier that says that they are there and one that
    // says that all warps are done with them.
    __device__ __forceinline__ u32 at(int i, int value) { return smem + (i % STAGES * 2 + value) * TILE; }
    __device__ __forceinline__ u32 full(int i, int value) { return smem + STAGES * 2 * TILE + (i % STAGES * 2 + value) * 16; }
    __device__ __forceinline__ u32 freed(int i, int value) { return full(i, value) + 8; }
    __device__ __forceinline__ u32 turn(int i) { return i / STAGES & 1; }

    __device__ __forceinline__ void prepare() {
        for (int i = 0; i < STAGES; i++)
            for (int v = 0; v < 2; v++) {
                barrier_init(full(i, v), 1);
                barrier_init(freed(i, v), GROUPS * 4);
            }
        barrier_ready();
    }

    // bring copies the keys (or values) of tile i, in pieces of one block at most. Blocks that no row sees are left out.
    __device__ __forceinline__ void bring(int i, int value) {
        const int rows = min(KEYS, 1 << p.shift), pieces = min(KEYS / rows, (total - i * KEYS + rows - 1) / rows);
        barrier_wait(freed(i, value), turn(i) ^ 1);
        barrier_expect(full(i, value), pieces * rows * DIM * 2);
        for (int j = 0; j < pieces; j++) {
            const int pos = i * KEYS + j * rows;
            const i64 from = p.tables[t.w + (pos >> p.shift)] * p.block + p.layer + kvh * p.head + value * p.value;
            const int row = (int)(from / (DIM * 2)) + (pos & ((1 << p.shift) - 1));
            box_load(at(i, value) + j * rows * 128, map, 0, row, full(i, value));
            box_load(at(i, value) + HALF + j * rows * 128, map, 64, row, full(i, value));
        }
    }

    __device__ __forceinline__ void produce() {
        for (int i = 0; i < tiles; i++) {
            bring(i, 0);
            bring(i, 1);
        }
    }

    // query reads two neighbouring elements of a query row.
    __device__ __forceinline__ u32 query(int r, int d) {
        const int token = r / group;
        if (token >= t.z) return 0;
        return *(const u32 *)(p.q + (i64)(t.x + token) * p.ld + (i64)(kvh * group + r % group) * DIM + d);
    }

    // scores starts the product of the queries and the keys of tile i.
    __device__ __forceinline__ void scores(float (&s)[8][4], const u32 (&q)[STEPS][4], int i) {
        barrier_wait(full(i, 0), turn(i));
        group_start();
        group_mma_rows_first(s, q[0], tile_at(at(i, 0)));
#pragma unroll
        for (int k = 1; k < STEPS; k++) group_mma_rows(s, q[k], tile_at(at(i, 0) + k / 4 * HALF + k % 4 * 32));
        group_commit();
    }

    // weigh starts the product of the weights and the values of tile i.
    __device__ __forceinline__ void weigh(float (&o)[16][4], const u32 (&a)[KEYS / 16][4], int i) {
        barrier_wait(full(i, 1), turn(i));
        if (i + 1 == tiles) clear(i);
        group_start();
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) group_mma_values(o, a[k], across_at(at(i, 1) + k * 2048, HALF));
        group_commit();
    }

    // clear makes zero of what lies behind the last key, which may be anything; its weights are zero already. Each
    // warpgroup does it for itself.
    __device__ __forceinline__ void clear(int i) {
        const int left = total - i * KEYS;
        unsigned char *values = mem + (at(i, 1) - smem);
        for (int n = left * 8 + threadIdx.x % 128; n < KEYS * 8; n += 128)
            *(uint4 *)(values + n * 16) = *(uint4 *)(values + HALF + n * 16) = make_uint4(0, 0, 0, 0);
        async_fence();
        group_sync(threadIdx.x / 128);
    }

    // done says that this warp needs the keys (or values) of tile i no more.
    __device__ __forceinline__ void done(int i, int value) {
        if (threadIdx.x % 32 == 0) barrier_arrive(freed(i, value));
    }

    // weights makes bf16 of what softmax left, in the layout of a first operand.
    __device__ __forceinline__ void weights(u32 (&a)[KEYS / 16][4], const float (&s)[8][4]) {
#pragma unroll
        for (int k = 0; k < KEYS / 16; k++) {
            a[k][0] = pack2(s[2 * k][0], s[2 * k][1]), a[k][1] = pack2(s[2 * k][2], s[2 * k][3]);
            a[k][2] = pack2(s[2 * k + 1][0], s[2 * k + 1][1]), a[k][3] = pack2(s[2 * k + 1][2], s[2 * k + 1][3]);
        }
    }

    // shrink multiplies a row's sums; most tiles change no maximum, and a factor of 1 changes nothing.
    __device__ __forceinline__ void shrink(float (&o)[16][4], float f0, float f1) {
        if (__any_sync(~0u, f0 != 1 || f1 != 1)) {
#pragma unroll
            for (int j = 0; j < 16; j++) o[j][0] *= f0, o[j][1] *= f0, o[j][2] *= f1, o[j][3] *= f1;
        }
    }

    __device__ __forceinline__ void write(const float (&o)[16][4], int h, int r, float sum) {
        const int token = r / group, lane = threadIdx.x & 31;
        sum += __shfl_xor_sync(~0u, sum, 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        if (token >= t.z) return;
        u16 *out = p.out + (i64)(t.x + token) * p.ld + (i64)(kvh * group + r % group) * DIM;
        const float inv = 1 / sum;
#pragma unroll
        for (int j = 0; j < 16; j++) *(u32 *)(out + j * 8 + lane % 4 * 2) = pack2(o[j][h * 2] * inv, o[j][h * 2 + 1] * inv);
    }

    // Rows of a thread: what it knows of its two rows.
    struct Rows {
        int last[2]; // keys that each sees
        float top[2], sum[2];
    };

    // step takes the scores of tile i while the values of the tile before are weighed.
    template <bool MASK>
    __device__ __forceinline__ void step(float (&o)[16][4], u32 (&a)[KEYS / 16][4], const u32 (&q)[STEPS][4], Rows &r, int i) {
        float s[8][4];
        scores(s, q, i);
        weigh(o, a, i - 1);
        group_wait<1>();
        settle(s);
        done(i, 0);
        const float f0 = softmax<MASK>(s, 0, r.last[0] - i * KEYS, p.scale, r.top[0], r.sum[0]);
        const float f1 = softmax<MASK>(s, 1, r.last[1] - i * KEYS, p.scale, r.top[1], r.sum[1]);
        group_wait<0>();
        settle(o);
        done(i - 1, 1);
        shrink(o, f0, f1);
        weights(a, s);
    }

    __device__ __forceinline__ void consume() {
        const int lane = threadIdx.x & 31, r0 = threadIdx.x / 32 * 16 + lane / 4, r1 = r0 + 8;
        u32 q[STEPS][4];
#pragma unroll
        for (int k = 0; k < STEPS; k++) {
            const int d = k * 16 + lane % 4 * 2;
            q[k][0] = query(r0, d), q[k][1] = query(r1, d), q[k][2] = query(r0, d + 8), q[k][3] = query(r1, d + 8);
        }
        float o[16][4] = {};
        Rows r = {{t.y + r0 / group + 1, t.y + r1 / group + 1}, {-INFINITY_F, -INFINITY_F}, {}};
        const int whole = (t.y + threadIdx.x / 128 * 64 / group + 1) / KEYS; // tiles of which every row of the warpgroup sees all
        u32 a[KEYS / 16][4];
        float s[8][4];
        scores(s, q, 0);
        group_wait<0>();
        settle(s);
        done(0, 0);
        softmax<true>(s, 0, r.last[0], p.scale, r.top[0], r.sum[0]);
        softmax<true>(s, 1, r.last[1], p.scale, r.top[1], r.sum[1]);
        weights(a, s);
        int i = 1;
        for (; i < whole; i++) step<false>(o, a, q, r, i);
        for (; i < tiles; i++) step<true>(o, a, q, r, i);
        weigh(o, a, tiles - 1);
        group_wait<0>();
        settle(o);
        write(o, 0, r0, r.sum[0]);
        write(o, 1, r1, r.sum[1]);
    }

    template <int GIVE, int TAKE> __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) prepare();
        __syncthreads();
        if (threadIdx.x >= GROUPS * 128) {
            registers_give<GIVE>();
            if (threadIdx.x == GROUPS * 128) produce();
        } else {
            registers_take<TAKE>();
            consume();
        }
    }
};

static const int GROUPS = 2, STAGES = 4;

extern "C" __global__ void __launch_bounds__((GROUPS + 1) * 128, 1)
    attend_groups(const Attend p, const __grid_constant__ TensorMap map) {
    extern __shared__ __align__(1024) unsigned char smem[];
    Wide<GROUPS, STAGES>(p, &map, smem).run<24, 240>();
}
#endif
