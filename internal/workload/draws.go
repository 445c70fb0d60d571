package workload

import (
	"fmt"
	"math"
	"math/bits"
	"sort"
)

// numpyRand draws as numpy's legacy global generator does after numpy.random.seed.
type numpyRand struct {
	t      twister
	normal float64 // the second of a pair of normal draws, kept for the next
	kept   bool
}

// integer is randint(lo, hi): uniform on [lo, hi), by masking and rejecting. A range of one draws nothing.
func (r *numpyRand) integer(lo, hi int) int {
	span := uint32(hi - lo - 1)
	if span == 0 {
		return lo
	}
	mask := uint32(1)<<bits.Len32(span) - 1
	for {
		if v := r.t.word() & mask; v <= span {
			return lo + int(v)
		}
	}
}

// exponential has the given mean.
func (r *numpyRand) exponential(mean float64) float64 { return -math.Log(1-r.t.float()) * mean }

// gauss is a standard normal draw, by the polar method, in pairs.
func (r *numpyRand) gauss() float64 {
	if r.kept {
		r.kept = false
		return r.normal
	}
	for {
		x, y := 2*r.t.float()-1, 2*r.t.float()-1
		if q := x*x + y*y; q < 1 && q != 0 {
			f := math.Sqrt(-2 * math.Log(q) / q)
			r.normal, r.kept = f*x, true
			return f * y
		}
	}
}

// gamma is a gamma draw of unit scale, by the rejection that numpy's legacy generator uses.
func (r *numpyRand) gamma(shape float64) float64 {
	switch {
	case shape == 1:
		return r.exponential(1)
	case shape < 1:
		return r.gammaBelowOne(shape)
	}
	b := shape - 1.0/3
	c := 1 / math.Sqrt(9*b)
	for {
		x, v := 0.0, 0.0
		for v <= 0 {
			x = r.gauss()
			v = 1 + c*x
		}
		v = v * v * v
		u := r.t.float()
		if u < 1-0.0331*(x*x)*(x*x) || math.Log(u) < 0.5*x*x+b*(1-v+math.Log(v)) {
			return b * v
		}
	}
}

func (r *numpyRand) gammaBelowOne(shape float64) float64 {
	for {
		u, v := r.t.float(), r.exponential(1)
		if u <= 1-shape {
			if x := math.Pow(u, 1/shape); x <= v {
				return x
			}
			continue
		}
		y := -math.Log((1 - u) / shape)
		if x := math.Pow(1-shape+shape*y, 1/shape); x <= v+y {
			return x
		}
	}
}

// lens draws n lengths between full*ratio (at least 1) and full, both included; full <= 0 gives zeros and draws
// nothing.
func (r *numpyRand) lens(full int, ratio float64, n int) []int {
	out := make([]int, n)
	if full <= 0 {
		return out
	}
	lo := max(int(float64(full)*ratio), 1)
	for i := range out {
		out[i] = r.integer(lo, full+1)
	}
	return out
}

// pythonRand draws as Python's random module does after random.seed with a whole number.
type pythonRand struct{ t twister }

func (r *pythonRand) seed(n uint64) {
	key := []uint32{uint32(n), uint32(n >> 32)}
	if key[1] == 0 {
		key = key[:1]
	}
	r.t.seedKey(key)
}

// choices is random.choices(from, k=k): with replacement.
func (r *pythonRand) choices(from []int32, k int) []int32 {
	out := make([]int32, k)
	for i := range out {
		out[i] = from[int(r.t.float()*float64(len(from)))]
	}
	return out
}

// below is uniform on [0, n) from as many bits as n has, by rejection.
func (r *pythonRand) below(n int) int {
	k := bits.Len(uint(n))
	for {
		if v := int(r.t.word() >> (32 - k)); v < n {
			return v
		}
	}
}

// shuffle is random.shuffle.
func shuffle[T any](r *pythonRand, xs []T) {
	for i := len(xs) - 1; i > 0; i-- {
		j := r.below(i + 1)
		xs[i], xs[j] = xs[j], xs[i]
	}
}

// zipf draws n ranks of groups with probability proportional to 1/(rank+1)^alpha, from a generator of its own.
func zipf(seed uint64, groups int, alpha float64, n int) []int {
	weights := make([]float64, groups)
	for i := range weights {
		weights[i] = math.Pow(float64(i+1), -alpha)
	}
	cdf, rng := cumulative(weights), newPCG64(seed)
	out := make([]int, n)
	for i := range out {
		out[i] = pick(cdf, rng.float())
	}
	return out
}

// cumulative is the distribution function of weights, with numpy's order of roundings.
func cumulative(weights []float64) []float64 {
	var total, acc float64
	for _, w := range weights {
		total += w
	}
	cdf := make([]float64, len(weights))
	for i, w := range weights {
		acc += w / total
		cdf[i] = acc
	}
	for i := range cdf {
		cdf[i] /= acc
	}
	return cdf
}

// pick is the index that a uniform draw u selects.
func pick(cdf []float64, u float64) int {
	return min(sort.Search(len(cdf), func(k int) bool { return cdf[k] > u }), len(cdf)-1)
}

// checkRatio refuses a spread that numpy would refuse.
func checkRatio(name string, ratio float64) error {
	if !(ratio >= 0 && ratio <= 1) {
		return fmt.Errorf("%s %v is outside 0 to 1", name, ratio)
	}
	return nil
}
