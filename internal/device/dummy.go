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
	for len(dst) > 0 && i&3 != 0 { // up to the next group
		dst[0] = d.value(d.group(uint64(i)>>2), uint(i&3))
		dst, i = dst[1:], i+1
	}
	g := uint64(i) >> 2
	for ; len(dst) >= 4; dst, g = dst[4:], g+1 {
		h := d.group(g)
		out := (*[4]uint16)(dst)
		out[0], out[1], out[2], out[3] = d.value(h, 0), d.value(h, 1), d.value(h, 2), d.value(h, 3)
	}
	for j := range dst {
		dst[j] = d.value(d.group(g), uint(j))
	}
}

// group is the random bits of elements 4g to 4g+3.
func (d Dummy) group(g uint64) uint64 { return mix(d.Seed + g*0x9E3779B97F4A7C15) }

// value is element j of a group. The conversion forbids a fused multiply-add, which would differ between processors.
func (d Dummy) value(h uint64, j uint) uint16 {
	f := float32(int16(h>>(16*j))) * (1.0 / 32768)
	return finiteBF16(float32(f*d.Scale) + d.Offset)
}

// finiteBF16 is BF16 for what is no NaN.
func finiteBF16(f float32) uint16 {
	u := math.Float32bits(f)
	return uint16((u + 0x7fff + (u>>16)&1) >> 16)
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
