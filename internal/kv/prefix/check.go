package prefix

import (
	"fmt"

	"larder/internal/kv"
)

// Check walks the index, works everything out anew, and names what is broken.
func (ix *Index) Check() error {
	var spare [kv.NumTiers]int
	for key, e := range ix.known {
		if err := ix.checkEntry(key, e); err != nil {
			return err
		}
		for t := range kv.NumTiers {
			recount(&spare[t], false, e.now.spare(t))
		}
	}
	if spare != ix.spare {
		return fmt.Errorf("kv/prefix: by tier %v blocks are spare, %v are counted", spare, ix.spare)
	}
	for i := range ix.queues {
		if err := ix.checkQueue(&ix.queues[i]); err != nil {
			return err
		}
	}
	return nil
}

// checkEntry proves invariant 3 for one entry, and that what is counted of it is so.
func (ix *Index) checkEntry(key kv.Key, e *Entry) error {
	if e.Key != key {
		return fmt.Errorf("kv/prefix: block %x stands under %x", e.Key, key)
	}
	if p := e.Parent; p != nil && (ix.known[p.Key] != p || e.nth >= len(p.kids) || p.kids[e.nth] != e) {
		return fmt.Errorf("invariant 3: block %x is known, but what it continues is not", key)
	}
	var k kin
	for _, kid := range e.kids {
		if ix.known[kid.Key] != kid {
			return fmt.Errorf("kv/prefix: block %x has a kid that is not known", key)
		}
		for t := range kv.NumTiers {
			recount(&k.in[t], false, kid.now.in[t])
			recount(&k.stays[t], false, kid.now.stays[t])
		}
		recount(&k.busy, false, kid.now.busy)
	}
	if k != e.kin {
		return fmt.Errorf("kv/prefix: block %x has kids %+v, counted are %+v", key, k, e.kin)
	}
	if is := ix.stand(e); is != e.now {
		return fmt.Errorf("kv/prefix: block %x stands as %+v, counted as %+v", key, is, e.now)
	}
	for i := range ix.queues {
		if want := ix.queued(e, i); want != (e.spot[i] > 0) {
			return fmt.Errorf("kv/prefix: block %x: in queue %d is %v, should be %v", key, i, !want, want)
		}
	}
	return nil
}

// checkQueue proves that a queue holds known entries, each at its place, none before one that goes earlier.
func (ix *Index) checkQueue(q *queue) error {
	for i, e := range q.list {
		if ix.known[e.Key] != e || int(e.spot[q.at]) != i+1 {
			return fmt.Errorf("kv/prefix: queue %d: the entry at %d is lost", q.at, i)
		}
		if i > 0 && q.Less(i, (i-1)/2) {
			return fmt.Errorf("kv/prefix: queue %d: the entry at %d goes before the one above it", q.at, i)
		}
	}
	return nil
}
