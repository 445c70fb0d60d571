package gemm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"larder/internal/device"
)

// randomWeight is a weight as values and packed.
func randomWeight(rng *rand.Rand, n, k int) ([][]uint16, *Packed) {
	rows := make([][]uint16, n)
	for i := range rows {
		rows[i] = make([]uint16, k)
		for j := range rows[i] {
			rows[i][j] = device.BF16(float32(rng.NormFloat64()))
		}
	}
	w := NewPacked(n, k, make([]byte, PackedSize(n, k)))
	for p := range w.Panels() {
		w.Pack(p, rows[p*Cols:min((p+1)*Cols, n)])
	}
	return rows, w
}

// operand is x as the family's A operand, rows padded to whole pairs.
func operand(f *Family, x [][]float32) (a []byte, pitch int) {
	k := (len(x[0]) + 1) / 2 * 2
	pitch = k*f.Size() + 64
	a = make([]byte, pitch*len(x))
	for r, row := range x {
		if f.BF16 {
			out := make([]uint16, k)
			f.Round(out, row)
			copy(a[r*pitch:], bytesOf(out))
		} else {
			copy(a[r*pitch:], bytesOf(row))
		}
	}
	return a, pitch
}

// TestWeight compares every family with float64 sums, on shapes with every kind of tail, over poisoned outputs.
func TestWeight(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for _, f := range Families() {
		for range 40 {
			m, n, k := 1+rng.IntN(30), 1+rng.IntN(100), 1+rng.IntN(200)
			t.Run(fmt.Sprintf("%s/%dx%dx%d", f.Name, m, n, k), func(t *testing.T) { checkWeight(t, f, rng, m, n, k) })
		}
	}
}

func checkWeight(t *testing.T, f *Family, rng *rand.Rand, m, n, k int) {
	rows, w := randomWeight(rng, n, k)
	x := make([][]float32, m)
	for r := range x {
		x[r] = make([]float32, k)
		for i := range x[r] {
			x[r][i] = device.Float32(device.BF16(float32(rng.NormFloat64())))
		}
	}
	a, pitch := operand(f, x)
	c := make([]float32, m*w.Padded())
	for i := range c {
		c[i] = float32(math.NaN())
	}
	f.Weight(c, w.Padded(), a, pitch, m, w, 0, w.Panels())
	for r := range m {
		for j := range w.Padded() {
			var want, size float64
			if j < n {
				for i := range k {
					p := float64(x[r][i]) * float64(device.Float32(rows[j][i]))
					want += p
					size += math.Abs(p)
				}
			}
			// Products of bf16 are exact in fp32; k sums each round by 2^-24 of the running sum. VDPBF16PS rounds each
			// product as well.
			got := float64(c[r*w.Padded()+j])
			if bound := size * float64(k+2) * 0x1p-23; !(math.Abs(got-want) <= bound) {
				t.Fatalf("row %d, output %d: %v, want %v within %v", r, j, got, want, bound)
			}
		}
	}
}

// TestRowsAreIndependent computes rows alone and in company: the same bits.
func TestRowsAreIndependent(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for _, f := range Families() {
		_, w := randomWeight(rng, 70, 131)
		x := make([][]float32, 29)
		for r := range x {
			x[r] = make([]float32, 131)
			for i := range x[r] {
				x[r][i] = float32(rng.NormFloat64())
			}
		}
		a, pitch := operand(f, x)
		all := make([]float32, 29*w.Padded())
		f.Weight(all, w.Padded(), a, pitch, 29, w, 0, w.Panels())
		for r := range 29 {
			one := make([]float32, w.Padded())
			f.Weight(one, w.Padded(), a[r*pitch:], pitch, 1, w, 0, w.Panels())
			for j := range 70 {
				if one[j] != all[r*w.Padded()+j] {
					t.Fatalf("%s: row %d, output %d is %v alone and %v in company", f.Name, r, j, one[j], all[r*w.Padded()+j])
				}
			}
		}
	}
}

func TestPlainAndWide(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	for _, f := range Families() {
		const m, k = 27, 67
		a := make([]float32, m*(k+1))
		panel := make([]float32, k*Cols)
		for i := range a {
			a[i] = float32(rng.NormFloat64())
		}
		for i := range panel {
			panel[i] = float32(rng.NormFloat64())
		}
		c := make([]float32, m*Cols)
		f.Plain(c, Cols, bytesOf(a), (k+1)*4, m, bytesOf(panel), k, 1)
		for r := range m {
			for j := range Cols {
				var want, size float64
				for i := range k {
					p := float64(a[r*(k+1)+i]) * float64(panel[i*Cols+j])
					want, size = want+p, size+math.Abs(p)
				}
				if got := float64(c[r*Cols+j]); !(math.Abs(got-want) <= size*(k+2)*0x1p-24) {
					t.Fatalf("%s: plain row %d, output %d: %v, want %v", f.Name, r, j, got, want)
				}
			}
		}
		rows, w := randomWeight(rng, 40, k)
		wide := make([]float32, m*w.Padded())
		f.Wide(wide, w.Padded(), a, k+1, m, w, 0, w.Panels())
		for r := range m {
			for j := range 40 {
				var want, size float64
				for i := range k {
					p := float64(a[r*(k+1)+i]) * float64(device.Float32(rows[j][i]))
					want, size = want+p, size+math.Abs(p)
				}
				if got := float64(wide[r*w.Padded()+j]); !(math.Abs(got-want) <= size*(k+3)*0x1p-23) {
					t.Fatalf("%s: wide row %d, output %d: %v, want %v", f.Name, r, j, got, want)
				}
			}
		}
	}
}

func TestExp(t *testing.T) {
	for _, f := range Families() {
		x := make([]float32, 1<<14)
		for i := range x {
			x[i] = -100 + 200*float32(i)/float32(len(x))
		}
		x[0], x[1] = float32(math.Inf(-1)), -1e30
		in := append([]float32(nil), x...)
		f.Exp(x, 0.5, -1)
		for i, v := range in {
			y := float64(v*0.5) + 1
			want := math.Exp(min(y, 88))
			if y < -87.3 {
				want = 0
			}
			if got := float64(x[i]); !(math.Abs(got-want) <= 4e-7*want+1e-38) && math.Abs(y+87.3) > 1e-4 {
				t.Fatalf("%s: exp(%v) = %v, want %v", f.Name, y, got, want)
			}
		}
	}
}

func TestSum(t *testing.T) {
	rng := rand.New(rand.NewPCG(13, 14))
	for n := range 200 {
		x, want := make([]uint64, n), uint64(0)
		for i := range x {
			x[i] = rng.Uint64()
			want += x[i]
		}
		if got := Sum(x); got != want {
			t.Fatalf("%d words sum to %d, want %d", n, got, want)
		}
	}
}

// TestSoftmax folds rows one after another and compares with the softmax of all of them.
func TestSoftmax(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	for _, f := range Families() {
		for range 100 {
			top, sum, scale := float32(math.Inf(-1)), float32(0), 0.25+rng.Float32()
			var all, terms []float64
			for range 1 + rng.IntN(4) {
				x := make([]float32, Scores)
				for i := range x {
					x[i] = float32(rng.NormFloat64() * 20)
				}
				seen := 1 + rng.IntN(Scores)
				for _, v := range x[:seen] {
					all = append(all, float64(v)*float64(scale))
				}
				if seen < Scores {
					x[seen] = float32(math.NaN()) // what does not count may be anything
				}
				shrink := f.Softmax(x, seen, scale, &top, &sum)
				for i := range terms {
					terms[i] *= float64(shrink)
				}
				for i, v := range x {
					if i < seen {
						terms = append(terms, float64(v))
					} else if v != 0 {
						t.Fatalf("%s: score %d of %d counts %v", f.Name, i, seen, v)
					}
				}
			}
			compareSoftmax(t, f, all, terms, float64(top), float64(sum))
		}
		x := make([]float32, Scores)
		x[3] = float32(math.NaN())
		top, sum := float32(math.Inf(-1)), float32(0)
		if f.Softmax(x, 9, 1, &top, &sum); !math.IsNaN(float64(sum)) {
			t.Errorf("%s: a NaN among the scores sums to %v", f.Name, sum)
		}
	}
}

func compareSoftmax(t *testing.T, f *Family, scores, terms []float64, top, sum float64) {
	t.Helper()
	most, total := math.Inf(-1), 0.0
	for _, v := range scores {
		most = max(most, v)
	}
	for _, v := range scores {
		total += math.Exp(v - most)
	}
	if math.Abs(top-most) > 1e-5*(1+math.Abs(most)) {
		t.Fatalf("%s: maximum %v, want %v", f.Name, top, most)
	}
	for i, v := range scores {
		// A score of 60 is off by 60 * 2^-24 once it is scaled, and its term by as much of itself.
		if want := math.Exp(v-most) / total; math.Abs(terms[i]/sum-want) > 2e-5*want+1e-30 {
			t.Fatalf("%s: term %d of %d is %v, want %v", f.Name, i, len(scores), terms[i]/sum, want)
		}
	}
}

func TestRoundAndScaleAdd(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	for _, f := range Families() {
		src := make([]float32, 133)
		for i := range src {
			src[i] = float32(rng.NormFloat64() * math.Pow(10, float64(rng.IntN(20)-10)))
		}
		dst := make([]uint16, len(src))
		f.Round(dst, src)
		for i, v := range src {
			if dst[i] != device.BF16(v) {
				t.Fatalf("%s: %v rounds to %#x, want %#x", f.Name, v, dst[i], device.BF16(v))
			}
		}
		o, s := src[:128], make([]float32, 128)
		want := make([]float64, 128)
		for i := range s {
			s[i] = float32(rng.NormFloat64())
			want[i] = float64(o[i])*0.25 + float64(s[i])
		}
		f.ScaleAdd(o, s, 0.25)
		for i := range o {
			if math.Abs(float64(o[i])-want[i]) > 1e-6*(1+math.Abs(want[i])) {
				t.Fatalf("%s: value %d is %v, want %v", f.Name, i, o[i], want[i])
			}
		}
	}
}

// BenchmarkWeight is one thread on one matrix, against the register-only peak of the same family in the same run.
func BenchmarkWeight(b *testing.B) {
	rng := rand.New(rand.NewPCG(9, 10))
	for _, f := range Families() {
		for _, shape := range [][3]int{{1, 4096, 2048}, {8, 4096, 2048}, {64, 1536, 2048}, {1024, 4096, 2048}} {
			m, n, k := shape[0], shape[1], shape[2]
			b.Run(fmt.Sprintf("%s/M=%d,N=%d,K=%d", f.Name, m, n, k), func(b *testing.B) {
				_, w := randomWeight(rng, n, k)
				x := make([][]float32, m)
				for r := range x {
					x[r] = make([]float32, k)
					for i := range x[r] {
						x[r][i] = float32(rng.NormFloat64())
					}
				}
				a, pitch := operand(f, x)
				c := make([]float32, m*n)
				b.ResetTimer()
				for range b.N {
					for r := 0; r < m; r += 96 {
						rows := min(96, m-r)
						f.Weight(c[r*n:], n, a[r*pitch:], pitch, rows, w, 0, w.Panels())
					}
				}
				flops := 2 * float64(m) * float64(n) * float64(k) * float64(b.N) / b.Elapsed().Seconds()
				b.ReportMetric(flops/1e9, "GFLOP/s")
				b.ReportMetric(100*flops/peakRate(f), "%peak")
			})
		}
	}
}

// peakRate is the family's register-only rate on one thread, measured now.
func peakRate(f *Family) float64 {
	best := 0.0
	for range 5 {
		began := time.Now()
		ops := f.Peak(200000)
		best = max(best, ops/time.Since(began).Seconds())
	}
	return best
}
