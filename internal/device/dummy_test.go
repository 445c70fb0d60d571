package device

import (
	"math/rand/v2"
	"testing"
)

// TestDummyValues compares any piece of a tensor with the definition: element i depends on the seed and i alone.
func TestDummyValues(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 200 {
		d := Dummy{Seed: rng.Uint64(), Scale: rng.Float32(), Offset: rng.Float32()}
		i := rng.Int64N(1 << 40)
		got := make([]uint16, rng.IntN(40))
		d.Values(got, i)
		for n, v := range got {
			j := uint64(i) + uint64(n)
			h := mix(d.Seed + (j>>2)*0x9E3779B97F4A7C15)
			f := float32(int16(h>>(16*(j&3)))) * (1.0 / 32768)
			if want := BF16(float32(f*d.Scale) + d.Offset); v != want {
				t.Fatalf("%+v: element %d is %#x, want %#x", d, j, v, want)
			}
		}
	}
}
