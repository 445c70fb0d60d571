// What is done row by row: embedding, norms, placing Q, K and V, the weighted sum of experts, the greedy choice. And
// weights: made up, or laid out from a checkpoint's rows.
#include "prelude.cuh"

// Where row r of a weight goes: rows are taken in groups of 8, group g to group g * stride + first.
struct Rows {
    i64 start; // first row of the destination
    i64 ld;    // elements
    int stride, first;
};

DEV i64 row_of(const Rows &p, i64 r) { return p.start + (r / 8 * p.stride + p.first) * 8 + r % 8; }

// finite is a float that is no NaN as bf16.
DEV u16 finite(float f) {
    const u32 u = __float_as_uint(f);
    return (u16)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}

// dummy fills rows of k elements with the generator of package device: four neighbours share one mix of SplitMix64
// (Steele, Lea and Flood 2014). The product and the sum are rounded apart, as there.
extern "C" __global__ void dummy(u16 *dst, const Rows p, i64 rows, i64 k, u64 seed, float scale, float offset) {
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < rows * k; i += (i64)gridDim.x * blockDim.x) {
        u64 z = seed + (u64)(i >> 2) * 0x9E3779B97F4A7C15ull;
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
        z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
        z ^= z >> 31;
        const float f = (float)(short)(z >> (16 * (i & 3))) * (1.0f / 32768);
        dst[row_of(p, i / k) * p.ld + i % k] = finite(__fadd_rn(__fmul_rn(f, scale), offset));
    }
}

// place_rows lays out rows of k elements, of which src holds those from row first on.
extern "C" __global__ void place_rows(u16 *dst, const Rows p, const u16 *src, i64 first, i64 rows, i64 k) {
    for (i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x; i < rows * k; i += (i64)gridDim.x * blockDim.x)
        dst[row_of(p, first + i / k) * p.ld + i % k] = src[i];
}

// widen makes a vector of fp32.
extern "C" __global__ void widen(float *dst, const u16 *src, int n) {
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) dst[i] = from_bf16(src[i]);
}

extern "C" __global__ void embed(float *x, i64 ldx, const u16 *table, i64 ld, const int *ids, int n) {
    const i64 r = blockIdx.x;
    const u16 *from = table + (i64)ids[r] * ld;
    for (int i = threadIdx.x; i < n; i += blockDim.x) x[r * ldx + i] = from_bf16(from[i]);
}

// block_sum adds over 256 threads in a fixed order.
DEV float block_sum(float v) {
    __shared__ float part[8];
    v = warp_sum(v);
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
    __syncthreads();
    return ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]));
}

// rms_norm writes x / sqrt(mean(x²) + eps) * w of one row a block of 256 threads, rounded to bf16. Where rest is set, what
// the rounding left goes to rest, in two further bf16 values of which the second is last elements behind: the three sum to
// the fp32 value but for 2^-24 of it. rows says which rows of x to take; null: all.
extern "C" __global__ void rms_norm(u16 *out, i64 ldo, u16 *rest, i64 last, const float *x, i64 ldx, const float *w,
                                    const int *rows, int n, float eps) {
    const i64 r = blockIdx.x;
    const float *in = x + (rows ? rows[r] : r) * ldx;
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += 256) sum += in[i] * in[i];
    const float scale = 1 / sqrtf(block_sum(sum) / n + eps);
    for (int i = threadIdx.x; i < n; i += 256) {
        const float v = in[i] * scale * w[i];
        const u16 high = to_bf16(v);
        out[r * ldo + i] = high;
        if (!rest) continue;
        const float left = v - from_bf16(high);
        const u16 middle = to_bf16(left);
        rest[r * ldo + i] = middle;
        rest[last + r * ldo + i] = to_bf16(left - from_bf16(middle));
    }
}

struct Place {
    const u16 *qkv; // [rows][(heads + 2 kv heads) * dim]
    u16 *q;
    char *pool;
    const float *q_norm, *k_norm, *cosine, *sine; // the tables are [position][dim / 2]
    const int *tables;
    const int2 *at; // of each row: its position, where its sequence's blocks start in tables
    i64 ld, ldq;
    i64 block, layer, head, value; // as in Attend
    int heads, kv_heads, dim, shift;
    float eps;
};

// place_heads norms the heads of Q and K and turns them by their position, element i with i + dim / 2 (Su et al. 2021);
// keeps Q, and writes K and V to the pool. A warp takes one head of one row.
extern "C" __global__ void place_heads(const Place p) {
    const i64 r = blockIdx.x;
    const int h = blockIdx.y * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (h >= p.heads + 2 * p.kv_heads) return;
    const u16 *in = p.qkv + r * p.ld + (i64)h * p.dim;
    const int2 at = p.at[r];
    u16 *out = p.q + r * p.ldq + (i64)h * p.dim;
    if (h >= p.heads) {
        const int kv = (h - p.heads) % p.kv_heads;
        const i64 b = p.tables[at.y + (at.x >> p.shift)];
        char *slot = p.pool + b * p.block + p.layer + kv * p.head + (i64)(at.x & ((1 << p.shift) - 1)) * p.dim * 2;
        out = (u16 *)(h >= p.heads + p.kv_heads ? slot + p.value : slot);
    }
    if (h >= p.heads + p.kv_heads) {
        for (int i = lane; i < p.dim; i += 32) out[i] = in[i];
        return;
    }
    const float *w = h < p.heads ? p.q_norm : p.k_norm;
    const int half = p.dim / 2;
    float sum = 0;
    for (int i = lane; i < p.dim; i += 32) sum += from_bf16(in[i]) * from_bf16(in[i]);
    const float scale = 1 / sqrtf(warp_sum(sum) / p.dim + p.eps);
    for (int i = lane; i < half; i += 32) {
        const float a = from_bf16(in[i]) * scale * w[i], b = from_bf16(in[i + half]) * scale * w[i + half];
        const float c = p.cosine[(i64)at.x * half + i], s = p.sine[(i64)at.x * half + i];
        out[i] = to_bf16(a * c - b * s);
        out[i + half] = to_bf16(b * c + a * s);
    }
}

// combine adds each row's weighted answers to the hidden state, in the order of rank. Answers have room for whole eights.
extern "C" __global__ void combine(float *x, i64 ldx, const u16 *answers, i64 lda, const float *weight, int visits, int n) {
    const i64 r = blockIdx.x;
    for (int i = threadIdx.x * 8; i < n; i += blockDim.x * 8) {
        float sum[8] = {};
        for (int j = 0; j < visits; j++) {
            const uint4 v = *(const uint4 *)(answers + (r * visits + j) * lda + i);
            const u32 pair[4] = {v.x, v.y, v.z, v.w};
            const float w = weight[r * visits + j];
#pragma unroll
            for (int k = 0; k < 4; k++) {
                sum[2 * k] += w * from_bf16((u16)pair[k]);
                sum[2 * k + 1] += w * from_bf16((u16)(pair[k] >> 16));
            }
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            if (i + k < n) x[r * ldx + i + k] += sum[k];
    }
}

// gather copies the rows of a list of pairs, eights elements of width each: a warp a pair.
extern "C" __global__ void gather(u16 *out, const u16 *in, i64 ld, const int *order, int visits, int pairs, int eights) {
    const i64 r = blockIdx.x * (i64)(blockDim.x / 32) + threadIdx.x / 32;
    if (r >= pairs) return;
    const uint4 *from = (const uint4 *)(in + order[r] / visits * ld);
    uint4 *to = (uint4 *)(out + r * ld);
    for (int i = threadIdx.x % 32; i < eights; i += 32) to[i] = from[i];
}

// argmax gives the lowest id with the largest logit of each row; -1 where all are NaN. A block of 1024 threads a row.
extern "C" __global__ void argmax(int *tokens, const float *logits, i64 ld, int n) {
    const float *in = logits + blockIdx.x * ld;
    u64 best = 0;
    for (int i = threadIdx.x; i < n; i += 1024) {
        const float v = in[i] + 0.0f; // -0 + 0 is +0
        const u32 u = __float_as_uint(v), order = u >> 31 ? ~u : u | 0x80000000u;
        const u64 key = (u64)order << 32 | (0xffffffffu - i);
        if (v == v && key > best) best = key;
    }
    __shared__ u64 part[32];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x >= 32) return;
    best = part[threadIdx.x];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x == 0) tokens[blockIdx.x] = best ? (int)(0xffffffffu - (u32)best) : -1;
}

// read_all sums memory, to measure how fast it can be read.
extern "C" __global__ void read_all(const uint4 *src, i64 n, u32 *out) {
    uint4 s = {0, 0, 0, 0};
    const i64 step = (i64)gridDim.x * blockDim.x;
    i64 i = blockIdx.x * (i64)blockDim.x + threadIdx.x;
    for (; i + 3 * step < n; i += 4 * step) {
        const uint4 a = src[i], b = src[i + step], c = src[i + 2 * step], d = src[i + 3 * step];
        s.x += a.x ^ b.x ^ c.x ^ d.x, s.y += a.y ^ b.y ^ c.y ^ d.y, s.z += a.z ^ b.z ^ c.z ^ d.z, s.w += a.w ^ b.w ^ c.w ^ d.w;
    }
    for (; i < n; i += step) s.x += src[i].x;
    if ((s.x ^ s.y ^ s.z ^ s.w) == 0x12345678u) *out = s.x;
}
