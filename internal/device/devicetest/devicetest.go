// Package devicetest is the suite that every device passes: each operation of a pass against plain float64 mathematics
// written here a second time, the properties that hold bit for bit, what must be refused, and memory with its streams.
// It knows a device by the interfaces of package device alone and moves its bytes by that device's own copies.
//
// Inputs are fresh in each run; LARDER_SEED repeats one. Free memory is full of NaN, and a pass of NaNs goes before each
// pass that counts, so whatever is read without having been written shows.
//
// Start at Run; reference.go is the mathematics, tolerance what may differ from it.
package devicetest

import (
	"hash/fnv"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
)

// Open gives a device that nobody else uses. The suite closes it.
type Open func(t testing.TB) device.Device

// Case is one part of the suite. Check reports what is wrong; it fails t itself only through open.
type Case struct {
	Name  string
	Check func(t testing.TB, open Open, rng *rand.Rand) error
}

// Cases are the suite.
func Cases() []Case {
	return []Case{
		{"embed", checkEmbed},
		{"attention", checkAttention},
		{"mlp", checkMLP},
		{"mlp/ties", checkTies},
		{"head", checkHead},
		{"pass", checkPass},
		{"drawn", checkDrawn},
		{"same-bits", checkSameBits},
		{"refused/batches", checkBadBatches},
		{"refused/specs", checkBadSpecs},
		{"refused/weights", checkBadWeights},
		{"memory", checkMemory},
		{"streams/copies", checkCopies},
		{"streams/many", checkMany},
		{"streams/order", checkOrder},
		{"streams/errors", checkStreamErrors},
		{"closed", checkClosed},
	}
}

// Run runs the suite on devices that open gives.
func Run(t *testing.T, open func(t testing.TB) device.Device) {
	seed := Seed()
	t.Logf("seed %d (LARDER_SEED=%d repeats it)", seed, seed)
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			if err := c.Check(t, open, Rand(seed, c.Name)); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}

// Seed is LARDER_SEED, or a new number.
func Seed() uint64 {
	if n, err := strconv.ParseUint(os.Getenv("LARDER_SEED"), 10, 64); err == nil {
		return n
	}
	return uint64(time.Now().UnixNano())
}

// Rand is the random numbers of one case: they do not depend on which others run.
func Rand(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// tolerance is the greatest error of one row, as the length of the difference over the length of the exact row, after
// sums of n terms.
//
// A value rounded to bf16 is off by at most u = 2^-9 of itself, and by about a third of that on average. The values that
// meet in a row are rounded independently, so each rounding on the way adds some 0.6 u to a row: norm, Q, K, weights of
// the softmax, V, output come to 1.5 u. 8 u leaves room for rows of few elements. A running sum in fp32 adds 2^-24 of
// itself at each of n terms, which comes to 0.2 √n 2^-24 of the result; up to four such sums follow each other, and the
// exponential and the turn by position add a few units in the last place.
func tolerance(dtype arch.DType, n int) float64 {
	u := 0x1p-24
	if dtype == arch.BF16 {
		u = 0x1p-9
	}
	return 8*u + 0x1p-22*math.Sqrt(float64(n))
}

// distance is the length of got - want over the length of want. A NaN stays one.
func distance(got, want []float64) float64 {
	diff := make([]float64, len(want))
	for i, w := range want {
		diff[i] = got[i] - w
	}
	return length(diff) / length(want)
}

func length(x []float64) float64 {
	var sum float64
	for _, v := range x {
		sum += v * v
	}
	return math.Sqrt(sum)
}
