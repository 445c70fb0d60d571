package prefix

import (
	"container/heap"
	"fmt"

	"larder/internal/kv"
)

// Policy orders what may be evicted. This is the place to change which cached block goes: write a Policy and name it
// in PolicyNamed. That leaves go before what they continue is not the policy's business.
type Policy interface {
	// Less says whether a goes before b. It must be a strict order that depends on nothing else.
	Less(a, b Usage) bool
}

// Usage is what a policy may look at: the logical time of the last use (never the same for two blocks), and the number
// of uses after the first.
type Usage struct{ Use, Hits uint64 }

// LRU evicts what was used least recently.
type LRU struct{}

// Less implements Policy.
func (LRU) Less(a, b Usage) bool { return a.Use < b.Use }

// LFU evicts what was hit least often, the least recently used of those first.
type LFU struct{}

// Less implements Policy.
func (LFU) Less(a, b Usage) bool {
	if a.Hits != b.Hits {
		return a.Hits < b.Hits
	}
	return a.Use < b.Use
}

// SLRU evicts what was hit less than twice before what was hit more often; least recently used first within each of
// these two segments.
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

// The queues: what each tier could give up at once, and what the device could give up once it is saved.
const (
	toSave    = int(kv.NumTiers)
	numQueues = toSave + 1
)

// queue is a heap of entries, the first to go on top.
type queue struct {
	at     int // which queue this is
	policy Policy
	list   []*Entry
}

func (q *queue) Len() int { return len(q.list) }

func (q *queue) Less(i, j int) bool {
	a, b := q.list[i], q.list[j]
	return q.policy.Less(Usage{a.use, a.hits}, Usage{b.use, b.hits})
}

func (q *queue) Swap(i, j int) {
	q.list[i], q.list[j] = q.list[j], q.list[i]
	q.list[i].spot[q.at], q.list[j].spot[q.at] = int32(i+1), int32(j+1)
}

// Push implements heap.Interface.
func (q *queue) Push(x any) {
	e := x.(*Entry)
	q.list = append(q.list, e)
	e.spot[q.at] = int32(len(q.list))
}

// Pop implements heap.Interface.
func (q *queue) Pop() any {
	e := q.list[len(q.list)-1]
	q.list[len(q.list)-1] = nil
	q.list = q.list[:len(q.list)-1]
	e.spot[q.at] = 0
	return e
}

// want puts e into the queue or takes it out.
func (q *queue) want(e *Entry, in bool) {
	switch at := e.spot[q.at]; {
	case in && at == 0:
		heap.Push(q, e)
	case !in && at > 0:
		heap.Remove(q, int(at-1))
	}
}

// moved puts e, if it is in the queue, where its usage says.
func (q *queue) moved(e *Entry) {
	if at := e.spot[q.at]; at > 0 {
		heap.Fix(q, int(at-1))
	}
}

func (q *queue) first() *Entry {
	if len(q.list) == 0 {
		return nil
	}
	return q.list[0]
}
