package sample

import (
	"math"
	"math/bits"
	"slices"
)

// candidate is an id that may still come.
type candidate struct {
	id     int32
	key    uint32 // orders as the logit does
	weight uint64 // probability relative to the largest, in units of 1/one
}

// one is the weight of the most likely id. 2^18 ids (more than any vocabulary here) of weight one sum to 2^58, so a
// sum cannot overflow; ids less likely than 2^-41 of the largest have weight 0.
const one = 1 << 40

type sampler struct {
	cand   []candidate // in id order
	banned []int32     // sorted
	hist   [1 << histBits]uint64
}

func (s *sampler) pick(logits []float32, d *Draw) int32 {
	s.banned = append(s.banned[:0], d.Banned...)
	slices.Sort(s.banned)
	best := s.argmax(logits)
	if best < 0 || d.Greedy() {
		return best
	}
	top := logits[best]
	if math.IsInf(float64(top), -1) {
		return best
	}
	s.gather(logits, s.floor(logits, d.TopK)) // each weighs 1, for top-k
	if d.TopK > 0 {
		s.keepTop(uint64(d.TopK))
	}
	total := s.weigh(logits, top, float64(d.Temperature))
	if d.TopP < 1 {
		share := uint64(math.Ceil(float64(d.TopP) * float64(total)))
		s.keepTop(share)
	}
	return s.draw(uint64(float64(d.MinP)*one), uniform(d.Seed, d.Position))
}

// segments calls f for each stretch of ids [lo, hi) between banned ones.
func (s *sampler) segments(n int, f func(lo, hi int)) {
	lo := 0
	for _, b := range s.banned {
		if int(b) >= lo && int(b) < n {
			f(lo, int(b))
			lo = int(b) + 1
		}
	}
	f(lo, n)
}

// argmax is the lowest id with the largest logit, or -1 when all are NaN or banned.
func (s *sampler) argmax(logits []float32) int32 {
	best, at := float32(math.Inf(-1)), int32(-1)
	s.segments(len(logits), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			if l := logits[i]; l > best || at < 0 && l == best {
				best, at = l, int32(i)
			}
		}
	})
	return at
}

// order maps a float to an integer that orders as it does; the two zeros are equal. A NaN has no place in it.
func order(f float32) uint32 {
	u := math.Float32bits(f + 0) // -0 + 0 is +0
	if u>>31 != 0 {
		return ^u
	}
	return u | 1<<31
}

const histBits = 11

// floor is a key at or above which at least k ids (or all) lie, and not many more: the lower edge of a bucket of the
// keys' leading bits. It spares gather the bulk of the vocabulary.
func (s *sampler) floor(logits []float32, k int) uint32 {
	if k == 0 {
		return 0
	}
	clear(s.hist[:])
	s.segments(len(logits), func(lo, hi int) {
		for _, l := range logits[lo:hi] {
			if l == l {
				s.hist[order(l)>>(32-histBits)]++
			}
		}
	})
	var n uint64
	for b := len(s.hist) - 1; b > 0; b-- {
		if n += s.hist[b]; n >= uint64(k) {
			return uint32(b) << (32 - histBits)
		}
	}
	return 0
}

// gather lists the ids with a key of at least floor, each of weight 1.
func (s *sampler) gather(logits []float32, floor uint32) {
	s.cand = s.cand[:0]
	s.segments(len(logits), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			l := logits[i]
			if l != l {
				continue
			}
			if key := order(l); key >= floor {
				s.cand = append(s.cand, candidate{int32(i), key, 1})
			}
		}
	})
}

// keepTop keeps the fewest candidates, taken from the largest key down and by id among equals, whose weights sum to
// target or more. It is a radix selection: each of four passes finds eight more bits of the key at which that is so.
func (s *sampler) keepTop(target uint64) {
	var edge, known uint32 // the edge's bits found so far, and which they are
	var above uint64       // weight of the keys that are surely above the edge
	hist := s.hist[:256]
	for shift := 24; shift >= 0; shift -= 8 {
		clear(hist)
		for i := range s.cand {
			if c := &s.cand[i]; c.key&known == edge {
				hist[c.key>>shift&255] += c.weight
			}
		}
		b := 255
		for ; b > 0 && above+hist[b] < target; b-- {
			above += hist[b]
		}
		edge |= uint32(b) << shift
		known |= 255 << shift
	}
	s.cut(edge, target-min(target, above))
}

// cut drops what is below the edge, and of what is on it all but the first ids that weigh rest or more together.
func (s *sampler) cut(edge uint32, rest uint64) {
	kept := s.cand[:0]
	for _, c := range s.cand {
		if c.key < edge || c.key == edge && rest == 0 {
			continue
		}
		if c.key == edge {
			rest -= min(rest, c.weight)
		}
		kept = append(kept, c)
	}
	s.cand = kept
}

// weigh gives each candidate its probability relative to the largest logit and returns the sum.
func (s *sampler) weigh(logits []float32, top float32, temperature float64) uint64 {
	var total uint64
	scale := 1 / temperature
	for i := range s.cand {
		c := &s.cand[i]
		c.weight = one
		if l := logits[c.id]; l != top { // with top at +Inf the difference of equals is not a number
			c.weight = uint64(float64(expNeg((float64(l)-float64(top))*scale)*one) + 0.5)
		}
		total += c.weight
	}
	return total
}

// draw picks a candidate of at least the given weight with the random number u.
func (s *sampler) draw(least, u uint64) int32 {
	var total uint64
	for i := range s.cand {
		if w := s.cand[i].weight; w >= least {
			total += w
		}
	}
	at, _ := bits.Mul64(u, total) // u/2^64 of total, rounded down
	for i := range s.cand {
		c := &s.cand[i]
		if c.weight < least || c.weight == 0 {
			continue
		}
		if at < c.weight {
			return c.id
		}
		at -= c.weight
	}
	panic("sample: the weights do not sum to their total")
}

const (
	stepInv = 32 * 1.442695040888963407359924681001892137 // 32/ln2
	stepHi  = 0x1.62e42fec00000p-6                        // ln2/32, the leading bits: times any k here it is exact
	stepLo  = 0x1.d1cf79abc9e3bp-37                       // and the rest
)

// expNeg is e^x for x <= 0, within 1e-14 of it and the same on every machine: each product is converted before it
// is added, which forbids the fused multiply-add that some compilers' targets would use. With k steps of ln2/32 in x
// and a rest r it is 2^(k/32) e^r: a table, an exponent, and six terms of a series.
func expNeg(x float64) float64 {
	if !(x > -28.5) { // below half of 1/one, so weigh rounds it to 0; -Inf and NaN too
		return 0
	}
	k := int64(float64(x*stepInv) - 0.5) // the nearest, as x is not positive
	r := (x - float64(float64(k)*stepHi)) - float64(float64(k)*stepLo)
	r2 := float64(r * r)
	low := 1 + r + float64(r2*0.5)
	high := float64((1.0/6 + float64(r*(1.0/24))) + float64(r2*(1.0/120)))
	e := low + float64(float64(r2*r)*high)
	return float64(e*exp2[k&31]) * math.Float64frombits(uint64(1023+k>>5)<<52)
}

// exp2[j] is 2^(j/32).
var exp2 = [32]float64{
	0x1.0000000000000p+0, 0x1.059b0d3158574p+0, 0x1.0b5586cf9890fp+0, 0x1.11301d0125b51p+0,
	0x1.172b83c7d517bp+0, 0x1.1d4873168b9aap+0, 0x1.2387a6e756238p+0, 0x1.29e9df51fdee1p+0,
	0x1.306fe0a31b715p+0, 0x1.371a7373aa9cbp+0, 0x1.3dea64c123422p+0, 0x1.44e086061892dp+0,
	0x1.4bfdad5362a27p+0, 0x1.5342b569d4f82p+0, 0x1.5ab07dd485429p+0, 0x1.6247eb03a5585p+0,
	0x1.6a09e667f3bcdp+0, 0x1.71f75e8ec5f74p+0, 0x1.7a11473eb0187p+0, 0x1.82589994cce13p+0,
	0x1.8ace5422aa0dbp+0, 0x1.93737b0cdc5e5p+0, 0x1.9c49182a3f090p+0, 0x1.a5503b23e255dp+0,
	0x1.ae89f995ad3adp+0, 0x1.b7f76f2fb5e47p+0, 0x1.c199bdd85529cp+0, 0x1.cb720dcef9069p+0,
	0x1.d5818dcfba487p+0, 0x1.dfc97337b9b5fp+0, 0x1.ea4afa2a490dap+0, 0x1.f50765b6e4540p+0,
}
