// Package prefix is the index of known blocks: which content is known, what its prefix is, in which tiers it lies, who
// uses it, and which block a tier gives up next. It holds no bytes, hands out no block numbers and orders nothing;
// package cache does with the answers what its policy says. Time is a counter: the index reads no clock.
//
// Start at Index. evict.go is the place to change which block goes; standing.go is how the index knows at once what
// can go. Invariant 3 lives here: a known block's ancestors are known, and within a tier leaves go first, so a prefix
// never loses its head before its tail.
package prefix

import (
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
	Stay   bool // it was asked that the device alone has it: no policy stores it

	kids    []*Entry
	nth     int // of the parent's kids
	pins    [kv.NumTiers]int32
	kin     kin
	now     standing         // what the index has counted of it
	spot    [numQueues]int32 // place in each queue + 1; 0: not in it
	use     uint64
	hits    uint64
	unsaved bool // it may leave the device although the host has it not
}

// Pins counts who uses the entry's block of tier t.
func (e *Entry) Pins(t kv.Tier) int { return int(e.pins[t]) }

// Held counts the blocks that directly continue e and that tier t has and cannot give up now.
func (e *Entry) Held(t kv.Tier) int { return int(e.kin.stays[t]) }

// Leaf says whether nothing in tier t directly continues e.
func (e *Entry) Leaf(t kv.Tier) bool { return e.kin.in[t] == 0 }

// CanGo says whether tier t can give e up at once: it is spare, and nothing in the tier continues it.
func (e *Entry) CanGo(t kv.Tier) bool { return e.spot[t] > 0 }

// Kids are the known blocks that continue the prefix; the caller must not change the slice.
func (e *Entry) Kids() []*Entry { return e.kids }

// Index is all known blocks. For one goroutine. Every change takes O(log n), but for the few that change what the
// whole chain above a block may do; those are paid for by the change that will undo them.
type Index struct {
	known     map[kv.Key]*Entry
	saveFirst bool
	queues    [numQueues]queue
	spare     [kv.NumTiers]int
	clock     uint64
}

// New is an empty index that evicts by policy. With saveFirst, the device gives a block up only when the host has it
// (write-back); see Unsaved.
func New(policy Policy, saveFirst bool) *Index {
	ix := &Index{known: map[kv.Key]*Entry{}, saveFirst: saveFirst}
	for i := range ix.queues {
		ix.queues[i] = queue{at: i, policy: policy}
	}
	return ix
}

// Find is the entry of key whose prefix is parent and whose tokens are these; nil when it is not known. The tokens
// decide: a key alone is not identity (invariant 5).
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
		e.nth = len(parent.kids)
		parent.kids = append(parent.kids, e)
	}
	ix.clock++
	e.use = ix.clock
	return e
}

// Set says what tier t has of e from now on.
func (ix *Index) Set(e *Entry, t kv.Tier, p Place) {
	e.At[t] = p
	ix.settle(e)
}

// Pin keeps e's block of tier t from eviction until Unpin.
func (ix *Index) Pin(e *Entry, t kv.Tier) {
	e.pins[t]++
	ix.settle(e)
}

// Unpin undoes one Pin.
func (ix *Index) Unpin(e *Entry, t kv.Tier) {
	if e.pins[t] == 0 {
		panic("kv/prefix: a block is unpinned more often than pinned")
	}
	e.pins[t]--
	ix.settle(e)
}

// Touch notes a use of e; a hit is a use of what was there before.
func (ix *Index) Touch(e *Entry, hit bool) {
	ix.clock++
	e.use = ix.clock
	if hit {
		e.hits++
	}
	for i := range ix.queues {
		ix.queues[i].moved(e)
	}
	if e.unsaved {
		e.unsaved = false
		ix.settle(e)
	}
}

// Surrender lets the device give e up although the host has it not, because saving it failed. A use takes that back.
func (ix *Index) Surrender(e *Entry) {
	e.unsaved = true
	ix.settle(e)
}

// Forget makes e unknown. It must be in no tier and without kids.
func (ix *Index) Forget(e *Entry) {
	if e.now != (standing{}) {
		panic("kv/prefix: a block is forgotten while a tier holds it")
	}
	if len(e.kids) > 0 {
		panic("kv/prefix: a block is forgotten before those that continue it")
	}
	delete(ix.known, e.Key)
	if p := e.Parent; p != nil {
		last := p.kids[len(p.kids)-1]
		p.kids[e.nth], last.nth = last, e.nth
		p.kids[len(p.kids)-1] = nil
		p.kids = p.kids[:len(p.kids)-1]
	}
}

// Each calls f for every entry, in no order.
func (ix *Index) Each(f func(*Entry)) {
	for _, e := range ix.known {
		f(e)
	}
}
