// Package pool hands out the block numbers of one tier and knows which of them are free, leased and cached. It knows
// no content, no bytes and no recency; it refuses to give a number twice and to evict one that is in use. Neighbours
// are handed out together where they can be, so that moves make few, large copies.
//
// Start at Pool. Invariant 1 lives here: free + leased + cached = total.
package pool

import (
	"fmt"

	"larder/internal/kv"
)

// State says what a number is used for.
type State uint8

// The states of a number.
const (
	Free   State = iota
	Leased       // a sequence or a move uses it
	Cached       // it holds KV that can be used again and that nobody uses now
	numStates
)

// String is the state's name in errors.
func (s State) String() string { return [...]string{"free", "leased", "cached"}[s] }

// Pool is the numbers 0 to Total-1 of one tier. For one goroutine. Every change takes O(log total).
type Pool struct {
	state []State
	count [numStates]int
	tree  []span // node k has the children 2k and 2k+1; the numbers are the leaves, from leaf on
	leaf  int    // a power of two
}

// span is what a node of the tree knows of the numbers below it: how many are free from its first on, up to its last,
// and in its longest run.
type span struct{ head, tail, best int32 }

// New is a pool of n free numbers.
func New(n int) *Pool {
	p := &Pool{state: make([]State, n), leaf: 1}
	p.count[Free] = n
	for p.leaf < n {
		p.leaf *= 2
	}
	p.tree = grow(p.state, p.leaf)
	return p
}

// grow builds the tree over the states.
func grow(state []State, leaf int) []span {
	tree := make([]span, 2*leaf)
	for i, s := range state {
		if s == Free {
			tree[leaf+i] = span{1, 1, 1}
		}
	}
	width := int32(1)
	for first := leaf / 2; first > 0; first /= 2 {
		for k := first; k < 2*first; k++ {
			tree[k] = join(tree[2*k], tree[2*k+1], width)
		}
		width *= 2
	}
	return tree
}

// join is the node over two neighbours of width numbers each.
func join(l, r span, width int32) span {
	n := span{head: l.head, tail: r.tail, best: max(l.best, r.best, l.tail+r.head)}
	if l.head == width {
		n.head += r.head
	}
	if r.tail == width {
		n.tail += l.tail
	}
	return n
}

// Total counts all numbers.
func (p *Pool) Total() int { return len(p.state) }

// Free counts the numbers that can be taken.
func (p *Pool) Free() int { return p.count[Free] }

// Leased counts the numbers that somebody uses.
func (p *Pool) Leased() int { return p.count[Leased] }

// Cached counts the numbers that could be evicted.
func (p *Pool) Cached() int { return p.count[Cached] }

// State of a number.
func (p *Pool) State(id kv.BlockID) State { return p.state[id] }

// Take leases n free numbers and appends them to dst, in as few runs of neighbours as there can be: the lowest run
// that holds all of them, else the longest runs. ok is false, and nothing taken, when fewer are free.
func (p *Pool) Take(dst []kv.BlockID, n int) (_ []kv.BlockID, ok bool) {
	if n > p.count[Free] {
		return dst, false
	}
	for n > 0 {
		run := min(n, int(p.tree[1].best))
		at := p.lowest(int32(run))
		for i := at; i < at+run; i++ {
			p.set(kv.BlockID(i), Leased)
			dst = append(dst, kv.BlockID(i))
		}
		n -= run
	}
	return dst, true
}

// lowest is the start of the lowest run of n free numbers; there must be one.
func (p *Pool) lowest(n int32) int {
	k, at := 1, 0
	for width := p.leaf / 2; k < p.leaf; width /= 2 {
		l, r := p.tree[2*k], p.tree[2*k+1]
		switch {
		case l.best >= n:
			k = 2 * k
		case l.tail+r.head >= n:
			return at + width - int(l.tail)
		default:
			k, at = 2*k+1, at+width
		}
	}
	return at
}

// Use says whether a number that is not free is in use (leased) or not (cached).
func (p *Pool) Use(id kv.BlockID, inUse bool) {
	p.must(id, p.state[id] != Free, "used")
	if inUse {
		p.set(id, Leased)
	} else {
		p.set(id, Cached)
	}
}

// Give takes a leased number back. It panics on any other: somebody would share it.
func (p *Pool) Give(id kv.BlockID) {
	p.must(id, p.state[id] == Leased, "given back")
	p.set(id, Free)
}

// Evict takes a cached number back. It panics on any other: a leased number is never a victim (invariant 2).
func (p *Pool) Evict(id kv.BlockID) {
	p.must(id, p.state[id] == Cached, "evicted")
	p.set(id, Free)
}

func (p *Pool) must(id kv.BlockID, ok bool, what string) {
	if !ok {
		panic(fmt.Sprintf("kv/pool: block %d is %s but %v", id, what, p.state[id]))
	}
}

// set changes a number's state, and the nodes above it when free numbers change.
func (p *Pool) set(id kv.BlockID, s State) {
	was := p.state[id]
	p.state[id] = s
	p.count[was]--
	p.count[s]++
	if (was == Free) == (s == Free) {
		return
	}
	k := p.leaf + int(id)
	p.tree[k] = span{}
	if s == Free {
		p.tree[k] = span{1, 1, 1}
	}
	for width := int32(1); k > 1; width *= 2 {
		k /= 2
		p.tree[k] = join(p.tree[2*k], p.tree[2*k+1], width)
	}
}

// Check counts everything anew and reports what does not add up.
func (p *Pool) Check() error {
	var count [numStates]int
	for _, s := range p.state {
		count[s]++
	}
	if count != p.count {
		return fmt.Errorf("invariant 1: %v numbers are free, leased, cached; %v are counted", count, p.count)
	}
	for k, want := range grow(p.state, p.leaf) {
		if p.tree[k] != want {
			return fmt.Errorf("kv/pool: node %d of the tree is %v, should be %v", k, p.tree[k], want)
		}
	}
	return nil
}
