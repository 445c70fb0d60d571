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

extern "C" __global__ void embed(float *x, i64 ldx, const u16 *table, i64 ld, const int *ids, const int *drawn, int n) {
    const i64 r = blockIdx.x;
    const int id = ids[r];
    const u16 *from = table + (i64)(id >= 0 ? id : max(drawn[-1 - id], 0)) * ld; // nothing could be drawn from NaN
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

// left takes from v what its rounding kept.
DEV void left(float (&v)[4], uint2 kept) {
    v[0] -= from_bf16((u16)kept.x), v[1] -= from_bf16((u16)(kept.x >> 16));
    v[2] -= from_bf16((u16)kept.y), v[3] -= from_bf16((u16)(kept.y >> 16));
}

// add4 adds up to four elements, n of them, to the residual stream.
DEV void add4(float *x, const u16 *delta, int n) {
    const uint2 d = *(const uint2 *)delta;
    float4 v = *(float4 *)x;
    v.x += from_bf16((u16)d.x);
    if (n > 1) v.y += from_bf16((u16)(d.x >> 16));
    if (n > 2) v.z += from_bf16((u16)d.y);
    if (n > 3) v.w += from_bf16((u16)(d.y >> 16));
    *(float4 *)x = v;
}

// add_rows adds rows of bf16 to the residual stream.
extern "C" __global__ void add_rows(float *x, i64 ldx, const u16 *delta, i64 ldd, int n) {
    for (int i = threadIdx.x * 4; i < n; i += blockDim.x * 4) add4(x + blockIdx.x * ldx + i, delta + blockIdx.x * ldd + i, n - i);
}

// rms_norm writes x / sqrt(mean(x²) + eps) * w of one row a block of 256 threads, rounded to bf16. Where rest is set, what
// the rounding left goes to rest, in two further bf16 values of which the second is last elements behind: the three sum to
// the fp32 value but for 2^-24 of it. rows says which rows of x to take; null: all. Rows of x are padded with zeros to whole
// 16 bytes, and out has room for as many elements. Where delta is set it is added to x first.
extern "C" __global__ void rms_norm(u16 *out, i64 ldo, u16 *rest, i64 last, float *x, i64 ldx, const float *w, const int *rows,
                                    const u16 *delta, i64 ldd, int n, float eps) {
    const i64 r = blockIdx.x;
    float *in = x + (rows ? rows[r] : r) * ldx;
    float sum = 0;
    for (int i = threadIdx.x * 4; i < n; i += 1024) {
        if (delta) add4(in + i, delta + r * ldd + i, n - i);
        const float4 v = *(const float4 *)(in + i);
        sum += (v.x * v.x + v.y * v.y) + (v.z * v.z + v.w * v.w);
    }
    const float scale = 1 / sqrtf(block_sum(sum) / n + eps);
    for (int i = threadIdx.x * 4; i < n; i += 1024) {
        const float4 f = *(const float4 *)(in + i);
        float v[4] = {f.x * scale, f.y * scale, f.z * scale, f.w * scale};
#pragma unroll
        for (int k = 0; k < 4; k++) v[k] = i + k < n ? v[k] * w[i + k] : 0;
        const uint2 high = make_uint2(pack2(v[0], v[1]), pack2(v[2], v[3]));
        *(uint2 *)(out + r * ldo + i) = high;
        if (!rest) continue;
        left(v, high);
        const uint2 middle = make_uint2(pack2(v[0], v[1]), pack2(v[2], v[3]));
        *(uint2 *)(rest + r * ldo + i) = middle;
        left(v, middle);
        *(uint2 *)(rest + last + r * ldo + i) = make_uint2(pack2(v[0], v[1]), pack2(v[2], v[3]));
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

// pair reads elements i and i + 1 of a row of bf16; where they are not aligned, one by one.
DEV float2 pair(const u16 *row, int i, bool aligned) {
    if (!aligned) return make_float2(from_bf16(row[i]), from_bf16(row[i + 1]));
    const u32 v = *(const u32 *)(row + i);
    return make_float2(from_bf16((u16)v), from_bf16((u16)(v >> 16)));
}

// turn norms a head of Q or K and turns it by its position, element i with i + dim / 2 (Su et al. 2021). A warp does it.
DEV void turn(u16 *out, const u16 *in, const float *w, const float *cosine, const float *sine, int dim, float eps) {
    const int half = dim / 2, lane = threadIdx.x % 32;
    float sum = 0;
    for (int i = lane * 2; i < dim; i += 64) {
        const float2 v = pair(in, i, true);
        sum += v.x * v.x + v.y * v.y;
    }
    const float scale = 1 / sqrtf(warp_sum(sum) / dim + eps);
    for (int i = lane * 2; i < half; i += 64) {
        const bool two = i + 1 < half; // an odd half ends with one
        const float2 a = pair(in, i, true), b = pair(in, i + half, half % 2 == 0);
        const float x[2] = {a.x * scale * w[i], two ? a.y * scale * w[i + 1] : 0}, y[2] = {b.x * scale * w[i + half], two ? b.y * scale * w[i + half + 1] : 0};
#pragma unroll
        for (int k = 0; k < 2; k++) {
            if (k == 1 && !two) break;
            const float c = cosine[i + k], s = sine[i + k];
            out[i + k] = to_bf16(x[k] * c - y[k] * s);
            out[i + half + k] = to_bf16(y[k] * c + x[k] * s);
        }
    }
}

// place_heads norms and turns the heads of Q and K, keeps Q, and writes K and V to the pool. A block of 256 threads takes a
// row, a warp one head after another.
extern "C" __global__ void place_heads(const Place p) {
    const i64 r = blockIdx.x;
    const int2 at = p.at[r];
    const int half = p.dim / 2, slot = at.x & ((1 << p.shift) - 1);
    char *keys = p.pool + p.tables[at.y + (at.x >> p.shift)] * p.block + p.layer + (i64)slot * p.dim * 2;
    for (int h = threadIdx.x / 32; h < p.heads + 2 * p.kv_heads; h += blockDim.x / 32) {
        const u16 *in = p.qkv + r * p.ld + (i64)h * p.dim;
        const int kv = h - p.heads;
        if (kv < 0) {
            turn(p.q + r * p.ldq + (i64)h * p.dim, in, p.q_norm, p.cosine + (i64)at.x * half, p.sine + (i64)at.x * half, p.dim, p.eps);
        } else if (kv < p.kv_heads) {
            turn((u16 *)(keys + kv * p.head), in, p.k_norm, p.cosine + (i64)at.x * half, p.sine + (i64)at.x * half, p.dim, p.eps);
        } else {
            u32 *out = (u32 *)(keys + p.value + (kv - p.kv_heads) * p.head);
            for (int i = threadIdx.x % 32; i < half; i += 32) out[i] = ((const u32 *)in)[i]; // dims are even
        }
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

// best_of is a logit with its id, so that the larger is the better: the lower id of two that are equal. 0 is a NaN.
DEV u64 best_of(float v, int id) {
    v += 0.0f; // -0 + 0 is +0
    const u32 u = __float_as_uint(v), order = u >> 31 ? ~u : u | 0x80000000u;
    return v == v ? (u64)order << 32 | (0xffffffffu - id) : 0;
}

// best_part finds the best of a part of each row: blocks of 256 threads, x over the parts, y over the rows.
extern "C" __global__ void best_part(u64 *parts, const float *logits, i64 ld, int n) {
    const float *in = logits + blockIdx.y * ld;
    const int each = (n + gridDim.x - 1) / gridDim.x, from = blockIdx.x * each, to = min(from + each, n);
    u64 best = 0;
#pragma unroll 4
    for (int i = from + threadIdx.x; i < to; i += 256) best = max(best, best_of(in[i], i));
    __shared__ u64 part[8];
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x > 0) return;
#pragma unroll
    for (int i = 0; i < 8; i++) best = max(best, part[i]);
    parts[blockIdx.y * gridDim.x + blockIdx.x] = best;
}

// argmax gives the lowest id with the largest logit of each row, from up to 32 parts; -1 where all are NaN. A warp a row.
// answers is the host's memory: a copy there would wait its turn behind blocks that are stored.
extern "C" __global__ void argmax(int *tokens, int *answers, const u64 *parts, int count) {
    u64 best = threadIdx.x < count ? parts[blockIdx.x * count + threadIdx.x] : 0;
#pragma unroll
    for (int d = 16; d > 0; d >>= 1) best = max(best, __shfl_xor_sync(~0u, best, d));
    if (threadIdx.x == 0) tokens[blockIdx.x] = answers[blockIdx.x] = best ? (int)(0xffffffffu - (u32)best) : -1;
}

// pull copies so many times 16 bytes from the host's memory: a copy would wait its turn behind blocks that are loaded.
extern "C" __global__ void pull(uint4 *to, const uint4 *from, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) to[i] = from[i];
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
