package prefix

import (
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/kv"
)

// forest is an index next to what a plain walk over all entries says of it.
type forest struct {
	ix      *Index
	policy  Policy
	entries []*Entry
	names   uint64
}

func newForest(policy Policy, saveFirst bool) *forest {
	return &forest{ix: New(policy, saveFirst), policy: policy}
}

// add makes a block known in some tiers.
func (f *forest) add(parent *Entry, places [kv.NumTiers]State) *Entry {
	f.names++
	var key kv.Key
	binary.LittleEndian.PutUint64(key[:], f.names)
	e := f.ix.Add(key, parent, []int32{int32(f.names)})
	f.entries = append(f.entries, e)
	for t, s := range places {
		if s != Absent {
			f.ix.Set(e, kv.Tier(t), Place{State: s})
		}
	}
	return e
}

// isKin says whether a is e or continues it.
func isKin(a, e *Entry) bool {
	for ; a != nil; a = a.Parent {
		if a == e {
			return true
		}
	}
	return false
}

func (e *Entry) used() bool {
	for t := range kv.NumTiers {
		if e.At[t].State == Coming || e.At[t].State == Here && e.pins[t] > 0 {
			return true
		}
	}
	return false
}

// where is the forest's content, for playing through what could be evicted.
func (f *forest) where() map[*Entry][kv.NumTiers]State {
	at := map[*Entry][kv.NumTiers]State{}
	for _, e := range f.entries {
		at[e] = [kv.NumTiers]State{e.At[0].State, e.At[1].State}
	}
	return at
}

// mayGo says, by looking at every entry, whether tier t can give e up.
func (f *forest) mayGo(at map[*Entry][kv.NumTiers]State, e *Entry, t kv.Tier) bool {
	if at[e][t] != Here || e.pins[t] > 0 {
		return false
	}
	if f.ix.saveFirst && t == kv.Device && at[e][kv.Host] != Here && !e.unsaved {
		return false
	}
	last := at[e][1-t] == Absent
	for _, k := range f.entries {
		if k.Parent == e && at[k][t] != Absent {
			return false
		}
		if last && isKin(k, e) && k.used() {
			return false
		}
	}
	return true
}

// spare evicts in a copy of the state until nothing can go, and counts.
func (f *forest) spare(t kv.Tier) int {
	at := f.where()
	n := 0
	for again := true; again; {
		again = false
		for _, e := range f.entries {
			if f.mayGo(at, e, t) {
				s := at[e]
				s[t] = Absent
				at[e] = s
				n++
				again = true
			}
		}
	}
	return n
}

func (f *forest) victim(t kv.Tier) *Entry {
	at := f.where()
	var best *Entry
	for _, e := range f.entries {
		if f.mayGo(at, e, t) && (best == nil || f.policy.Less(Usage{e.use, e.hits}, Usage{best.use, best.hits})) {
			best = e
		}
	}
	return best
}

// gone takes an entry out of a tier, and out of the index when it was the last.
func (f *forest) gone(e *Entry, t kv.Tier) {
	f.ix.Set(e, t, Place{})
	if e.At[0].State != Absent || e.At[1].State != Absent {
		return
	}
	for len(e.Kids()) > 0 {
		k := e.Kids()[0]
		for t := range kv.NumTiers {
			if k.At[t].State != Absent {
				f.gone(k, t)
				break
			}
		}
	}
	f.ix.Forget(e)
	f.entries = slices.DeleteFunc(f.entries, func(x *Entry) bool { return x == e })
}

// TestAgainstModel compares victims and spare blocks with a plain walk, for every policy, with entries in every
// mixture of tiers, pins and moves.
func TestAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		policy, err := PolicyNamed(rapid.SampledFrom([]string{"", "lru", "lfu", "slru"}).Draw(t, "policy"))
		if err != nil {
			t.Fatal(err)
		}
		f := newForest(policy, rapid.Bool().Draw(t, "saveFirst"))
		tier := func(t *rapid.T) kv.Tier { return rapid.SampledFrom([]kv.Tier{kv.Device, kv.Host}).Draw(t, "tier") }
		some := func(t *rapid.T, ok func(*Entry) bool) *Entry {
			list := slices.DeleteFunc(slices.Clone(f.entries), func(e *Entry) bool { return !ok(e) })
			if len(list) == 0 {
				t.Skip("none")
			}
			return rapid.SampledFrom(list).Draw(t, "entry")
		}
		t.Repeat(map[string]func(*rapid.T){
			"add": func(t *rapid.T) {
				var parent *Entry
				if len(f.entries) > 0 && rapid.IntRange(0, 3).Draw(t, "deep") > 0 {
					parent = rapid.SampledFrom(f.entries).Draw(t, "parent")
				}
				f.add(parent, rapid.SampledFrom([][kv.NumTiers]State{{Here, Absent}, {Absent, Here}, {Here, Here}, {Coming, Here}, {Here, Coming}}).Draw(t, "places"))
			},
			"pin": func(t *rapid.T) {
				tier := tier(t)
				f.ix.Pin(some(t, func(*Entry) bool { return true }), tier)
			},
			"unpin": func(t *rapid.T) {
				tier := tier(t)
				f.ix.Unpin(some(t, func(e *Entry) bool { return e.pins[tier] > 0 }), tier)
			},
			"arrive": func(t *rapid.T) {
				tier := tier(t)
				f.ix.Set(some(t, func(e *Entry) bool { return e.At[tier].State == Coming }), tier, Place{State: Here})
			},
			"touch": func(t *rapid.T) {
				f.ix.Touch(some(t, func(*Entry) bool { return true }), rapid.Bool().Draw(t, "hit"))
			},
			"surrender": func(t *rapid.T) { f.ix.Surrender(some(t, func(*Entry) bool { return true })) },
			"evict": func(t *rapid.T) {
				tier := tier(t)
				before := f.ix.Spare(tier)
				if e := f.ix.Victim(tier); e != nil {
					f.gone(e, tier)
				} else if before > 0 {
					t.Fatalf("%d blocks of the %v tier are spare, but there is no victim", before, tier)
				}
			},
			"": func(t *rapid.T) {
				if err := f.ix.Check(); err != nil {
					t.Fatal(err)
				}
				for tier := range kv.NumTiers {
					if got, want := f.ix.Victim(tier), f.victim(tier); got != want {
						t.Fatalf("the %v tier gives up %v, should give up %v", tier, got, want)
					}
					if got, want := f.ix.Spare(tier), f.spare(tier); got != want {
						t.Fatalf("%d blocks of the %v tier are spare, should be %d", got, tier, want)
					}
				}
				if len(f.ix.known) != len(f.entries) {
					t.Fatalf("%d blocks are known, should be %d", len(f.ix.known), len(f.entries))
				}
			},
		})
	})
}

func TestFindComparesTokens(t *testing.T) {
	ix := New(LRU{}, false)
	head := ix.Add(kv.Key{1}, nil, []int32{1, 2})
	tail := ix.Add(kv.Key{2}, head, []int32{3, 4})
	if ix.Find(kv.Key{2}, head, []int32{3, 4}) != tail {
		t.Error("a known block is not found")
	}
	for name, e := range map[string]*Entry{
		"other tokens":  ix.Find(kv.Key{2}, head, []int32{3, 5}),
		"other parent":  ix.Find(kv.Key{2}, nil, []int32{3, 4}),
		"other key":     ix.Find(kv.Key{3}, head, []int32{3, 4}),
		"taken key":     ix.Add(kv.Key{2}, nil, []int32{7}),
		"fewer tokens":  ix.Find(kv.Key{1}, nil, []int32{1}),
		"swapped place": ix.Find(kv.Key{1}, nil, []int32{2, 1}),
	} {
		if e != nil {
			t.Errorf("%s: found %v", name, e.Tokens)
		}
	}
}

// TestPolicies evicts four blocks that were used in different ways.
func TestPolicies(t *testing.T) {
	for name, want := range map[string]string{"lru": "1234", "lfu": "4321", "slru": "3412"} {
		policy, err := PolicyNamed(name)
		if err != nil {
			t.Fatal(err)
		}
		f := newForest(policy, false)
		for range 4 {
			f.add(nil, [kv.NumTiers]State{Here})
		}
		for i, hits := range []int{3, 2, 1, 0} {
			for range hits {
				f.ix.Touch(f.entries[i], true)
			}
			f.ix.Touch(f.entries[i], false)
		}
		var got string
		for e := f.ix.Victim(kv.Device); e != nil; e = f.ix.Victim(kv.Device) {
			got += fmt.Sprint(e.Tokens[0])
			f.gone(e, kv.Device)
		}
		if got != want {
			t.Errorf("%s evicts %s, want %s", name, got, want)
		}
	}
	if _, err := PolicyNamed("fifo"); err == nil || !strings.Contains(err.Error(), `"fifo"`) {
		t.Errorf("an unknown policy gives %v", err)
	}
}

func TestCheckFires(t *testing.T) {
	for name, breakIt := range map[string]func(*forest){
		"invariant 3":  func(f *forest) { delete(f.ix.known, f.entries[0].Key) },
		"stands under": func(f *forest) { f.entries[2].Key[9]++ },
		"has kids":     func(f *forest) { f.entries[0].kin.in[kv.Host]++ },
		"stands as":    func(f *forest) { f.entries[1].pins[kv.Device]++ },
		"in queue":     func(f *forest) { f.entries[1].spot[kv.Device] = 0 },
		"are spare":    func(f *forest) { f.ix.spare[kv.Device]-- },
		"is lost":      func(f *forest) { f.ix.queues[kv.Device].list[0] = &Entry{} },
		"goes before":  func(f *forest) { f.ix.queues[kv.Device].list[0].use = 99 },
		"a kid that is not known": func(f *forest) {
			f.entries[0].kids = append(f.entries[0].kids, &Entry{})
		},
	} {
		f := newForest(LRU{}, false)
		head := f.add(nil, [kv.NumTiers]State{Here, Here})
		f.add(head, [kv.NumTiers]State{Here, Here})
		f.add(nil, [kv.NumTiers]State{Here})
		if err := f.ix.Check(); err != nil {
			t.Fatal(err)
		}
		breakIt(f)
		if err := f.ix.Check(); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s broken: Check says %v", name, err)
		}
	}
}

func TestMisuse(t *testing.T) {
	for name, f := range map[string]func(*forest){
		"unpinned more often": func(f *forest) { f.ix.Unpin(f.entries[0], kv.Host) },
		"while a tier holds":  func(f *forest) { f.ix.Forget(f.entries[1]) },
		"before those": func(f *forest) {
			f.ix.Set(f.entries[0], kv.Device, Place{})
			f.ix.Forget(f.entries[0])
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newForest(LRU{}, false)
			w.add(w.add(nil, [kv.NumTiers]State{Here}), [kv.NumTiers]State{Here})
			defer func() {
				if got, ok := recover().(string); !ok || !strings.Contains(got, name) {
					t.Fatalf("panicked with %q", got)
				}
			}()
			f(w)
		})
	}
}

// BenchmarkEvict evicts a leaf of 100,000 blocks (chains of 100) and puts another there.
func BenchmarkEvict(b *testing.B) {
	for _, policy := range []Policy{LRU{}, LFU{}, SLRU{}} {
		b.Run(fmt.Sprintf("%T", policy), func(b *testing.B) {
			f := newForest(policy, false)
			for range 1000 {
				var e *Entry
				for range 100 {
					e = f.add(e, [kv.NumTiers]State{Here, Here})
				}
			}
			f.entries = nil
			b.ReportAllocs()
			for b.Loop() {
				e := f.ix.Victim(kv.Device)
				f.ix.Set(e, kv.Device, Place{})
				f.ix.Set(e, kv.Device, Place{State: Here})
				f.ix.Touch(e, true)
			}
		})
	}
}
