package cache

import (
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// purpose is why a move was ordered.
type purpose uint8

const (
	loading  purpose = iota // host to device
	storing                 // device to host, and the device keeps its copy
	evicting                // device to host, and then the device's copy goes
)

// flight is a move that was ordered and not reported done. It pins its source; its destination is Coming.
type flight struct {
	entry   *prefix.Entry
	why     purpose
	waiters []*Lease // of a load
}

// load orders e's copy to the device block dst.
func (c *Cache) load(e *prefix.Entry, dst kv.BlockID) *flight {
	c.index.Set(e, kv.Device, prefix.Place{Block: dst, State: prefix.Coming})
	return c.order(e, loading, kv.Host, kv.Device)
}

// store orders e's copy to the host, if the host has or can make room for it.
func (c *Cache) store(e *prefix.Entry, why purpose) bool {
	c.index.Pin(e, kv.Device) // before room is made: the host's victim may not be what this continues
	ids, err := c.take(kv.Host, 1)
	c.index.Unpin(e, kv.Device)
	if err != nil || e.At[kv.Host].State != prefix.Absent {
		return false
	}
	c.index.Set(e, kv.Host, prefix.Place{Block: ids[0], State: prefix.Coming})
	c.order(e, why, kv.Device, kv.Host)
	if why == evicting {
		c.leaving++
	}
	return true
}

func (c *Cache) order(e *prefix.Entry, why purpose, from, to kv.Tier) *flight {
	c.lastID++
	f := &flight{entry: e, why: why}
	c.index.Pin(e, from)
	c.flights[c.lastID] = f
	c.orders = append(c.orders, kv.Move{ID: c.lastID, From: from, To: to, Src: e.At[from].Block, Dst: e.At[to].Block})
	return f
}

// Moves drains the moves ordered since the last call, in the order in which they must start.
func (c *Cache) Moves() []kv.Move {
	out := c.orders
	c.orders = nil
	return out
}

// Pending counts moves that are ordered and not done, those not drained included.
func (c *Cache) Pending() int { return len(c.flights) }

// Done reports the end of a move. A failed load is no hit for those that waited for it; a failed store is never
// visible. A move that was not ordered, or is reported twice, is a broken invariant.
func (c *Cache) Done(id kv.MoveID, err error) {
	f := c.flights[id]
	if f == nil {
		panic(fmt.Sprintf("kv/cache: move %d is done but not under way", id))
	}
	delete(c.flights, id)
	if f.why == loading {
		c.loaded(f, err)
	} else {
		c.stored(f, err)
	}
}

func (c *Cache) loaded(f *flight, err error) {
	e := f.entry
	at := e.At[kv.Device]
	if err == nil {
		at.State = prefix.Here
		c.index.Set(e, kv.Device, at)
		c.stats[kv.Host].LoadedBlocks++
	} else {
		c.stats[kv.Host].FailedLoads++
	}
	c.index.Unpin(e, kv.Host)
	for _, l := range f.waiters {
		l.loads--
		if err != nil {
			l.lose(e)
		}
	}
	if err != nil { // nobody of the waiters holds it any more, and nobody else could
		c.pools[kv.Device].Give(at.Block)
		c.index.Set(e, kv.Device, prefix.Place{})
	}
}

func (c *Cache) stored(f *flight, err error) {
	e := f.entry
	at := e.At[kv.Host]
	if f.why == evicting {
		c.leaving--
	}
	c.index.Unpin(e, kv.Device)
	if err != nil {
		c.stats[kv.Host].FailedStores++
		c.pools[kv.Host].Give(at.Block)
		c.index.Set(e, kv.Host, prefix.Place{})
		if f.why == evicting { // its content is lost: waiting for a store that may never succeed would wedge the tier
			c.vacated(e)
		}
		return
	}
	at.State = prefix.Here
	c.index.Set(e, kv.Host, at)
	c.stats[kv.Host].StoredBlocks++
	if f.why == evicting {
		c.vacated(e)
	}
}

// vacated drops the device's copy of what was stored to be evicted, unless it has found a use meanwhile.
func (c *Cache) vacated(e *prefix.Entry) {
	if !e.Pinned(kv.Device) && e.Leaf(kv.Device) {
		c.stats[kv.Device].EvictedBlocks++
		c.drop(e, kv.Device)
	}
}
