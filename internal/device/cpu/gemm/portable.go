package gemm

import (
	"math"
	"unsafe"
)

// portable is the family in Go: for processors without a faster one, and what the others are tested against. Like
// assembly, its kernels are not watched by the race detector, which would make them fifty times slower.
func portable() *Family {
	f := &Family{Name: "go", lanes: 1, peakOps: 2 * 8 * 64}
	for rows := 1; rows <= 4; rows++ {
		f.weight = append(f.weight, func(c *float32, ldc int, a *byte, lda int, b *byte, steps int) {
			goTile(c, ldc, a, lda, b, steps, rows)
		})
		f.plain = append(f.plain, func(c *float32, ldc int, a *byte, lda int, b *byte, steps int) {
			goPlainTile(c, ldc, a, lda, b, steps, rows)
		})
	}
	f.wide = f.weight
	f.exp, f.scaleAdd, f.peak = goExp, goScaleAdd, goPeak
	return f
}

func floats(p *byte, off, n int) []float32 {
	return unsafe.Slice((*float32)(unsafe.Add(unsafe.Pointer(p), off)), n)
}

// goTile is the fp32 kernel over a packed panel.
//
//go:norace
//go:nocheckptr
func goTile(c *float32, ldc int, a *byte, lda int, b *byte, steps, rows int) {
	panel := unsafe.Slice((*[Cols]uint32)(unsafe.Pointer(b)), steps)
	for r := range rows {
		row := floats(a, r*lda, 2*steps)
		var acc [Cols]float32
		for s := range panel {
			x0, x1 := row[2*s], row[2*s+1]
			for j, pair := range &panel[s] {
				acc[j] += x0 * math.Float32frombits(pair<<16)
				acc[j] += x1 * math.Float32frombits(pair&0xffff0000)
			}
		}
		copy(floats((*byte)(unsafe.Pointer(c)), r*ldc, Cols), acc[:])
	}
}

// goPlainTile is the fp32 kernel over a plain panel.
//
//go:norace
//go:nocheckptr
func goPlainTile(c *float32, ldc int, a *byte, lda int, b *byte, steps, rows int) {
	panel := unsafe.Slice((*[Cols]float32)(unsafe.Pointer(b)), steps)
	for r := range rows {
		row := floats(a, r*lda, steps)
		var acc [Cols]float32
		for s := range panel {
			x := row[s]
			for j, v := range &panel[s] {
				acc[j] += x * v
			}
		}
		copy(floats((*byte)(unsafe.Pointer(c)), r*ldc, Cols), acc[:])
	}
}

//go:norace
//go:nocheckptr
func goExp(x *float32, n int, scale, bias float32) {
	for i, v := range unsafe.Slice(x, n) {
		y := v*scale - bias
		switch {
		case y < -87.3:
			y = 0
		default:
			y = float32(math.Exp(float64(min(y, 88))))
		}
		unsafe.Slice(x, n)[i] = y
	}
}

//go:norace
//go:nocheckptr
func goScaleAdd(o, t *float32, n int, alpha float32) {
	to, from := unsafe.Slice(o, n), unsafe.Slice(t, n)
	for i, v := range from {
		to[i] = to[i]*alpha + v
	}
}

// goPeak keeps eight accumulators busy.
func goPeak(n int) {
	var acc [8]float32
	x, y := float32(1.0001), float32(1e-9)
	for range n * 64 {
		for i := range acc {
			acc[i] = acc[i]*x + y
		}
	}
	sink(acc[0] + acc[1] + acc[2] + acc[3] + acc[4] + acc[5] + acc[6] + acc[7])
}

//go:noinline
func sink(float32) {}

// goSum adds eight streams at once, so that the adder is not the limit.
func goSum(w []uint64) uint64 {
	var s [8]uint64
	for ; len(w) >= 8; w = w[8:] {
		v := (*[8]uint64)(w)
		s[0] += v[0]
		s[1] += v[1]
		s[2] += v[2]
		s[3] += v[3]
		s[4] += v[4]
		s[5] += v[5]
		s[6] += v[6]
		s[7] += v[7]
	}
	for i, v := range w {
		s[i] += v
	}
	return s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7]
}
