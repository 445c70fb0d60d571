// Products of few rows for compute capability 9.0a: C = A Wᵀ as in gemm.cu, with the same sums in the same order, and so
// the same bits. What counts is how fast W is read: blocks take few columns, so that all multiprocessors read, and the
// copy engine runs far ahead.
#include "prelude.cuh"

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#include "tma.cuh"
#include "wgmma.cuh"

enum { STORE, STORE16, ROUTE };

struct FewRows {
    void *c;
    i64 ldc;
    int m, n, k;
    int part; // ROUTE: A is fp32 in three parts of so many rows, the largest first
};

const int ROWS = 64, STEP = 64;

template <int BN, int STAGES, int EPI> struct Few {
    static const int A_BYTES = ROWS * STEP * 2, STAGE = (ROWS + BN) * STEP * 2, NT = BN / 8;

    const FewRows &p;
    const TensorMap *a, *w;
    u32 smem;
    int row, column, each, steps;

    __device__ __forceinline__ Few(const FewRows &f, const TensorMap *ma, const TensorMap *mw, u32 s) : p(f), a(ma), w(mw), smem(s) {
        column = blockIdx.x * BN, row = blockIdx.y * ROWS;
        each = (p.k + STEP - 1) / STEP;
        steps = each * (EPI == ROUTE ? 3 : 1);
    }

    __device__ __forceinline__ u32 at(int i) { return smem + i % STAGES * STAGE; }
    __device__ __forceinline__ u32 full(int i) { return smem + STAGES * STAGE + i % STAGES * 16; }
    __device__ __forceinline__ u32 freed(int i) { return full(i) + 8; }
    __device__ __forceinline__ u32 turn(int i) { return i / STAGES & 1; }

    // produce brings one step after another. ROUTE takes K three times, with the smallest part of A first.
    __device__ __forceinline__ void produce() {
        for (int i = 0; i < steps; i++) {
            barrier_wait(freed(i), turn(i) ^ 1);
            barrier_expect(full(i), STAGE);
            const int part = EPI == ROUTE ? 2 - i / each : 0, k = i % each * STEP;
            box_load(at(i) + A_BYTES, w, k, column, full(i));
            box_load(at(i), a, k, part * p.part + row, full(i));
        }
    }

    __device__ __forceinline__ void put(int r, int col, float x, float y) {
        if (row + r >= p.m || col >= p.n) return;
        const i64 to = (i64)(row + r) * p.ldc + col; // a row has room for whole pairs
        if (EPI == STORE16)
            *(u32 *)((u16 *)p.c + to) = pack2(x, y);
        else
            *(float2 *)((float *)p.c + to) = make_float2(x, y);
    }

    __device__ __forceinline__ void consume() {
        float acc[NT][4] = {};
        for (int i = 0; i < steps; i++) {
            barrier_wait(full(i), turn(i));
            group_start();
#pragma unroll
            for (int k = 0; k < STEP / 16; k++) group_mma(acc, tile_at(at(i) + k * 32), tile_at(at(i) + A_BYTES + k * 32));
            group_commit();
            group_wait<0>();
            settle(acc);
            if (threadIdx.x % 32 == 0) barrier_arrive(freed(i));
        }
        const int lane = threadIdx.x & 31, r = threadIdx.x / 32 * 16 + lane / 4;
#pragma unroll
        for (int j = 0; j < NT; j++) {
            const int col = column + j * 8 + lane % 4 * 2;
            put(r, col, acc[j][0], acc[j][1]);
            put(r + 8, col, acc[j][2], acc[j][3]);
        }
    }

    __device__ __forceinline__ void run() {
        if (threadIdx.x == 0) {
            for (int i = 0; i < STAGES; i++) {
                barrier_init(full(i), 1);
                barrier_init(freed(i), 4);
            }
            barrier_ready();
        }
        __syncthreads();
        if (threadIdx.x < 128)
            consume();
        else if (threadIdx.x == 128)
            produce();
    }
};

#define FEW(NAME, BN, STAGES, EPI)                                                                                     \
    extern "C" __global__ void __launch_bounds__(160)                                                                   \
        NAME(const FewRows p, const __grid_constant__ TensorMap a, const __grid_constant__ TensorMap w) {               \
        extern __shared__ __align__(1024) unsigned char smem[];                                                         \
        Few<BN, STAGES, EPI>(p, &a, &w, smem_addr(smem)).run();                                                         \
    }

FEW(few_store_32, 32, 8, STORE)
FEW(few_store_128, 128, 4, STORE)
FEW(few_store16_32, 32, 8, STORE16)
FEW(few_route_32, 32, 16, ROUTE)
#endif
