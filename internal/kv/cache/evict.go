package cache

import (
	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// take gets n block numbers of a tier, evicting just what is missing. ErrNoRoom: no number was taken, though blocks
// may have been evicted or stores ordered that will make room.
func (c *Cache) take(t kv.Tier, n int) ([]kv.BlockID, error) {
	for c.pools[t].Free() < n {
		if !c.evict(t, n-c.pools[t].Free()) {
			return nil, ErrNoRoom
		}
	}
	ids, _ := c.pools[t].Take(make([]kv.BlockID, 0, n), n) // enough are free
	return ids, nil
}

// evict frees one block of tier t, of missing that are wanted. It says false when none can be freed now.
func (c *Cache) evict(t kv.Tier, missing int) bool {
	for {
		e := c.index.Victim(t)
		if e == nil {
			return false
		}
		if t == kv.Device && c.writesBack() && e.At[kv.Host].State == prefix.Absent {
			if c.leaving >= missing {
				return false
			}
			if c.storeUpwards(e, missing) {
				continue // its block comes free when the store is done; another may be free of one
			}
		}
		c.stats[t].EvictedBlocks++
		c.drop(e, t)
		return true
	}
}

// storeUpwards orders the stores of e and of what it continues, as many as are wanted: a chain would otherwise leave
// the device one store after another, since leaves go first.
func (c *Cache) storeUpwards(e *prefix.Entry, missing int) bool {
	if !c.store(e, evicting) {
		return false
	}
	for p := e.Parent; p != nil && c.leaving < missing; p = p.Parent {
		if p.Pinned(kv.Device) || p.At[kv.Device].State != prefix.Here || p.At[kv.Host].State != prefix.Absent || !c.store(p, evicting) {
			break
		}
	}
	return true
}

// drop takes e out of tier t. What is in no tier any more is forgotten, and with it all that continues it: without its
// head a tail is of no use.
func (c *Cache) drop(e *prefix.Entry, t kv.Tier) {
	c.pools[t].Give(e.At[t].Block)
	c.index.Set(e, t, prefix.Place{})
	c.forgetIfGone(e)
}

func (c *Cache) forgetIfGone(e *prefix.Entry) {
	for t := range kv.NumTiers {
		if e.At[t].State != prefix.Absent {
			return
		}
	}
	for len(e.Kids()) > 0 {
		c.dropAll(e.Kids()[0])
	}
	c.stats[kv.Device].DroppedBlocks++
	c.index.Forget(e)
}

// dropAll takes e and what continues it out of every tier. Nothing of it may be pinned.
func (c *Cache) dropAll(e *prefix.Entry) {
	for len(e.Kids()) > 0 {
		c.dropAll(e.Kids()[0])
	}
	places := e.At
	for t := range kv.NumTiers {
		if places[t].State != prefix.Absent {
			c.pools[t].Give(places[t].Block)
			c.index.Set(e, t, prefix.Place{})
		}
	}
	c.stats[kv.Device].DroppedBlocks++
	c.index.Forget(e)
}
