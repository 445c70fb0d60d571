package workload

import (
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
)

// shared is the length of the common start.
func shared(a, b []int32) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return n
}

func TestPrefixSetSharesWhatItMust(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for range 200 {
		n := 1 + r.IntN(40)
		p := PrefixSet{Requests: n, Groups: r.IntN(n + 1), PrefixLen: 8 + r.IntN(64), TailLen: 8 + r.IntN(16), OutputLen: 3,
			VocabLow: r.IntN(5), VocabSize: 8 + r.IntN(300), Avoid: []int32{6}, Seed: r.Uint64(), Salt: r.Uint64()}
		items, primers := must(p.Items())(t), must(p.Primers())(t)
		for i, a := range items {
			prefix := primers[p.Group(i)].IDs
			if len(a.IDs) != p.PrefixLen+p.TailLen || shared(a.IDs, prefix) != p.PrefixLen {
				t.Fatalf("%+v: item %d does not start with its prefix", p, i)
			}
			for _, id := range a.IDs {
				if int(id) < p.VocabLow || int(id) >= p.VocabSize || id == 6 {
					t.Fatalf("%+v: id %d", p, id)
				}
			}
			checkOthers(t, p, items, i)
		}
	}
}

// checkOthers checks how much of item i later items share: within the distinguishing digits of the tail if the group
// is the same, within those of the prefix if not.
func checkOthers(t *testing.T, p PrefixSet, items []Item, i int) {
	t.Helper()
	for j := i + 1; j < len(items); j++ {
		limit := digits(p.groups(), len(p.usable()))
		if p.Group(i) == p.Group(j) {
			limit = p.PrefixLen + digits(p.Requests, len(p.usable()))
		}
		if n := shared(items[i].IDs, items[j].IDs); n >= limit {
			t.Fatalf("%+v: items %d and %d share %d tokens, less than %d meant", p, i, j, n, limit)
		}
	}
}

func TestPrefixSetRepeatsAndSalts(t *testing.T) {
	p := PrefixSet{Requests: 6, PrefixLen: 100, TailLen: 20, OutputLen: 1, VocabSize: 1000, Seed: 1, Salt: 2}
	a, b := must(p.Items())(t), must(p.Items())(t)
	if !reflect.DeepEqual(a, b) {
		t.Error("the same fields gave different items")
	}
	q := p
	q.Salt = 3
	others := append(must(q.Items())(t), must(p.Warmups(3))(t)...)
	for _, x := range a {
		for _, y := range others {
			if n := shared(x.IDs, y.IDs); n > 2 {
				t.Errorf("another salt or a warm-up shares %d tokens", n)
			}
			if slices.Equal(x.IDs[100:], y.IDs[100:]) {
				t.Error("a tail comes back under another salt")
			}
		}
	}
	if w := must(p.Warmups(3))(t); len(w) != 3 || w[0].PromptLen != 120 || slices.Equal(w[0].IDs, w[1].IDs) {
		t.Error("warm-ups must have the measured length and differ")
	}
	p.PrefixLen = 0
	if pr := must(p.Primers())(t); pr != nil {
		t.Errorf("no prefix, but primers %v", pr)
	}
}

func TestPrefixSetRefusals(t *testing.T) {
	ok := PrefixSet{Requests: 3, PrefixLen: 4, TailLen: 2, OutputLen: 1, VocabSize: 10}
	if err := ok.Validate(); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*PrefixSet){
		"no requests":      func(p *PrefixSet) { p.Requests = 0 },
		"too many groups":  func(p *PrefixSet) { p.Groups = 4 },
		"no tail":          func(p *PrefixSet) { p.TailLen = 0 },
		"negative prefix":  func(p *PrefixSet) { p.PrefixLen = -1 },
		"negative output":  func(p *PrefixSet) { p.OutputLen = -1 },
		"no vocabulary":    func(p *PrefixSet) { p.VocabSize = 1 },
		"short tails":      func(p *PrefixSet) { p.Requests, p.TailLen = 11, 1 },
		"short prefixes":   func(p *PrefixSet) { p.Requests, p.PrefixLen = 11, 1 },
		"all ids avoided":  func(p *PrefixSet) { p.Avoid = upTo(9) },
		"vocabulary below": func(p *PrefixSet) { p.VocabLow = 9 },
	} {
		p := ok
		change(&p)
		if _, err := p.Items(); err == nil {
			t.Errorf("%s was taken", name)
		}
	}
}
