// Package prefix is the index of known blocks: which content is known, what its prefix is, and in which tiers it
// lies. It holds no bytes, hands out no block numbers and orders nothing; package cache does with the answers what its
// policy says. Time is a counter: the index reads no clock.
//
// Invariant 3 lives here: a known block's ancestors are known, and within a tier leaves go first, so a prefix never
// loses its head before its tail.
package prefix

import (
	"fmt"
	"slices"

	"larder/internal/kv"
)

// State says what a tier has of a block.
type State uint8

// The states of a block in a tier.
const (
	Absent State = iota
	Coming       // a move into the tier is under way; its bytes must not be read
	Here
)

// Place is a block's number and state in one tier.
type Place struct {
	Block kv.BlockID
	State State
}

// Entry is one known block. Fields are read by everyone and changed through the index alone.
type Entry struct {
	Key    kv.Key
	Tokens []int32
	Parent *Entry // nil for a prompt's first block
	At     [kv.NumTiers]Place

	kids []*Entry
	in   [kv.NumTiers]int // kids that are not Absent there
	pins [kv.NumTiers]int
	heap [kv.NumTiers]int // place in the tier's heap + 1; 0: not evictable
	use  uint64
	hits uint64
}

// Hits counts uses after the first.
func (e *Entry) Hits() uint64 { return e.hits }

// Leaf says whether nothing in tier t continues the entry.
func (e *Entry) Leaf(t kv.Tier) bool { return e.in[t] == 0 }

// Pinned says whether somebody uses the entry's block of tier t.
func (e *Entry) Pinned(t kv.Tier) bool { return e.pins[t] > 0 }

// Kids are the known blocks that continue the prefix; the caller must not change the slice.
func (e *Entry) Kids() []*Entry { return e.kids }

// Index is all known blocks. For one goroutine.
type Index struct {
	known map[kv.Key]*Entry
	heaps [kv.NumTiers]evictable
	idle  [kv.NumTiers]int
	clock uint64
}

// New is an empty index that evicts by policy.
func New(policy Policy) *Index {
	ix := &Index{known: map[kv.Key]*Entry{}}
	for t := range ix.heaps {
		ix.heaps[t] = evictable{tier: kv.Tier(t), policy: policy}
	}
	return ix
}

// Len is the number of known blocks.
func (ix *Index) Len() int { return len(ix.known) }

// Find is the entry of key whose prefix is parent and whose tokens are these; nil when it is not known. The tokens
// decide: a key alone is not identity.
func (ix *Index) Find(key kv.Key, parent *Entry, tokens []int32) *Entry {
	e := ix.known[key]
	if e == nil || e.Parent != parent || !slices.Equal(e.Tokens, tokens) {
		return nil
	}
	return e
}

// Add makes a block known, in no tier yet. It returns nil when another content has the key: then it stays unknown.
func (ix *Index) Add(key kv.Key, parent *Entry, tokens []int32) *Entry {
	if ix.known[key] != nil {
		return nil
	}
	e := &Entry{Key: key, Tokens: slices.Clone(tokens), Parent: parent}
	ix.known[key] = e
	if parent != nil {
		parent.kids = append(parent.kids, e)
	}
	ix.clock++
	e.use = ix.clock
	return e
}

// Set says what tier t has of e from now on.
func (ix *Index) Set(e *Entry, t kv.Tier, p Place) {
	was := e.At[t].State != Absent
	ix.recount(e, t, func() { e.At[t] = p })
	if is := p.State != Absent; was != is && e.Parent != nil {
		if is {
			e.Parent.in[t]++
		} else {
			e.Parent.in[t]--
		}
		ix.heaps[t].update(e.Parent)
	}
}

// Pin keeps e's block of tier t from eviction until Unpin.
func (ix *Index) Pin(e *Entry, t kv.Tier) {
	ix.recount(e, t, func() { e.pins[t]++ })
}

// Unpin undoes one Pin.
func (ix *Index) Unpin(e *Entry, t kv.Tier) {
	if e.pins[t] == 0 {
		panic("kv/prefix: a block is unpinned more often than pinned")
	}
	ix.recount(e, t, func() { e.pins[t]-- })
}

// Touch notes a use of e.
func (ix *Index) Touch(e *Entry, hit bool) {
	ix.clock++
	e.use = ix.clock
	if hit {
		e.hits++
	}
	for t := range ix.heaps {
		ix.heaps[t].update(e)
	}
}

// Victim is the entry that tier t gives up next; nil when all of it is pinned.
func (ix *Index) Victim(t kv.Tier) *Entry { return ix.heaps[t].first() }

// Idle counts tier t's blocks that nobody uses. All of them can be had, leaves first.
func (ix *Index) Idle(t kv.Tier) int { return ix.idle[t] }

// recount keeps idle true around a change of e.
func (ix *Index) recount(e *Entry, t kv.Tier, change func()) {
	was := e.isIdle(t)
	change()
	if is := e.isIdle(t); is && !was {
		ix.idle[t]++
	} else if was && !is {
		ix.idle[t]--
	}
	ix.heaps[t].update(e)
}

func (e *Entry) isIdle(t kv.Tier) bool { return e.At[t].State == Here && e.pins[t] == 0 }

// Forget makes e unknown. It must be in no tier and without kids.
func (ix *Index) Forget(e *Entry) {
	for t := range e.At {
		if e.At[t].State != Absent {
			panic("kv/prefix: a block is forgotten while a tier holds it")
		}
	}
	if len(e.kids) > 0 {
		panic("kv/prefix: a block is forgotten before those that continue it")
	}
	delete(ix.known, e.Key)
	if p := e.Parent; p != nil {
		i := slices.Index(p.kids, e)
		p.kids[i] = p.kids[len(p.kids)-1]
		p.kids = p.kids[:len(p.kids)-1]
	}
}

// Each calls f for every entry, in no order.
func (ix *Index) Each(f func(*Entry)) {
	for _, e := range ix.known {
		f(e)
	}
}

// Check walks the index and names what is broken.
func (ix *Index) Check() error {
	var idle [kv.NumTiers]int
	for key, e := range ix.known {
		if e.Key != key {
			return fmt.Errorf("kv/prefix: %x stands under %x", e.Key, key)
		}
		if e.Parent != nil && ix.known[e.Parent.Key] != e.Parent {
			return fmt.Errorf("kv/prefix: %x is known but its parent is not", key)
		}
		for t := range kv.NumTiers {
			if e.isIdle(t) {
				idle[t]++
			}
			in := 0
			for _, k := range e.kids {
				if k.At[t].State != Absent {
					in++
				}
			}
			if in != e.in[t] {
				return fmt.Errorf("kv/prefix: %x has %d kids in the %v tier, %d are counted", key, in, t, e.in[t])
			}
			if want := e.evictable(t); want != (e.heap[t] > 0) {
				return fmt.Errorf("kv/prefix: %x: evictable from %v is %v, in the heap %v", key, t, want, !want)
			}
		}
	}
	if idle != ix.idle {
		return fmt.Errorf("kv/prefix: idle blocks by tier are %v, %v are counted", idle, ix.idle)
	}
	return nil
}
