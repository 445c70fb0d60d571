package gemm

import (
	"fmt"
	"math"
	"unsafe"

	"larder/internal/device"
)

// Cols is the number of outputs of a panel.
const Cols = 32

// tileFunc computes rows x 32 outputs at c (ldc bytes apart) from rows of a (lda bytes apart) and one panel of so many
// steps: pairs of k, or single k of a plain panel.
type tileFunc func(c *float32, ldc int, a *byte, lda int, b *byte, steps int)

// Family is one set of kernels. All of a device's work is done by one family.
type Family struct {
	Name string
	BF16 bool // the A operand of Weight is bf16; else it is fp32

	weight []tileFunc // by rows, from 1: A against a packed panel
	wide   []tileFunc // fp32 A against a packed panel
	plain  []tileFunc // fp32 A against a plain panel

	exp      func(x *float32, n int, scale, bias float32)
	softmax  func(x *float32, seen uint64, scale float32, top, sum *float32) float32 // nil: from exp
	scaleAdd func(o, t *float32, n int, alpha float32)
	round    func(dst *uint16, src *float32, n int)
	peak     func(n int)
	peakOps  float64 // operations of one turn of peak
	lanes    int     // the vector functions take multiples of it
}

// Families are those that this processor can run, best first. The last is portable Go.
func Families() []*Family { return append(native(), portable()) }

// Find is the family of a name; "" or "auto" is the best one. exact asks for fp32 operands.
func Find(name string, exact bool) (*Family, error) {
	var names []string
	for _, f := range Families() {
		if (name == "" || name == "auto") && !(exact && f.BF16) || name == f.Name {
			if exact && f.BF16 {
				return nil, fmt.Errorf("kernels %s round to bf16: fp32 needs another family", name)
			}
			return f, nil
		}
		names = append(names, f.Name)
	}
	return nil, fmt.Errorf("kernels %q: this processor runs %v", name, names)
}

// Size is the bytes of one element of an A operand.
func (f *Family) Size() int {
	if f.BF16 {
		return 2
	}
	return 4
}

// run walks rows in tiles over panels [lo, hi).
func run(tiles []tileFunc, c []float32, ldc int, a []byte, lda, rows int, panels []byte, steps, lo, hi int) {
	most := len(tiles)
	size := steps * Cols * 4
	for p := lo; p < hi; p++ {
		b := &panels[p*size]
		for r := 0; r < rows; r += most {
			n := min(most, rows-r)
			tiles[n-1](&c[r*ldc+p*Cols], ldc*4, &a[r*lda], lda, b, steps)
		}
	}
}

// Weight computes panels [lo, hi) of C = A Wᵀ: rows of A lie lda bytes apart, rows of C ldc values apart. C must have
// room for whole panels, and A for whole pairs, zero beyond K.
func (f *Family) Weight(c []float32, ldc int, a []byte, lda, rows int, w *Packed, lo, hi int) {
	run(f.weight, c, ldc, a, lda, rows, w.data, w.steps, lo, hi)
}

// Wide is Weight with an fp32 A in every family: for the router.
func (f *Family) Wide(c []float32, ldc int, a []float32, lda, rows int, w *Packed, lo, hi int) {
	run(f.wide, c, ldc, bytesOf(a), lda*4, rows, w.data, w.steps, lo, hi)
}

// Panels multiplies A, an operand of Weight's kind, with panels that the caller packed: pairs of bf16, so many steps
// each.
func (f *Family) Panels(c []float32, ldc int, a []byte, lda, rows int, panels []byte, steps, n int) {
	run(f.weight, c, ldc, a, lda, rows, panels, steps, 0, n)
}

// Plain multiplies an fp32 A with n plain panels of so many steps.
func (f *Family) Plain(c []float32, ldc int, a []byte, lda, rows int, panels []byte, steps, n int) {
	run(f.plain, c, ldc, a, lda, rows, panels, steps, 0, n)
}

// Exp replaces x by exp(scale*x - bias). It is 0 below -87.3 and e^88 above 88. len(x) is a multiple of 16.
func (f *Family) Exp(x []float32, scale, bias float32) { f.exp(&x[0], len(x), scale, bias) }

// Scores is how many scores Softmax takes.
const Scores = 64

// Softmax folds a row of Scores scores, of which the first seen count, into a running softmax (Milakov and Gimelshein
// 2018). top and sum are the largest scaled score so far and the sum of exp(scaled - top); both move on, x becomes the
// new terms of the sum, 0 where it does not count, and the factor that what was summed before shrinks by is returned.
func (f *Family) Softmax(x []float32, seen int, scale float32, top, sum *float32) float32 {
	x = x[:Scores]
	if f.softmax != nil {
		return f.softmax(&x[0], ^uint64(0)>>(Scores-seen), scale, top, sum)
	}
	before := *top
	for i, v := range x[:seen] {
		x[i] = v * scale
		*top = max(*top, x[i])
	}
	for i := seen; i < Scores; i++ {
		x[i] = float32(math.Inf(-1))
	}
	f.Exp(x, 1, *top)
	var part [8]float32
	for i := 0; i < Scores; i += 8 {
		for j, v := range x[i : i+8] {
			part[j] += v
		}
	}
	terms := ((part[0] + part[4]) + (part[2] + part[6])) + ((part[1] + part[5]) + (part[3] + part[7]))
	shrink := float32(math.Exp(float64(before - *top)))
	*sum = *sum*shrink + terms
	return shrink
}

// ScaleAdd sets o = o*alpha + t. len(o) is a multiple of 16.
func (f *Family) ScaleAdd(o, t []float32, alpha float32) { f.scaleAdd(&o[0], &t[0], len(o), alpha) }

// Round writes src as bf16. Any length.
func (f *Family) Round(dst []uint16, src []float32) {
	n := 0
	if f.lanes > 1 {
		if n = len(src) / 16 * 16; n > 0 {
			f.round(&dst[0], &src[0], n)
		}
	}
	for ; n < len(src); n++ {
		dst[n] = device.BF16(src[n])
	}
}

// Peak runs the family's fastest multiply-add in registers for n turns and returns how many operations that were.
func (f *Family) Peak(n int) float64 {
	f.peak(n)
	return f.peakOps * float64(n)
}

func bytesOf[T any](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// expTable is what expAVX2 reads: log2(e), ln 2 in two parts, the lower bound, the polynomial, then eight times the
// upper bound.
var expTable = [19]float32{
	math.Log2E, 0.693359375, -2.12194440e-4, -87.3,
	1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1,
	88, 88, 88, 88, 88, 88, 88, 88,
}
