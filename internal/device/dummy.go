package device

import "math"

// Dummy is a counter-based generator of weights: uniform in [-Scale, Scale), plus Offset (norm weights are near 1).
// Element i of a tensor depends on Seed and i alone, so any part can be made anywhere, in parallel.
type Dummy struct {
	Seed   uint64 // covers the tensor's name; see model
	Scale  float32
	Offset float32
}

// Values fills dst with elements i, i+1, … as bf16 bit patterns. i and len(dst) need not be aligned.
//
// Four neighbours share one 64-bit mix of (Seed, i/4); each takes 16 of its bits as a signed fraction.
func (d Dummy) Values(dst []uint16, i int64) {
	for n := range dst {
		j := uint64(i) + uint64(n)
		h := mix(d.Seed + (j>>2)*0x9E3779B97F4A7C15)
		f := float32(int16(h>>(16*(j&3)))) * (1.0 / 32768)
		dst[n] = BF16(float32(f*d.Scale) + d.Offset) // the conversion forbids a fused multiply-add, which would differ
	}
}

// mix is the finaliser of SplitMix64 (Steele, Lea and Flood 2014).
func mix(z uint64) uint64 {
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}

// BF16 rounds to the nearest bf16, ties to even; a NaN stays a quiet NaN.
func BF16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + (u>>16)&1) >> 16)
}

// Float32 widens a bf16 bit pattern.
func Float32(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }
