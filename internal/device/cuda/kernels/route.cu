// Routing: each row's experts in fp32, and the pairs (row, rank) sorted by expert. Which place a pair has within its
// expert may differ between runs; no value depends on it.
#include "prelude.cuh"

const int LANE = 8; // experts of one lane: 256 in all

// choose takes the most probable experts of each row, ties to the lower number: a warp a row. What is not a number is
// never chosen before what is one.
extern "C" __global__ void choose(int *chosen, float *weight, const float *logits, i64 ld, int rows, int experts, int visits,
                                  int renormalise) {
    const int r = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (r >= rows) return;
    float p[LANE], top = -INFINITY_F, sum = 0;
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        p[i] = i * 32 + lane < experts ? logits[(i64)r * ld + i * 32 + lane] : -INFINITY_F;
        top = fmaxf(top, p[i]);
    }
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, d));
#pragma unroll
    for (int i = 0; i < LANE; i++) {
        p[i] = i * 32 + lane < experts ? expf(p[i] - top) : -1;
        if (i * 32 + lane < experts) sum += p[i];
        if (!(p[i] >= 0) && i * 32 + lane < experts) p[i] = -0.5f;
    }
    sum = warp_sum(sum);
    float kept = 0, mine = 0; // lane j keeps the weight of rank j
    for (int j = 0; j < visits; j++) {
        float best = -1;
        int at = experts;
#pragma unroll
        for (int i = 0; i < LANE; i++)
            if (p[i] > best) best = p[i], at = i * 32 + lane;
#pragma unroll
        for (int d = 16; d > 0; d >>= 1) {
            const float v = __shfl_xor_sync(~0u, best, d);
            const int e = __shfl_xor_sync(~0u, at, d);
            if (v > best || v == best && e < at) best = v, at = e;
        }
#pragma unroll
        for (int i = 0; i < LANE; i++)
            if (i * 32 + lane == at) p[i] = -1;
        kept += best / sum;
        if (lane == j % 32) mine = best / sum;
        if (lane == 0) chosen[(i64)r * visits + j] = at;
        if (j % 32 == 31 || j == visits - 1)
            if (lane <= j % 32) weight[(i64)r * visits + j / 32 * 32 + lane] = mine;
    }
    if (renormalise)
        for (int j = lane; j < visits; j += 32) weight[(i64)r * visits + j] /= kept;
}

// one_expert is the routing of a dense MLP.
extern "C" __global__ void one_expert(int *chosen, float *weight, int rows) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < rows) chosen[i] = 0, weight[i] = 1;
}

// count_pairs counts the pairs of each expert; count was zeroed.
extern "C" __global__ void count_pairs(int *count, const int *chosen, int pairs, int experts) {
    __shared__ int n[256];
    for (int i = threadIdx.x; i < experts; i += blockDim.x) n[i] = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < pairs) atomicAdd(&n[chosen[i]], 1);
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += blockDim.x)
        if (n[e]) atomicAdd(&count[e], n[e]);
}

// cut_tiles finds where each expert's pairs start and cuts them into tiles of up to size pairs. One block of 256.
extern "C" __global__ void cut_tiles(int *start, int4 *tiles, int *tile_count, const int *count, int experts, int size) {
    __shared__ int pairs[256], pieces[256];
    const int e = threadIdx.x, n = e < experts ? count[e] : 0;
    pairs[e] = n, pieces[e] = (n + size - 1) / size;
    __syncthreads();
    for (int d = 1; d < 256; d *= 2) {
        const int a = e >= d ? pairs[e - d] : 0, b = e >= d ? pieces[e - d] : 0;
        __syncthreads();
        pairs[e] += a, pieces[e] += b;
        __syncthreads();
    }
    const int first = pairs[e] - n;
    int at = e > 0 ? pieces[e - 1] : 0;
    if (e < experts) start[e] = first;
    for (int i = 0; i < n; i += size) tiles[at++] = make_int4(e, first + i, min(size, n - i), 0);
    if (e == 255) *tile_count = pieces[255];
}

// sort_pairs puts each pair at its place; start moves on by what was placed.
extern "C" __global__ void sort_pairs(int *order, int *start, const int *chosen, int pairs, int experts) {
    __shared__ int n[256], base[256];
    for (int i = threadIdx.x; i < experts; i += blockDim.x) n[i] = 0;
    __syncthreads();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    int e = 0, rank = 0;
    if (i < pairs) e = chosen[i], rank = atomicAdd(&n[e], 1);
    __syncthreads();
    for (int j = threadIdx.x; j < experts; j += blockDim.x)
        if (n[j]) base[j] = atomicAdd(&start[j], n[j]);
    __syncthreads();
    if (i < pairs) order[base[e] + rank] = i;
}
