// Matrix products on tensor cores: C = A Wᵀ with A [M, K] and W [N, K] in bf16 and sums in fp32.
//
// Every sum runs over K from the front in steps of 16, whatever the tile: so a row of C depends on its row of A alone,
// and not on M, its place, or which of the tile sizes was chosen. There is no split of K.
//
// Rows of A and W are padded with zeros to whole 16 bytes (lda, ldw and k are multiples of 8).
#include "prelude.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "wgmma.cuh"
#endif

// What becomes of a tile.
enum { STORE, STORE16, ROUTE, SWIGLU, SCATTER };


struct Gemm {
    const u16 *a, *w;
    void *c;
    const int *order; // grouped: row r of the sorted list is pair order[r]
    const int4 *tiles; // grouped: {expert, first row, rows, 0}
    const int *count;  // grouped: how many tiles
    i64 lda, ldw, ldc;
    i64 expert; // elements of W of one expert
    int m, n, k;
    int visits; // grouped: pairs of one row; 0: A is in sorted order already
    const u16 *rest; // ROUTE: A is fp32 in three: what rounding left of a, and, last elements on, what that left
    i64 last;
};

const int STEP = 64; // of K in one stage: a row is 128 bytes, eight pieces of 16

// piece is where piece c of row r lies in a stage, in bytes: swizzled so that ldmatrix meets no bank twice.
DEV u32 piece(int r, int c) { return r * (STEP * 2) + ((c ^ (r & 7)) << 4); }

template <int BM, int BN, int WR, int WC, int STAGES, int EPI, bool GROUPED> struct Tile {
    static const int THREADS = WR * WC * 32;
    static const int TM = BM / WR < 16 ? 16 : BM / WR, TN = BN / WC, MT = TM / 16, NT = TN / 8;
    static const int ROWS = THREADS / 8; // rows that all threads copy at once
    static const int AL = (BM + ROWS - 1) / ROWS, WL = BN / ROWS;
    static const int A_BYTES = BM * STEP * 2, STAGE = (BM + BN) * STEP * 2;

    const Gemm &p;
    u32 smem;
    int m0, n0, rows; // first row, first column, rows
    const u16 *w;
    const u16 *arow[AL]; // the rows of A that this thread copies; null: past the end

    __device__ __forceinline__ Tile(const Gemm &g, u32 s) : p(g), smem(s) {}

    // place finds the tile of this block: neighbours share columns of W within bands of 16 tiles of rows.
    __device__ __forceinline__ bool place() {
        const int nt = (p.n + BN - 1) / BN;
        w = p.w;
        if (GROUPED) {
            const int t = blockIdx.x / nt;
            if (t >= *p.count) return false;
            const int4 d = p.tiles[t];
            w += d.x * p.expert;
            m0 = d.y, rows = d.z, n0 = blockIdx.x % nt * BN;
        } else {
            const int mt = (p.m + BM - 1) / BM, band = 16 * nt;
            const int first = blockIdx.x / band * 16, high = min(mt - first, 16), in = blockIdx.x % band;
            m0 = (first + in % high) * BM, n0 = in / high * BN;
            rows = min(BM, p.m - m0);
        }
#pragma unroll
        for (int i = 0; i < AL; i++) {
            const int r = threadIdx.x / 8 + i * ROWS;
            i64 at = m0 + r;
            if (GROUPED && p.visits && r < rows) at = p.order[at] / p.visits;
            arow[i] = r < rows ? p.a + at * p.lda : 0;
        }
        return true;
    }

    // steps is how many stages of K there are. ROUTE takes K three times, with the smallest part of A first.
    __device__ __forceinline__ int steps() { return (p.k + STEP - 1) / STEP * (EPI == ROUTE ? 3 : 1); }

    __device__ __forceinline__ void load(int stage, int step) {
        const int c = threadIdx.x & 7;
        const u32 base = smem + stage * STAGE;
        int k = step * STEP + c * 8;
        bool in = k < p.k;
        i64 part = 0;
        if (EPI == ROUTE) {
            const int each = (p.k + STEP - 1) / STEP, n = step / each;
            k = step % each * STEP + c * 8;
            in = k < p.k && n < 3;
            if (n < 2) part = p.rest + (n == 0 ? p.last : 0) - p.a;
        }
#pragma unroll
        for (int i = 0; i < AL; i++) {
            const int r = threadIdx.x / 8 + i * ROWS;
            if (BM >= ROWS || r < BM) copy16(base + piece(r, c), in && arow[i] ? arow[i] + part + k : p.a, in && arow[i]);
        }
#pragma unroll
        for (int i = 0; i < WL; i++) {
            const int r = threadIdx.x / 8 + i * ROWS;
            const bool ok = in && n0 + r < p.n;
            copy16(base + A_BYTES + piece(r, c), ok ? w + (i64)(n0 + r) * p.ldw + k : w, ok);
        }
        copy_commit();
    }

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
    __device__ __forceinline__ void multiply(float (&acc)[MT][NT][4], int stage, int wr, int wc) {
        const int lane = threadIdx.x & 31, m = lane >> 3, r = lane & 7;
        const u32 a0 = smem + stage * STAGE, w0 = a0 + A_BYTES;
#pragma unroll
        for (int k = 0; k < STEP / 16; k++) {
            u32 a[MT][4], b[NT / 2][4];
#pragma unroll
            for (int i = 0; i < MT; i++) load4(a[i], a0 + piece(wr * TM + i * 16 + (m & 1) * 8 + r, k * 2 + (m >> 1)));
#pragma unroll
            for (int j = 0; j < NT / 2; j++) load4(b[j], w0 + piece(wc * TN + j * 16 + (m >> 1) * 8 + r, k * 2 + (m & 1)));
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < NT; j++) mma(acc[i][j], a[i], b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
        }
    }
#endif

    // put writes two neighbouring values of row r (within the tile) from column col on. Rows start at whole 16 bytes and
    // have room for whole pairs.
    __device__ __forceinline__ void put(int r, int col, float x, float y) {
        if (r >= rows || col >= p.n) return;
        if (EPI == STORE16 || EPI == SCATTER) {
            const i64 row = EPI == SCATTER ? p.order[m0 + r] : m0 + r;
            *(u32 *)((u16 *)p.c + row * p.ldc + col) = pack2(x, y);
            return;
        }
        *(float2 *)((float *)p.c + (i64)(m0 + r) * p.ldc + col) = make_float2(x, y);
    }

    // gate writes silu(g) u; W holds eight rows of gate and eight of up in turn.
    __device__ __forceinline__ void gate(int r, int col, const float *g, const float *u) {
        if (r >= rows || col >= p.n / 2) return;
        const float x = g[0] / (1 + __expf(-g[0])) * u[0], y = g[1] / (1 + __expf(-g[1])) * u[1];
        *(u32 *)((u16 *)p.c + (i64)(m0 + r) * p.ldc + col) = pack2(x, y);
    }

    __device__ __forceinline__ void finish(float (&acc)[MT][NT][4], int wr, int wc) {
        const int lane = threadIdx.x & 31, r0 = wr * TM + lane / 4, c0 = n0 + wc * TN;
#pragma unroll
        for (int i = 0; i < MT; i++)
#pragma unroll
            for (int j = 0; j < NT; j++)
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    const int r = r0 + i * 16 + h * 8;
                    if (EPI != SWIGLU)
                        put(r, c0 + j * 8 + lane % 4 * 2, acc[i][j][h * 2], acc[i][j][h * 2 + 1]);
                    else if (j % 2 == 0)
                        gate(r, c0 / 2 + j * 4 + lane % 4 * 2, &acc[i][j][h * 2], &acc[i][j + 1][h * 2]);
                }
    }

#ifndef __CUDA_ARCH_FEAT_SM90_ALL
    __device__ __forceinline__ void run() {
        if (!place()) return;
        const int warp = threadIdx.x / 32, wr = warp / WC, wc = warp % WC;
        float acc[MT][NT][4] = {};
        const int n = steps();
#pragma unroll
        for (int s = 0; s < STAGES - 1; s++) load(s, s);
        for (int s = 0; s < n; s++) {
            copy_wait<STAGES - 2>();
            __syncthreads();
            load((s + STAGES - 1) % STAGES, s + STAGES - 1);
            multiply(acc, s % STAGES, wr, wc);
        }
        copy_wait<0>();
        finish(acc, wr, wc);
    }
#else
    // run for warpgroups: each has 64 rows of the tile and all of its columns. A product runs while the next is begun, so a
    // stage is free two steps after its own. A tile of fewer rows than 64 multiplies what lies behind them too; those rows
    // of the result are not kept.
    __device__ __forceinline__ void run() {
        if (!place()) return;
        float acc[1][NT][4] = {};
        const int n = steps(), rows64 = threadIdx.x / 128 * 64 * STEP * 2;
#pragma unroll
        for (int s = 0; s < STAGES - 2; s++) load(s, s);
        int stage = 0;
        for (int s = 0; s < n; s++) {
            copy_wait<STAGES - 3>();
            async_fence();
            __syncthreads();
            const u32 at = smem + stage * STAGE;
            group_start();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) group_mma(acc[0], tile_at(at + rows64 + k * 32), tile_at(at + A_BYTES + k * 32));
            group_commit();
            const int next = stage + STAGES - 2;
            load(next >= STAGES ? next - STAGES : next, s + STAGES - 2);
            group_wait<1>();
            stage = stage + 1 == STAGES ? 0 : stage + 1;
        }
        group_wait<0>();
        settle(acc[0]);
        copy_wait<0>();
        finish(acc, threadIdx.x / 32, 0);
    }
#endif
};

#define GEMM(NAME, BM, BN, WR, WC, STAGES, EPI, GROUPED)                                                               \
    extern "C" __global__ void __launch_bounds__(WR *WC * 32) NAME(const Gemm p) {                                      \
        extern __shared__ __align__(1024) unsigned char smem[];                                                         \
        Tile<BM, BN, WR, WC, STAGES, EPI, GROUPED> t(p, smem_addr(smem));                                               \
        t.run();                                                                                                        \
    }

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define FEW(WHAT, EPI, GROUPED)                                                                                        \
    GEMM(gemm_##WHAT##_64, 64, 128, 4, 1, 4, EPI, GROUPED)                                                             \
    GEMM(gemm_##WHAT##_16, 16, 64, 4, 1, 6, EPI, GROUPED)
#define GEMMS(WHAT, EPI, GROUPED)                                                                                      \
    GEMM(gemm_##WHAT##_128, 128, 256, 8, 1, 4, EPI, GROUPED)                                                           \
    FEW(WHAT, EPI, GROUPED)
#else
#define FEW(WHAT, EPI, GROUPED)                                                                                        \
    GEMM(gemm_##WHAT##_64, 64, 128, 2, 2, 3, EPI, GROUPED)                                                             \
    GEMM(gemm_##WHAT##_16, 16, 64, 1, 4, 4, EPI, GROUPED)
#define GEMMS(WHAT, EPI, GROUPED)                                                                                      \
    GEMM(gemm_##WHAT##_128, 128, 128, 2, 2, 3, EPI, GROUPED)                                                           \
    FEW(WHAT, EPI, GROUPED)
#endif

GEMMS(store, STORE, false)
GEMMS(store16, STORE16, false)
GEMMS(swiglu, SWIGLU, true)
GEMMS(scatter, SCATTER, true)
FEW(route, ROUTE, false)
