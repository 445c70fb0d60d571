package pool

import (
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/kv"
)

// runs counts the runs of neighbours in ids.
func runs(ids []kv.BlockID) int {
	n := 0
	for i, id := range ids {
		if i == 0 || id != ids[i-1]+1 {
			n++
		}
	}
	return n
}

// fewest is the least number of runs that n free numbers can come in: the longest ones, as long as they are needed.
func fewest(free []bool, n int) int {
	var lengths []int
	length := 0
	for _, f := range append(slices.Clone(free), false) {
		if f {
			length++
			continue
		}
		if length > 0 {
			lengths = append(lengths, length)
		}
		length = 0
	}
	slices.Sort(lengths)
	pieces := 0
	for n > 0 {
		pieces++
		n -= lengths[len(lengths)-pieces]
	}
	return pieces
}

// TestTakeAgainstModel compares the pool with a plain list, on every size around powers of two.
func TestTakeAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		total := rapid.IntRange(0, 70).Draw(t, "total")
		p := New(total)
		state := make([]State, total)
		pick := func(want ...State) (kv.BlockID, bool) {
			var ids []kv.BlockID
			for i, s := range state {
				if slices.Contains(want, s) {
					ids = append(ids, kv.BlockID(i))
				}
			}
			if len(ids) == 0 {
				return 0, false
			}
			return rapid.SampledFrom(ids).Draw(t, "id"), true
		}
		t.Repeat(map[string]func(*rapid.T){
			"take": func(t *rapid.T) {
				n := rapid.IntRange(0, total+1).Draw(t, "n")
				free := make([]bool, total)
				for i, s := range state {
					free[i] = s == Free
				}
				ids, ok := p.Take([]kv.BlockID{-7}, n)
				if want := n <= p.Total()-countOf(state, Leased)-countOf(state, Cached); ok != want {
					t.Fatalf("take of %d is %v", n, ok)
				}
				if !ok {
					n = 0
				}
				if len(ids) != n+1 || ids[0] != -7 {
					t.Fatalf("took %v, wanted %d behind what was there", ids, n)
				}
				if got, want := runs(ids[1:]), fewest(free, n); n > 0 && got != want {
					t.Fatalf("%d numbers came in %d runs, %d were possible: %v of %v", n, got, want, ids[1:], free)
				}
				for _, id := range ids[1:] {
					if state[id] != Free {
						t.Fatalf("%d was %v", id, state[id])
					}
					state[id] = Leased
				}
			},
			"use": func(t *rapid.T) {
				if id, ok := pick(Leased, Cached); ok {
					state[id] = rapid.SampledFrom([]State{Leased, Cached}).Draw(t, "state")
					p.Use(id, state[id] == Leased)
				}
			},
			"give": func(t *rapid.T) {
				if id, ok := pick(Leased); ok {
					p.Give(id)
					state[id] = Free
				}
			},
			"evict": func(t *rapid.T) {
				if id, ok := pick(Cached); ok {
					p.Evict(id)
					state[id] = Free
				}
			},
			"": func(t *rapid.T) {
				if err := p.Check(); err != nil {
					t.Fatal(err)
				}
				got := [3]int{p.Free(), p.Leased(), p.Cached()}
				want := [3]int{countOf(state, Free), countOf(state, Leased), countOf(state, Cached)}
				if got != want || got[0]+got[1]+got[2] != total {
					t.Fatalf("free, leased, cached are %v, should be %v", got, want)
				}
			},
		})
	})
}

func countOf(list []State, s State) int {
	n := 0
	for _, x := range list {
		if x == s {
			n++
		}
	}
	return n
}

func TestTakePrefersTheRunThatFits(t *testing.T) {
	p := New(20)
	p.Take(nil, 20)
	for _, id := range []kv.BlockID{1, 4, 5, 9, 10, 11, 15, 16, 17, 18} {
		p.Give(id)
	}
	for _, c := range []struct {
		n    int
		want []kv.BlockID
	}{
		{3, []kv.BlockID{9, 10, 11}},
		{1, []kv.BlockID{1}},
		{5, []kv.BlockID{15, 16, 17, 18, 4}},
		{2, nil},
		{1, []kv.BlockID{5}},
		{0, nil},
	} {
		if got, _ := p.Take(nil, c.n); !slices.Equal(got, c.want) {
			t.Fatalf("take of %d is %v, want %v", c.n, got, c.want)
		}
	}
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(*Pool){
		"block 2 is given back but free":   func(p *Pool) { p.Give(2) },
		"block 1 is given back but cached": func(p *Pool) { p.Give(1) },
		"block 0 is evicted but leased":    func(p *Pool) { p.Evict(0) },
		"block 2 is used but free":         func(p *Pool) { p.Use(2, true) },
	} {
		t.Run(name, func(t *testing.T) {
			p := New(3)
			p.Take(nil, 2)
			p.Use(1, false)
			defer func() {
				if got, ok := recover().(string); !ok || !strings.Contains(got, name) {
					t.Fatalf("panicked with %q", got)
				}
			}()
			f(p)
		})
	}
}

func TestCheckFires(t *testing.T) {
	for name, f := range map[string]func(*Pool){
		"invariant 1": func(p *Pool) { p.count[Leased]++ },
		"node 4":      func(p *Pool) { p.tree[4].best = 0 },
	} {
		p := New(4)
		f(p)
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s broken: %v", name, err)
		}
	}
}

// BenchmarkTake takes and gives back the blocks of a long prompt in a large pool.
func BenchmarkTake(b *testing.B) {
	p := New(100_000)
	p.Take(nil, 100_000)
	for i := range 100_000 {
		if i%300 > 10 {
			p.Give(kv.BlockID(i))
		}
	}
	var ids []kv.BlockID
	b.ReportAllocs()
	for b.Loop() {
		ids, _ = p.Take(ids[:0], 160)
		for _, id := range ids {
			p.Give(id)
		}
	}
}
