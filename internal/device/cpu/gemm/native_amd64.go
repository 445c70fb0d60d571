package gemm

import "golang.org/x/sys/cpu"

// native are the assembly families that this processor runs, best first.
func native() []*Family {
	var out []*Family
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512VL && cpu.X86.HasAVX512DQ {
		if cpu.X86.HasAVX512BF16 {
			out = append(out, avx512(true))
		}
		out = append(out, avx512(false))
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		out = append(out, avx2())
	}
	return out
}

func avx512(bf16 bool) *Family {
	f := &Family{
		Name: "avx512-f32", BF16: bf16, lanes: 16,
		wide:     []tileFunc{tileF32x1, tileF32x2, tileF32x3, tileF32x4, tileF32x5, tileF32x6, tileF32x7, tileF32x8, tileF32x9, tileF32x10, tileF32x11, tileF32x12},
		plain:    []tileFunc{tilePlainF32x1, tilePlainF32x2, tilePlainF32x3, tilePlainF32x4, tilePlainF32x5, tilePlainF32x6, tilePlainF32x7, tilePlainF32x8, tilePlainF32x9, tilePlainF32x10, tilePlainF32x11, tilePlainF32x12},
		exp:      expAVX512,
		softmax:  softmaxAVX512,
		scaleAdd: scaleAddAVX512,
		peak:     peakF32, peakOps: 24 * 32,
	}
	f.weight = f.wide
	if cpu.X86.HasAVX512BF16 {
		f.round = roundBF16
	} else {
		f.lanes = 1 // Round in Go; its only user of lanes
	}
	if bf16 {
		f.Name = "avx512-bf16"
		f.weight = []tileFunc{tileBF16x1, tileBF16x2, tileBF16x3, tileBF16x4, tileBF16x5, tileBF16x6, tileBF16x7, tileBF16x8, tileBF16x9, tileBF16x10, tileBF16x11, tileBF16x12}
		f.peak, f.peakOps = peakBF16, 24*64
	}
	return f
}

func avx2() *Family {
	f := &Family{
		Name: "avx2", lanes: 1,
		wide:     []tileFunc{tileAVX2x1, tileAVX2x2, tileAVX2x3, tileAVX2x4, tileAVX2x5, tileAVX2x6},
		plain:    []tileFunc{tilePlainAVX2x1, tilePlainAVX2x2, tilePlainAVX2x3, tilePlainAVX2x4, tilePlainAVX2x5, tilePlainAVX2x6},
		exp:      func(x *float32, n int, scale, bias float32) { expAVX2(x, n, scale, bias, &expTable[0]) },
		scaleAdd: scaleAddAVX2,
		peak:     peakAVX2, peakOps: 12 * 16,
	}
	f.weight = f.wide
	return f
}

// Sum adds words up, as fast as they can be read.
func Sum(x []uint64) uint64 {
	n := 0
	var sum uint64
	if cpu.X86.HasAVX2 {
		if n = len(x) / 32 * 32; n > 0 {
			sum = sumAVX2(&x[0], n)
		}
	}
	return sum + goSum(x[n:])
}
