package sample

import (
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

func greedy(banned ...int32) *Draw { return &Draw{Params: Params{TopP: 1}, Banned: banned} }

func TestGreedy(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	for _, c := range []struct {
		name   string
		logits []float32
		banned []int32
		want   int32
	}{
		{"largest", []float32{1, 3, 2}, nil, 1},
		{"ties go to the lowest id", []float32{1, 3, 3, 3}, nil, 1},
		{"NaN never wins", []float32{nan, -5, nan, -4}, nil, 3},
		{"banned", []float32{1, 3, 2}, []int32{1}, 2},
		{"banned, unsorted and twice", []float32{1, 3, 2, 0}, []int32{2, 1, 2}, 0},
		{"banned outside the vocabulary", []float32{1, 3}, []int32{-1, 7}, 1},
		{"infinite", []float32{1, inf, inf}, nil, 1},
		{"-Inf only where there is nothing else", []float32{nan, -inf, -inf}, nil, 1},
		{"all banned", []float32{1, 2}, []int32{0, 1}, -1},
		{"all NaN", []float32{nan, nan}, nil, -1},
		{"none", nil, nil, -1},
	} {
		if got := Pick(c.logits, greedy(c.banned...)); got != c.want {
			t.Errorf("%s: got %d, want %d", c.name, got, c.want)
		}
		hot := &Draw{Params: Params{Temperature: 1, TopP: 1, TopK: 1}, Banned: c.banned}
		if got := Pick(c.logits, hot); got != c.want {
			t.Errorf("%s, top-k 1: got %d, want %d", c.name, got, c.want)
		}
	}
}

func TestSpecialValuesWhenSampling(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	seen := map[int32]int{}
	for p := range 200 {
		d := &Draw{Params: Params{Temperature: 1, TopP: 0.99, Seed: 5}, Position: p}
		if got := Pick([]float32{nan, 1, inf, -inf, inf}, d); got != 2 && got != 4 {
			t.Fatalf("position %d: got %d, want one of the two at +Inf", p, got)
		}
		if got := Pick([]float32{nan, -inf, nan, -inf}, d); got != 1 {
			t.Fatalf("position %d: got %d, want the lowest id that is a number", p, got)
		}
		d.Banned = []int32{1}
		seen[Pick([]float32{1, 9, 1, -inf, nan}, d)]++
	}
	if len(seen) != 2 || seen[0] < 60 || seen[2] < 60 {
		t.Errorf("draws %v, want ids 0 and 2 about equally often", seen)
	}
}

// reference filters by full sorts, as the comment of Params says; it returns the weights of what is left.
func reference(logits []float32, d *Draw) map[int32]uint64 {
	type entry struct {
		id int32
		l  float32
		w  uint64
	}
	var all []entry
	for i, l := range logits {
		if l == l && !slices.Contains(d.Banned, int32(i)) {
			all = append(all, entry{id: int32(i), l: l})
		}
	}
	slices.SortStableFunc(all, func(a, b entry) int {
		switch {
		case a.l > b.l:
			return -1
		case a.l < b.l:
			return 1
		}
		return int(a.id - b.id)
	})
	if d.TopK > 0 {
		all = all[:min(d.TopK, len(all))]
	}
	var total uint64
	for i := range all {
		x := (float64(all[i].l) - float64(all[0].l)) * (1 / float64(d.Temperature))
		all[i].w = uint64(expNeg(x)*one + 0.5)
		total += all[i].w
	}
	target, sum := uint64(math.Ceil(float64(d.TopP)*float64(total))), uint64(0)
	left := map[int32]uint64{}
	for _, e := range all {
		if sum >= target && d.TopP < 1 {
			break
		}
		sum += e.w
		if e.w >= uint64(float64(d.MinP)*one) {
			left[e.id] = e.w
		}
	}
	return left
}

func pickReference(logits []float32, d *Draw) int32 {
	left := reference(logits, d)
	ids := make([]int32, 0, len(left))
	var total float64
	for id, w := range left {
		ids = append(ids, id)
		total += float64(w)
	}
	slices.Sort(ids)
	at := float64(uniform(d.Seed, d.Position)) / (1 << 64) * total
	for _, id := range ids {
		if at < float64(left[id]) {
			return id
		}
		at -= float64(left[id])
	}
	return ids[len(ids)-1]
}

func randomLogits(r *rand.Rand, n int) []float32 {
	logits := make([]float32, n)
	scale := []float64{0.1, 1, 5, 50}[r.IntN(4)]
	coarse := r.IntN(2) == 0 // many equal values
	for i := range logits {
		v := r.NormFloat64() * scale
		if coarse {
			v = math.Round(v)
		}
		logits[i] = float32(v)
		if r.IntN(50) == 0 {
			logits[i] = []float32{float32(math.NaN()), float32(math.Inf(-1)), 0, float32(math.Copysign(0, -1))}[r.IntN(4)]
		}
	}
	return logits
}

func randomDraw(r *rand.Rand, n int) *Draw {
	d := &Draw{Position: r.IntN(1000)}
	d.Seed = r.Uint64()
	d.Temperature = []float32{0.01, 0.6, 1, 3}[r.IntN(4)]
	d.TopK = []int{0, 0, 2, 20, n, 2 * n}[r.IntN(6)]
	d.TopP = []float32{1, 0.95, 0.5, 1e-6}[r.IntN(4)]
	d.MinP = []float32{0, 0, 0.1, 1}[r.IntN(4)]
	for range r.IntN(3) {
		d.Banned = append(d.Banned, int32(r.IntN(n)))
	}
	return d
}

func TestMatchesReference(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	for i := range 3000 {
		n := 1 + r.IntN(300)
		logits, d := randomLogits(r, n), randomDraw(r, n)
		if Pick(logits, greedy(d.Banned...)) < 0 {
			continue // nothing may come; see TestGreedy
		}
		if allLeast(logits, d) {
			continue
		}
		if got, want := Pick(logits, d), pickReference(logits, d); got != want {
			t.Fatalf("seed %d, case %d: got %d, the reference %d, for %+v", seed, i, got, want, *d)
		}
	}
}

// allLeast says that nothing but -Inf may come, which the reference does not define.
func allLeast(logits []float32, d *Draw) bool {
	best := Pick(logits, greedy(d.Banned...))
	return math.IsInf(float64(logits[best]), -1)
}

func TestFrequencies(t *testing.T) {
	logits := []float32{0, 1, 2, 3, 0.5, 2.5, -1, 1.5}
	for _, p := range []Params{
		{Temperature: 1, TopP: 1, Seed: 11},
		{Temperature: 0.7, TopP: 1, TopK: 4, Seed: 12},
		{Temperature: 1.5, TopP: 0.8, Seed: 13},
		{Temperature: 1, TopP: 1, MinP: 0.2, Seed: 14},
		{Temperature: 2, TopP: 0.9, TopK: 6, MinP: 0.3, Seed: 15},
	} {
		const n = 20000
		counts := map[int32]float64{}
		for pos := range n {
			counts[Pick(logits, &Draw{Params: p, Position: pos})]++
		}
		left := reference(logits, &Draw{Params: p})
		var total, chi float64
		for _, w := range left {
			total += float64(w)
		}
		for id, w := range left {
			want := n * float64(w) / total
			chi += (counts[id] - want) * (counts[id] - want) / want
			delete(counts, id)
		}
		if len(counts) > 0 {
			t.Errorf("%+v: drew filtered ids %v", p, counts)
		}
		// 99.9 % quantiles of chi-square with 1 to 7 degrees of freedom; the seeds are fixed, so no draw is unlucky twice.
		if limit := []float64{0, 10.8, 13.8, 16.3, 18.5, 20.5, 22.5, 24.3}[len(left)-1]; chi > limit {
			t.Errorf("%+v: chi-square %.1f over %d ids, at most %.1f expected", p, chi, len(left), limit)
		}
	}
}

// TestNeighbours looks for correlation between neighbouring positions and seeds.
func TestNeighbours(t *testing.T) {
	logits := []float32{0, 0, 0, 0}
	for name, draw := range map[string]func(i int) *Draw{
		"positions": func(i int) *Draw { return &Draw{Params: Params{Temperature: 1, TopP: 1, Seed: 3}, Position: i} },
		"seeds":     func(i int) *Draw { return &Draw{Params: Params{Temperature: 1, TopP: 1, Seed: uint64(i)}, Position: 3} },
	} {
		var pairs [16]float64
		const n = 16000
		last := Pick(logits, draw(0))
		for i := range n {
			next := Pick(logits, draw(i+1))
			pairs[4*last+next]++
			last = next
		}
		var chi float64
		for _, c := range pairs {
			chi += (c - n/16) * (c - n/16) / (n / 16)
		}
		if chi > 37.7 { // 99.9 % quantile at 15 degrees of freedom
			t.Errorf("%s: chi-square of pairs %.1f", name, chi)
		}
	}
}

func TestExpNeg(t *testing.T) {
	for x := 0.0; x > -28.4; x -= 0.000917 {
		got, want := expNeg(x), math.Exp(x)
		if math.Abs(got-want) > 1e-14*want {
			t.Fatalf("expNeg(%v) = %v, want %v", x, got, want)
		}
	}
	if expNeg(-28.5) != 0 || expNeg(math.Inf(-1)) != 0 || expNeg(0) != 1 {
		t.Error("edges of expNeg")
	}
}

// TestPinned pins draws for good: a change here changes what every user's seed means.
func TestPinned(t *testing.T) {
	logits := make([]float32, 1000)
	for i := range logits {
		logits[i] = float32((i*7919)%1000) / 100
	}
	var got []int32
	for pos := range 6 {
		got = append(got, Pick(logits, &Draw{Params: Params{Temperature: 0.8, TopP: 0.95, TopK: 200, Seed: 42}, Position: pos}))
	}
	if want := []int32{693, 335, 963, 494, 75, 667}; !slices.Equal(got, want) {
		t.Errorf("draws %v, want %v", got, want)
	}
}

func TestConcurrentAndAllocationFree(t *testing.T) {
	logits := randomLogits(rand.New(rand.NewPCG(1, 2)), 500)
	d := &Draw{Params: Params{Temperature: 1, TopP: 0.9, TopK: 100, Seed: 9}, Banned: []int32{4, 2}}
	want := Pick(logits, d)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 200 {
				if got := Pick(logits, d); got != want {
					t.Errorf("got %d, want %d", got, want)
					return
				}
			}
		})
	}
	wg.Wait()
	if d.Banned[0] != 4 {
		t.Error("Pick changed the draw")
	}
	s := new(sampler)
	s.pick(logits, d)
	if n := testing.AllocsPerRun(100, func() { s.pick(logits, d) }); n != 0 {
		t.Errorf("%v allocations per pick", n)
	}
}

func TestValidate(t *testing.T) {
	nan, inf := float32(math.NaN()), float32(math.Inf(1))
	ok := Params{Temperature: 0.7, TopK: 40, TopP: 0.9, MinP: 0.05}
	if err := ok.Validate(); err != nil {
		t.Errorf("%+v: %v", ok, err)
	}
	for _, change := range []func(*Params){
		func(p *Params) { p.Temperature = nan },
		func(p *Params) { p.Temperature = inf },
		func(p *Params) { p.Temperature = -0.1 },
		func(p *Params) { p.TopK = -1 },
		func(p *Params) { p.TopP = 0 },
		func(p *Params) { p.TopP = nan },
		func(p *Params) { p.TopP = 1.01 },
		func(p *Params) { p.MinP = nan },
		func(p *Params) { p.MinP = -0.01 },
		func(p *Params) { p.MinP = 2 },
	} {
		p := ok
		change(&p)
		if p.Validate() == nil {
			t.Errorf("%+v was accepted", p)
		}
	}
}

func BenchmarkPick(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	logits := make([]float32, 151936)
	for i := range logits {
		logits[i] = float32(r.NormFloat64() * 3)
	}
	for _, c := range []struct {
		name string
		p    Params
	}{
		{"greedy", Params{TopP: 1}},
		{"temperature", Params{Temperature: 1, TopP: 1}},
		{"top-p", Params{Temperature: 0.7, TopP: 0.8}},
		{"top-k+top-p", Params{Temperature: 0.6, TopP: 0.95, TopK: 20}},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			d := &Draw{Params: c.p}
			for b.Loop() {
				d.Position++
				Pick(logits, d)
			}
		})
	}
}
