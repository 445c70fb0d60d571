// Package gemm multiplies activations with weights on a CPU: C = A Wᵀ for a few rows of A at a time against weights
// packed in panels, with kernels for AVX-512 BF16, AVX-512, AVX2 and portable Go, and the vector functions around them.
// It owns no threads and no memory; package cpu does.
//
// Packing. A weight [N, K] lies in panels of 32 outputs: [N/32][K/2][32] words of 32 bits, each a pair of bf16: k even in
// the low half, k odd in the high half. N and K are padded with zeros. One such layout serves every kernel: VDPBF16PS
// takes the pairs as they are, the fp32 kernels widen them in registers. "Plain" panels are [N/32][K][32] fp32.
//
// Order. Every output has one accumulator that takes k in order from 0, so what a row becomes does not depend on how
// many rows are computed with it or where its tile lies. (Families differ from each other in rounding.)
//
// Start at Family; the kernels are generated: gen/main.go.
package gemm

//go:generate go run ./gen -out kernels_amd64.s -stubs stubs_amd64.go -pkg gemm
