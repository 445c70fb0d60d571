package workload

import (
	"math"
	"slices"
	"testing"
)

// The vectors of this file were made with numpy 2 and CPython 3.11 from the same seeds.

func TestLengthsLikeNumpy(t *testing.T) {
	s := must(NewSampler(42))(t)
	if got, want := s.numpy.lens(100, 0.5, 5), []int{88, 78, 64, 92, 57}; !slices.Equal(got, want) {
		t.Errorf("input lengths %v, want %v", got, want)
	}
	if got, want := s.numpy.lens(50, 0.5, 5), []int{45, 31, 50, 43, 47}; !slices.Equal(got, want) {
		t.Errorf("output lengths %v, want %v", got, want)
	}
}

// Draws of all kinds from one generator stay in step; a range of one and a length of zero draw nothing.
func TestSequenceLikeNumpy(t *testing.T) {
	s := must(NewSampler(7))(t)
	want := []int{176, 197, 538, 503, 580, 212, 920, 616, 349, 186, 399, 536, 585, 346, 367, 555, 731, 905, 168, 999,
		69, 433, 896, 392, 941, 513, 76, 824, 251, 7, 788, 445, 45, 704, 326, 825, 153, 184, 950, 113}
	if got := s.numpy.lens(1024, 0, 40); !slices.Equal(got, want) {
		t.Errorf("lengths %v, want %v", got, want)
	}
	if got := s.numpy.lens(300, 1, 3); !slices.Equal(got, []int{300, 300, 300}) {
		t.Errorf("fixed lengths %v", got)
	}
	if got := s.numpy.lens(0, 1, 2); !slices.Equal(got, []int{0, 0}) {
		t.Errorf("no lengths %v", got)
	}
	for i, want := range []int{103163, 48317, 74040, 120270, 41732} {
		if got := s.numpy.integer(0, 151643); got != want {
			t.Errorf("offset %d is %d, want %d", i, got, want)
		}
	}
	for i, want := range []float64{0.9248867454255201, 0.1985681196529479, 0.16185445372493307, 0.14744997587108016, 0.0716241270619779} {
		if got := s.numpy.exponential(1 / 3.0); math.Abs(got-want) > 1e-15 {
			t.Errorf("interval %d is %v, want %v", i, got, want)
		}
	}
}

func TestChoicesAndShuffleLikePython(t *testing.T) {
	s := must(NewSampler(42))(t)
	if got, want := s.python.choices(upTo(151669), 8), []int32{96981, 3793, 41713, 33854, 111699, 102634, 135315, 13185}; !slices.Equal(got, want) {
		t.Errorf("choices %v, want %v", got, want)
	}
	l := upTo(12)
	shuffle(&s.python, l)
	if want := []int32{11, 7, 2, 9, 5, 4, 8, 3, 1, 10, 0, 6}; !slices.Equal(l, want) {
		t.Errorf("shuffle %v, want %v", l, want)
	}
	var big pythonRand
	big.seed(1<<40 + 5)
	if got, want := big.choices(upTo(1000), 6), []int32{504, 268, 925, 530, 817, 786}; !slices.Equal(got, want) {
		t.Errorf("choices of a 41-bit seed %v, want %v", got, want)
	}
}

func TestZipfLikeNumpy(t *testing.T) {
	if got, want := zipf(42, 8, 1.2, 30), []int{3, 1, 4, 2, 0, 7, 3, 3, 0, 1, 0, 6, 2, 4, 1, 0, 1, 0, 4, 2, 3, 0, 7, 5, 3, 0, 1, 0, 0, 2}; !slices.Equal(got, want) {
		t.Errorf("zipf %v, want %v", got, want)
	}
	if got, want := zipf(1<<35+1, 100, 0.7, 20), []int{21, 83, 37, 9, 42, 52, 81, 69, 44, 0, 22, 95, 2, 10, 43, 8, 24, 38, 31, 70}; !slices.Equal(got, want) {
		t.Errorf("zipf of a 36-bit seed %v, want %v", got, want)
	}
}

// must turns a result with an error into one that fails the test.
func must[T any](v T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func upTo(n int) []int32 {
	ids := make([]int32, n)
	for i := range ids {
		ids[i] = int32(i)
	}
	return ids
}

func TestGammaLikeNumpy(t *testing.T) {
	for shape, want := range map[float64][]float64{
		0.5: {0.1072857016456488, 0.08828553465425959, 8.167461079975743e-05, 1.240971765756398, 0.32645404111987847, 0.8129816750409949},
		1:   {0.04969497042343853, 0.004916845689877862, 0.15554105169277815, 0.3226859881724185, 0.13626956986602745, 0.16610450980562322},
		2.5: {0.5896716657180237, 0.17722687948794646, 0.21544948864726035, 0.1729415121726734, 0.14688716573574442, 0.26648759096091784},
	} {
		s := must(NewSampler(11))(t)
		for i, w := range want {
			if got := s.numpy.gamma(shape) / (4 * shape); math.Abs(got-w) > 1e-13 {
				t.Errorf("shape %v, draw %d: %v, want %v", shape, i, got, w)
			}
		}
	}
}
