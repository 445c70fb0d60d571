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
	for i := range s.cand {
		c := &s.cand[i]
		c.weight = one
		if l := logits[c.id]; l != top { // with top at +Inf the difference of equals is not a number
			c.weight = uint64(float64(expNeg((float64(l)-float64(top))/temperature)*one) + 0.5)
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
	log2e = 1 / ln2
	ln2   = 0.693147180559945309417232121458176568
	ln2Hi = 0x1.62e42feep-1 // the leading bits of ln2: times any exponent here it is exact
	ln2Lo = 1.90821492927058770002e-10
)

// expNeg is e^x for x <= 0, within 1e-12 of it and the same on every machine: each product is converted before it
// is added, which forbids the fused multiply-add that some compilers' targets would use.
func expNeg(x float64) float64 {
	if !(x > -40) { // below what weigh can tell from 0; -Inf and NaN too
		return 0
	}
	k := math.Floor(float64(x*log2e) + 0.5)
	r := (x - float64(k*ln2Hi)) - float64(k*ln2Lo) // |r| <= ln2/2
	sum := 1.0
	for n := 12; n >= 1; n-- { // Horner's scheme of the Taylor series; the 13th term is below 2e-16
		sum = 1 + float64(float64(sum*r)*inverse[n])
	}
	return sum * math.Float64frombits(uint64(1023+int64(k))<<52)
}

// inverse[n] is 1/n.
var inverse = [13]float64{0, 1, 1.0 / 2, 1.0 / 3, 1.0 / 4, 1.0 / 5, 1.0 / 6, 1.0 / 7, 1.0 / 8, 1.0 / 9, 1.0 / 10, 1.0 / 11, 1.0 / 12}
