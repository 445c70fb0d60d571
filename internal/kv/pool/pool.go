// Package pool hands out the block numbers of one tier. It knows no content, no bytes and no recency; it refuses to
// give a number twice. Neighbours are handed out together where they can be, so that moves make few, large copies.
//
// Invariant 1 lives here: free + taken = total. (Of the taken, package kv/cache tells leased from cached.)
package pool

import (
	"fmt"
	"math/bits"

	"larder/internal/kv"
)

// Pool is the numbers 0 to Total-1 of one tier. For one goroutine.
type Pool struct {
	free  []uint64 // bit set: the number is free
	total int
	left  int
	next  int // where the last search ended, so that a pool fills from front to back before it reuses
}

// New is a pool of n free numbers.
func New(n int) *Pool {
	p := &Pool{free: make([]uint64, (n+63)/64), total: n, left: n}
	for i := range n {
		p.free[i/64] |= 1 << (i % 64)
	}
	return p
}

// Total and Free count numbers.
func (p *Pool) Total() int { return p.total }

// Free is how many numbers are not taken.
func (p *Pool) Free() int { return p.left }

// Take appends n numbers to dst, in as few runs of neighbours as a search from front to back finds: the first run that
// holds all of them, else the pieces in order. ok is false, and nothing taken, when fewer are free.
func (p *Pool) Take(dst []kv.BlockID, n int) (_ []kv.BlockID, ok bool) {
	if n > p.left {
		return dst, false
	}
	if n == 0 {
		return dst, true
	}
	at, found := p.run(n)
	for n > 0 {
		if !found {
			at = p.firstFree(at)
		}
		p.free[at/64] &^= 1 << (at % 64)
		p.left--
		dst = append(dst, kv.BlockID(at))
		at = (at + 1) % max(p.total, 1)
		n--
	}
	p.next = at
	return dst, true
}

// run finds the first run of n free numbers from next on, then from the front.
func (p *Pool) run(n int) (at int, ok bool) {
	if n <= 1 {
		return p.firstFree(p.next), p.left > 0
	}
	for _, span := range [2][2]int{{p.next, p.total}, {0, min(p.total, p.next+n-1)}} {
		length := 0
		for i := span[0]; i < span[1]; i++ {
			if i%64 == 0 && p.free[i/64] == 0 {
				length, i = 0, i+63
				continue
			}
			if p.free[i/64]>>(i%64)&1 == 0 {
				length = 0
				continue
			}
			if length++; length == n {
				return i - n + 1, true
			}
		}
	}
	return p.next % max(p.total, 1), false
}

// firstFree is the first free number at or after i, around the end. There must be one.
func (p *Pool) firstFree(i int) int {
	if i >= p.total {
		i = 0
	}
	for range len(p.free) + 1 {
		if w := p.free[i/64] >> (i % 64); w != 0 {
			return i + bits.TrailingZeros64(w)
		}
		if i = (i/64 + 1) * 64; i >= p.total {
			i = 0
		}
	}
	panic("kv/pool: no free number although some are left")
}

// Give takes a number back. It panics when the number is free already: somebody would share it.
func (p *Pool) Give(id kv.BlockID) {
	if id < 0 || int(id) >= p.total || p.IsFree(id) {
		panic(fmt.Sprintf("kv/pool: block %d given back but not taken", id))
	}
	p.free[id/64] |= 1 << (id % 64)
	p.left++
}

// IsFree says whether a number is free.
func (p *Pool) IsFree(id kv.BlockID) bool { return p.free[id/64]>>(id%64)&1 == 1 }

// Check counts the bits and reports what does not add up.
func (p *Pool) Check() error {
	n := 0
	for _, w := range p.free {
		n += bits.OnesCount64(w)
	}
	if n != p.left {
		return fmt.Errorf("kv/pool: %d numbers are free but %d are counted", n, p.left)
	}
	return nil
}
