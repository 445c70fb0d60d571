package cpu

import (
	"math"

	"larder/internal/arch"
)

// ropeTable holds the sines and cosines of rotary position embedding (Su et al. 2021) for the positions seen so far:
// angle pos / theta^(2i/dim) for pair i. Angles are taken in float64.
type ropeTable struct {
	freq     []float64
	half     int
	cos, sin []float32 // [position][half]
}

func newRope(cfg *arch.Config) ropeTable {
	t := ropeTable{half: cfg.HeadDim / 2}
	for i := range t.half {
		t.freq = append(t.freq, 1/math.Pow(cfg.RopeTheta, float64(2*i)/float64(cfg.HeadDim)))
	}
	return t
}

// reach makes the table hold n positions. It grows by doubling, so that a model with a long context costs what is used.
func (t *ropeTable) reach(n int) {
	have := len(t.cos) / t.half
	if n <= have {
		return
	}
	n = max(n, 2*have, 1024)
	for pos := have; pos < n; pos++ {
		for _, f := range t.freq {
			s, c := math.Sincos(float64(pos) * f)
			t.cos, t.sin = append(t.cos, float32(c)), append(t.sin, float32(s))
		}
	}
}

// turn rotates a head by its position: element i pairs with element i + dim/2.
func (t *ropeTable) turn(head []float32, pos int) {
	cos := t.cos[pos*t.half : (pos+1)*t.half]
	sin := t.sin[pos*t.half : (pos+1)*t.half]
	lo, hi := head[:t.half], head[t.half:2*t.half]
	for i, c := range cos {
		a, b := lo[i], hi[i]
		lo[i] = a*c - b*sin[i]
		hi[i] = b*c + a*sin[i]
	}
}
