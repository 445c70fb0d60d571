package cpu

import (
	"math"

	"larder/internal/arch"
)

// ropeTable holds the sines and cosines of rotary position embedding (Su et al. 2021) for every position: angle
// pos / theta^(2i/dim) for pair i. Angles are taken in float64.
type ropeTable struct {
	half     int
	cos, sin []float32 // [position][half]
}

func newRope(cfg *arch.Config) ropeTable {
	half := cfg.HeadDim / 2
	t := ropeTable{half: half, cos: make([]float32, cfg.MaxPositions*half), sin: make([]float32, cfg.MaxPositions*half)}
	for i := range half {
		freq := 1 / math.Pow(cfg.RopeTheta, float64(2*i)/float64(cfg.HeadDim))
		for pos := range cfg.MaxPositions {
			s, c := math.Sincos(float64(pos) * freq)
			t.cos[pos*half+i], t.sin[pos*half+i] = float32(c), float32(s)
		}
	}
	return t
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
