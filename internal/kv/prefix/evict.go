package prefix

import (
	"container/heap"
	"fmt"

	"larder/internal/kv"
)

// Policy orders what may be evicted: the entry with the least rank goes first. This is the place to change which
// cached block goes; that leaves go before what they continue is not the policy's business.
type Policy interface {
	// Less says whether a goes before b. use is the logical time of the last use, hits the uses after the first.
	Less(a, b Usage) bool
}

// Usage is what a policy may look at.
type Usage struct{ Use, Hits uint64 }

// LRU evicts what was used least recently.
type LRU struct{}

// Less implements Policy.
func (LRU) Less(a, b Usage) bool { return a.Use < b.Use }

// LFU evicts what was hit least often, the older first.
type LFU struct{}

// Less implements Policy.
func (LFU) Less(a, b Usage) bool {
	if a.Hits != b.Hits {
		return a.Hits < b.Hits
	}
	return a.Use < b.Use
}

// SLRU evicts what was used only once or twice first, least recently used first within each of the two segments.
type SLRU struct{}

// protectedHits is from how many hits on an entry is in the protected segment.
const protectedHits = 2

// Less implements Policy.
func (SLRU) Less(a, b Usage) bool {
	if pa, pb := a.Hits >= protectedHits, b.Hits >= protectedHits; pa != pb {
		return pb
	}
	return a.Use < b.Use
}

// PolicyNamed is the policy that a flag names; "" is LRU.
func PolicyNamed(name string) (Policy, error) {
	switch name {
	case "", "lru":
		return LRU{}, nil
	case "lfu":
		return LFU{}, nil
	case "slru":
		return SLRU{}, nil
	}
	return nil, fmt.Errorf("eviction policy %q: there are lru, lfu and slru", name)
}

// evictable says whether tier t may give e's block up now: it is there, nobody uses it, and nothing in the tier
// continues it.
func (e *Entry) evictable(t kv.Tier) bool {
	return e.At[t].State == Here && e.pins[t] == 0 && e.in[t] == 0
}

// evictable is the heap of one tier's entries that may go, the first to go on top.
type evictable struct {
	tier   kv.Tier
	policy Policy
	list   []*Entry
}

func (h *evictable) Len() int { return len(h.list) }

func (h *evictable) Less(i, j int) bool {
	a, b := h.list[i], h.list[j]
	return h.policy.Less(Usage{a.use, a.hits}, Usage{b.use, b.hits})
}

func (h *evictable) Swap(i, j int) {
	h.list[i], h.list[j] = h.list[j], h.list[i]
	h.list[i].heap[h.tier], h.list[j].heap[h.tier] = i+1, j+1
}

// Push implements heap.Interface.
func (h *evictable) Push(x any) {
	e := x.(*Entry)
	h.list = append(h.list, e)
	e.heap[h.tier] = len(h.list)
}

// Pop implements heap.Interface.
func (h *evictable) Pop() any {
	e := h.list[len(h.list)-1]
	h.list[len(h.list)-1] = nil
	h.list = h.list[:len(h.list)-1]
	e.heap[h.tier] = 0
	return e
}

// update puts e where it belongs after any change.
func (h *evictable) update(e *Entry) {
	at := e.heap[h.tier] - 1
	switch may := e.evictable(h.tier); {
	case may && at < 0:
		heap.Push(h, e)
	case may:
		heap.Fix(h, at)
	case at >= 0:
		heap.Remove(h, at)
	}
}

func (h *evictable) first() *Entry {
	if len(h.list) == 0 {
		return nil
	}
	return h.list[0]
}
