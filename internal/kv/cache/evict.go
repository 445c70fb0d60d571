package cache

import (
	"slices"

	"larder/internal/kv"
	"larder/internal/kv/pool"
	"larder/internal/kv/prefix"
)

// take leases n block numbers of a tier, evicting just what is missing, and only if that is enough. With ErrNoRoom
// nothing was taken, though under write-back stores may have been ordered that will make room.
func (c *Cache) take(t kv.Tier, n int) ([]kv.BlockID, error) {
	if n > c.pools[t].Total() {
		return nil, ErrNoRoom
	}
	for {
		short := n - c.pools[t].Free() - c.index.Spare(t)
		if short <= 0 {
			break
		}
		if t != kv.Device || !c.writesBack() || !c.save(short-c.saving) {
			return nil, ErrNoRoom
		}
	}
	for c.pools[t].Free() < n {
		c.evict(c.index.Victim(t), t)
	}
	ids, _ := c.pools[t].Take(make([]kv.BlockID, 0, n), n) // so many are free
	return ids, nil
}

// Prepare orders, under write-back, the stores without which n device blocks could not be had at once. Other policies
// need no such notice.
func (c *Cache) Prepare(n int) {
	if !c.writesBack() {
		return
	}
	short := min(n, c.pools[kv.Device].Total()) - c.pools[kv.Device].Free() - c.index.Spare(kv.Device) - c.saving
	if short > 0 {
		c.save(short)
	}
}

// evict takes e, which can go, out of tier t to make room.
func (c *Cache) evict(e *prefix.Entry, t kv.Tier) {
	c.stats[t].EvictedBlocks++
	c.drop(e, t)
}

// save orders stores of n blocks that leave the device when the host has them. It says true when some turned out not
// to need one: there is more room at once.
func (c *Cache) save(n int) bool {
	surrendered := false
	for n > 0 {
		leaf := c.index.Unsaved()
		if leaf == nil {
			break
		}
		room := c.pools[kv.Host].Free() + c.index.Spare(kv.Host)
		if room == 0 && c.Pending() > 0 {
			break // the host is full of blocks that moves use
		}
		c.evictTail(leaf)
		chain := c.unsavedChain(leaf, max(1, min(n, room)))
		if c.store(chain, saving) == 0 {
			c.index.Surrender(leaf) // the host can never take it
			surrendered = true
		}
		n -= len(chain)
	}
	return surrendered
}

// evictTail evicts from the device what continues e there, all of which can go. It is wanted as well as e; if it stayed
// until e is saved, a small host could give up its copies for e's, and it had to be saved again, and so for ever.
func (c *Cache) evictTail(e *prefix.Entry) {
	if e.Leaf(kv.Device) {
		return
	}
	for _, k := range slices.Clone(e.Kids()) {
		if k.At[kv.Device].State != prefix.Absent {
			c.evictTail(k)
			c.evict(k, kv.Device)
		}
	}
}

// unsavedChain is what can leave the device with the leaf: it and what it continues, n blocks at most, in the order of
// the tokens, so that they are stored as one run. One store after another would let a chain go as slowly, since leaves
// go first.
func (c *Cache) unsavedChain(leaf *prefix.Entry, n int) []*prefix.Entry {
	chain := []*prefix.Entry{leaf}
	for p := leaf.Parent; p != nil && len(chain) < n; p = p.Parent {
		if p.Held(kv.Device) > 1 || p.Pins(kv.Device) > 0 || p.At[kv.Device].State != prefix.Here || p.At[kv.Host].State != prefix.Absent {
			break
		}
		chain = append(chain, p)
	}
	slices.Reverse(chain)
	return chain
}

// drop takes e, which nobody uses, out of tier t. What is in no tier any more is forgotten, and with it all that
// continues it: without its head a tail is of no use.
func (c *Cache) drop(e *prefix.Entry, t kv.Tier) {
	c.pools[t].Evict(e.At[t].Block)
	c.set(e, t, prefix.Place{})
	if e.At[kv.Device].State == prefix.Absent && e.At[kv.Host].State == prefix.Absent {
		c.forget(e, t)
	}
}

// forget makes e, of which tier t had the last copy, unknown, and drops what continues it.
func (c *Cache) forget(e *prefix.Entry, t kv.Tier) {
	for len(e.Kids()) > 0 {
		c.dropAll(e.Kids()[0])
	}
	c.stats[t].DroppedBlocks++
	c.index.Forget(e)
}

// dropAll takes e and what continues it, which nobody uses, out of every tier.
func (c *Cache) dropAll(e *prefix.Entry) {
	for len(e.Kids()) > 0 {
		c.dropAll(e.Kids()[0])
	}
	last := kv.Device
	for t := range kv.NumTiers {
		if e.At[t].State != prefix.Absent {
			c.pools[t].Evict(e.At[t].Block)
			c.set(e, t, prefix.Place{})
			last = t
		}
	}
	c.stats[last].DroppedBlocks++
	c.index.Forget(e)
}

// set says what tier t has of e, and tells the tier's pool whether somebody uses it.
func (c *Cache) set(e *prefix.Entry, t kv.Tier, p prefix.Place) {
	c.index.Set(e, t, p)
	c.tell(e, t)
}

// pin keeps e's block of tier t, if there is one, from eviction.
func (c *Cache) pin(e *prefix.Entry, t kv.Tier) {
	c.index.Pin(e, t)
	c.tell(e, t)
}

func (c *Cache) unpin(e *prefix.Entry, t kv.Tier) {
	c.index.Unpin(e, t)
	c.tell(e, t)
}

func (c *Cache) tell(e *prefix.Entry, t kv.Tier) {
	p := e.At[t]
	if p.State == prefix.Absent {
		return
	}
	inUse := p.State == prefix.Coming || e.Pins(t) > 0
	if inUse != (c.pools[t].State(p.Block) == pool.Leased) {
		c.pools[t].Use(p.Block, inUse)
	}
}
