// Products of many rows for compute capability 9.0a: C = A Wᵀ as in gemm.cu, with the same sums in the same order, and so
// the same bits.
//
// Two neighbouring blocks, a cluster, take 256 rows and 256 columns: one copy of W's columns serves both. What is left of
// an expert's rows, 128 at most, they take side by side: the same rows, 256 columns each. A warp lets the copy engine
// bring tiles; two warpgroups multiply, 64 rows each. Clusters stay and take one tile after another, so the next tile's
// operands come while this one's results are written.
#include "prelude.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tma.cuh"
#include "wgmma.cuh"

enum { STORE16, SWIGLU, SCATTER };

struct Many {
    void *c;
    const int *order;  // SCATTER: sorted row r is pair order[r]
    const int4 *tiles; // grouped: {expert, first row, rows, 0}, 256 rows at most
    const int *count;  // grouped: how many tiles
    i64 ldc;
    int m, n, k;
    int each; // grouped: rows of W of one expert
};

const int BM = 128, BN = 256, STEP = 64, STAGES = 4, HALF = BN / 2 * STEP * 2;
const int A_BYTES = BM * STEP * 2, STAGE = A_BYTES + 2 * HALF;

// Work is one tile of this block.
struct Work {
    int row, rows, column, w; // the first row of A and how many are there; the first column of C, and its row of W
    bool shared;              // the other block has the same columns
};

template <int EPI, bool GROUPED> struct Product {
    const Many &p;
    const TensorMap *a, *w;
    u32 smem, rank;
    int across; // tiles in a row of C

    __device__ __forceinline__ Product(const Many &m, const TensorMap *ma, const TensorMap *mw, u32 s) : p(m), a(ma), w(mw), smem(s) {
        rank = cluster_rank();
        across = (p.n + BN - 1) / BN;
    }

    __device__ __forceinline__ u32 at(u32 i) { return smem + i % STAGES * STAGE; }
    __device__ __forceinline__ u32 full(u32 i) { return smem + STAGES * STAGE + i % STAGES * 16; }
    __device__ __forceinline__ u32 freed(u32 i) { return full(i) + 8; }
    __device__ __forceinline__ u32 turn(u32 i) { return i / STAGES & 1; }
    __device__ __forceinline__ int steps() { return (p.k + STEP - 1) / STEP; }

    __device__ __forceinline__ int items() { return (GROUPED ? *p.count : (p.m + 2 * BM - 1) / (2 * BM)) * across; }

    // find says what this block has to do for an item, or that the item is void: where two columns are taken at once there
    // are half as many.
    __device__ __forceinline__ bool find(int item, Work &t) {
        int4 d = make_int4(0, 0, 0, 0);
        int column;
        if (GROUPED) {
            d = p.tiles[item / across];
            column = item % across;
        } else { // neighbours share columns of W within bands of eight pairs of rows
            const int pairs = (p.m + 2 * BM - 1) / (2 * BM), band = 8 * across;
            const int first = item / band * 8, high = min(pairs - first, 8), in = item % band;
            d.y = (first + in % high) * 2 * BM, column = in / high;
            d.z = min(2 * BM, p.m - d.y);
        }
        t.shared = d.z > BM;
        t.row = d.y, t.rows = d.z;
        if (t.shared) {
            t.row += rank * BM;
            t.rows = min(BM, d.z - (int)rank * BM);
        } else {
            column = column * 2 + rank;
            if (column - (int)rank >= across) return false;
        }
        t.column = column * BN;
        t.w = d.x * p.each + t.column;
        return true;
    }

    // bring copies one step of K. W comes in halves, one of each block where both need it.
    __device__ __forceinline__ void bring(const Work &t, int step, u32 i) {
        barrier_wait(freed(i), turn(i) ^ 1);
        barrier_expect(full(i), STAGE);
        box_load(at(i), a, step * STEP, t.row, full(i));
        const u32 to = at(i) + A_BYTES;
        if (t.shared) {
            box_load_all(to + rank * HALF, w, step * STEP, t.w + rank * (BN / 2), full(i), 3);
        } else {
            box_load(to, w, step * STEP, t.w, full(i));
            box_load(to + HALF, w, step * STEP, t.w + BN / 2, full(i));
        }
    }

    __device__ __forceinline__ void produce() {
        const int all = items(), n = steps();
        u32 i = 0;
        Work t;
        for (int item = blockIdx.x / 2; item < all; item += gridDim.x / 2)
            if (find(item, t))
                for (int s = 0; s < n; s++) bring(t, s, i++);
    }

    // done says to both blocks that this warp needs step i no more.
    __device__ __forceinline__ void done(u32 i) {
        if (threadIdx.x % 32 < 2) barrier_arrive_at(freed(i), threadIdx.x % 32);
    }

    __device__ __forceinline__ void multiply(float (&acc)[32][4], u32 &i) {
        const u32 rows64 = threadIdx.x / 128 * 64 * STEP * 2;
#pragma unroll
        for (int j = 0; j < 32; j++) acc[j][0] = acc[j][1] = acc[j][2] = acc[j][3] = 0;
        const int n = steps();
        for (int s = 0; s < n; s++, i++) {
            barrier_wait(full(i), turn(i));
            group_start();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) group_mma(acc, tile_at(at(i) + rows64 + k * 32), tile_at(at(i) + A_BYTES + k * 32));
            group_commit();
            group_wait<1>();
            if (s > 0) done(i - 1);
        }
        group_wait<0>();
        settle(acc);
        done(i - 1);
    }

    // swap4 turns four pairs of neighbouring values, one of each of four groups of eight columns, into the eight values of
    // one group: lane q of four gets group q.
    __device__ __forceinline__ void swap4(u32 (&v)[4]) {
        const int q = threadIdx.x & 3;
#pragma unroll
        for (int d = 1; d < 4; d *= 2) {
#pragma unroll
            for (int x = 0; x < 4; x++) {
                if (x & d) continue;
                u32 &low = v[x], &high = v[x | d];
                const u32 mine = q & d ? low : high, other = __shfl_xor_sync(~0u, mine, d);
                if (q & d)
                    low = other;
                else
                    high = other;
            }
        }
    }

    // put16 writes 32 columns of a row as bf16, eight of each lane.
    __device__ __forceinline__ void put16(u32 (&v)[4], i64 row, int col, int n, bool in) {
        swap4(v);
        col += (threadIdx.x & 3) * 8;
        if (!in || col >= n) return;
        u16 *c = (u16 *)p.c + row * p.ldc + col;
        *(uint4 *)c = make_uint4(v[0], v[1], v[2], v[3]); // a row has room for whole eights
    }

    __device__ __forceinline__ u32 gate(const float *g, const float *u) {
        return pack2(g[0] / (1 + __expf(-g[0])) * u[0], g[1] / (1 + __expf(-g[1])) * u[1]);
    }

    __device__ __forceinline__ void finish(float (&acc)[32][4], const Work &t) {
        const int r0 = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int r = r0 + h * 8;
            const bool in = r < t.rows;
            i64 row = t.row + r;
            if (EPI == SCATTER) row = in ? p.order[row] : 0;
            if (EPI == SWIGLU) {
#pragma unroll
                for (int j = 0; j < 32; j += 8) {
                    u32 v[4];
#pragma unroll
                    for (int x = 0; x < 4; x++) v[x] = gate(&acc[j + 2 * x][h * 2], &acc[j + 2 * x + 1][h * 2]);
                    put16(v, row, t.column / 2 + j * 4, p.n / 2, in);
                }
            } else {
#pragma unroll
                for (int j = 0; j < 32; j += 4) {
                    u32 v[4];
#pragma unroll
                    for (int x = 0; x < 4; x++) v[x] = pack2(acc[j + x][h * 2], acc[j + x][h * 2 + 1]);
                    put16(v, row, t.column + j * 8, p.n, in);
                }
            }
        }
    }

    __device__ __forceinline__ void consume() {
        const int all = items();
        u32 i = 0;
        Work t;
        float acc[32][4];
        for (int item = blockIdx.x / 2; item < all; item += gridDim.x / 2) {
            if (!find(item, t)) continue;
            multiply(acc, i);
            finish(acc, t);
        }
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(full(i), 1);
                barrier_init(freed(i), 2 * 8); // the warps of both blocks
            }
            barrier_ready();
        }
        cluster_sync();
        if (threadIdx.x >= 256) {
            registers_give<56>();
            if (threadIdx.x == 256) produce();
        } else {
            registers_take<224>();
            consume();
        }
        __syncwarp();
        cluster_sync(); // the other block may still arrive here
    }
};

#define MANY(NAME, EPI, GROUPED)                                                                                       \
    extern "C" __global__ void __cluster_dims__(2, 1, 1) __launch_bounds__(384, 1)                                      \
        NAME(const Many p, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap w) {                  \
        extern __shared__ __align__(1024) unsigned char smem[];                                                         \
        Product<EPI, GROUPED>(p, &a, &w, smem_addr(smem)).run();                                                        \
    }

MANY(many_store16, STORE16, false)
MANY(many_swiglu, SWIGLU, true)
MANY(many_scatter, SCATTER, true)
#endif
