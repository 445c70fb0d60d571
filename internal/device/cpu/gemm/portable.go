package gemm

import (
	"math"
	"unsafe"
)

// portable is the family in Go: for processors without a faster one, and what the others are tested against. Like
// assembly, its kernels are not watched by the race detector, which would make them fifty times slower.
func portable() *Family {
	f := &Family{Name: "go", lanes: 1, peakOps: 2 * 12 * 64}
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

// goSteps is how many steps of a panel the Go kernel takes at a time: 8 KiB, which stay in the first-level cache while
// its columns go by.
const goSteps = 64

type (
	pair  = [2]float32   // two neighbours of a row of A
	words = [Cols]uint32 // one step of a panel
)

func pairs(p *byte, off, n int) []pair {
	return unsafe.Slice((*pair)(unsafe.Add(unsafe.Pointer(p), off)), n)
}

// goTile is the fp32 kernel over a packed panel. Sums wait in C between pieces of the panel.
//
//go:norace
//go:nocheckptr
func goTile(c *float32, ldc int, a *byte, lda int, b *byte, steps, rows int) {
	panel := unsafe.Slice((*words)(unsafe.Pointer(b)), steps)
	out := func(r int) *[Cols]float32 { return (*[Cols]float32)(unsafe.Add(unsafe.Pointer(c), r*ldc)) }
	for r := range rows {
		*out(r) = [Cols]float32{}
	}
	for s := 0; s < steps; s += goSteps {
		part := panel[s:min(s+goSteps, steps)]
		if rows == 4 {
			goFour(out(0), out(1), out(2), out(3), pairs(a, 8*s, len(part)), pairs(a, lda+8*s, len(part)),
				pairs(a, 2*lda+8*s, len(part)), pairs(a, 3*lda+8*s, len(part)), part)
			continue
		}
		for r := range rows {
			goOne(out(r), pairs(a, r*lda+8*s, len(part)), part)
		}
	}
}

// goFour adds a piece of a panel to four rows, two columns at a time: eight sums in registers.
//
//go:norace
//go:nocheckptr
func goFour(c0, c1, c2, c3 *[Cols]float32, a0, a1, a2, a3 []pair, panel []words) {
	a0, a1, a2, a3 = a0[:len(panel)], a1[:len(panel)], a2[:len(panel)], a3[:len(panel)]
	for j := 0; j < Cols; j += 2 {
		s00, s01, s10, s11 := c0[j], c0[j+1], c1[j], c1[j+1]
		s20, s21, s30, s31 := c2[j], c2[j+1], c3[j], c3[j+1]
		for s := range panel {
			w, v := panel[s][j], panel[s][j+1]
			w0, w1 := math.Float32frombits(w<<16), math.Float32frombits(w&0xffff0000)
			v0, v1 := math.Float32frombits(v<<16), math.Float32frombits(v&0xffff0000)
			x := &a0[s]
			s00 += x[0] * w0
			s00 += x[1] * w1
			s01 += x[0] * v0
			s01 += x[1] * v1
			x = &a1[s]
			s10 += x[0] * w0
			s10 += x[1] * w1
			s11 += x[0] * v0
			s11 += x[1] * v1
			x = &a2[s]
			s20 += x[0] * w0
			s20 += x[1] * w1
			s21 += x[0] * v0
			s21 += x[1] * v1
			x = &a3[s]
			s30 += x[0] * w0
			s30 += x[1] * w1
			s31 += x[0] * v0
			s31 += x[1] * v1
		}
		c0[j], c0[j+1], c1[j], c1[j+1] = s00, s01, s10, s11
		c2[j], c2[j+1], c3[j], c3[j+1] = s20, s21, s30, s31
	}
}

// goOne adds a piece of a panel to one row, four columns at a time, each in the order that goFour has.
//
//go:norace
//go:nocheckptr
func goOne(c *[Cols]float32, a []pair, panel []words) {
	a = a[:len(panel)]
	for j := 0; j < Cols; j += 4 {
		s0, s1, s2, s3 := c[j], c[j+1], c[j+2], c[j+3]
		for s := range panel {
			x, w := &a[s], (*[4]uint32)(panel[s][j:])
			s0 += x[0] * math.Float32frombits(w[0]<<16)
			s0 += x[1] * math.Float32frombits(w[0]&0xffff0000)
			s1 += x[0] * math.Float32frombits(w[1]<<16)
			s1 += x[1] * math.Float32frombits(w[1]&0xffff0000)
			s2 += x[0] * math.Float32frombits(w[2]<<16)
			s2 += x[1] * math.Float32frombits(w[2]&0xffff0000)
			s3 += x[0] * math.Float32frombits(w[3]<<16)
			s3 += x[1] * math.Float32frombits(w[3]&0xffff0000)
		}
		c[j], c[j+1], c[j+2], c[j+3] = s0, s1, s2, s3
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

// goPeak keeps twelve sums busy: with two multiplications and two additions a cycle, of three cycles each, fewer would
// wait for each other.
func goPeak(n int) {
	x, y := float32(0.9999), float32(1e-9)
	var a, b, c, d, e, f, g, h, i, j, k, l float32
	for range n * 64 {
		a, b, c, d = a*x+y, b*x+y, c*x+y, d*x+y
		e, f, g, h = e*x+y, f*x+y, g*x+y, h*x+y
		i, j, k, l = i*x+y, j*x+y, k*x+y, l*x+y
	}
	sink(a + b + c + d + e + f + g + h + i + j + k + l)
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
