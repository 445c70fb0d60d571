package cache

import (
	"errors"
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// purpose is why a move was ordered.
type purpose uint8

const (
	loading purpose = iota // host to device
	storing                // device to host
	saving                 // the same, because the device wants to give the block up
)

// flight is a move that was ordered and not reported done. It pins its source; its destination is Coming.
type flight struct {
	entry   *prefix.Entry
	why     purpose
	waiters []*Lease // of a load
}

func (f *flight) ends() (from, to kv.Tier) {
	if f.why == loading {
		return kv.Host, kv.Device
	}
	return kv.Device, kv.Host
}

// store orders copies to the host of as many of list as the host can make room for, from the first on, and says how
// many. None of them may be in the host.
func (c *Cache) store(list []*prefix.Entry, why purpose) int {
	for _, e := range list { // so that making room cannot take what they continue
		c.pin(e, kv.Device)
	}
	n := min(len(list), c.pools[kv.Host].Free()+c.index.Spare(kv.Host))
	ids, err := c.take(kv.Host, n)
	for i := range ids {
		c.order(list[i], why, ids[i])
	}
	for _, e := range list {
		c.unpin(e, kv.Device)
	}
	if err != nil {
		panic("kv/cache: the host cannot give what it has to spare")
	}
	return n
}

// order orders one move of e into block dst, which is leased.
func (c *Cache) order(e *prefix.Entry, why purpose, dst kv.BlockID) *flight {
	c.lastID++
	f := &flight{entry: e, why: why}
	from, to := f.ends()
	c.pin(e, from)
	c.set(e, to, prefix.Place{Block: dst, State: prefix.Coming})
	c.flights[c.lastID] = f
	switch why {
	case loading:
		c.loads[e] = f
	case saving:
		c.saving++
	case storing:
		c.storing++
	}
	c.orders = append(c.orders, kv.Move{ID: c.lastID, From: from, To: to, Src: e.At[from].Block, Dst: dst})
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
		delete(c.loads, f.entry)
		c.loaded(f, err)
	} else {
		c.stored(f, err)
	}
}

func (c *Cache) loaded(f *flight, err error) {
	e := f.entry
	at := e.At[kv.Device].Block
	if err == nil {
		c.set(e, kv.Device, prefix.Place{Block: at, State: prefix.Here})
		c.stats[kv.Host].LoadedBlocks++
	} else {
		c.stats[kv.Host].FailedLoads++
		if errors.Is(err, kv.ErrLate) {
			c.stats[kv.Host].LateLoads++
		}
	}
	for _, l := range f.waiters {
		l.loads--
		if err != nil {
			l.lose(e)
		}
	}
	if err != nil { // nobody holds the block any more: all who did were waiting for it
		c.set(e, kv.Device, prefix.Place{})
		c.pools[kv.Device].Give(at)
	}
	c.unpin(e, kv.Host)
}

func (c *Cache) stored(f *flight, err error) {
	e := f.entry
	at := e.At[kv.Host].Block
	if f.why == saving {
		c.saving--
	} else {
		c.storing--
	}
	if err == nil {
		c.set(e, kv.Host, prefix.Place{Block: at, State: prefix.Here})
		c.stats[kv.Host].StoredBlocks++
	} else {
		c.stats[kv.Host].FailedStores++
		c.set(e, kv.Host, prefix.Place{})
		c.pools[kv.Host].Give(at)
		if f.why == saving { // waiting for a store that may never succeed would wedge the tier
			c.index.Surrender(e)
		}
	}
	c.unpin(e, kv.Device)
	if f.why == saving && e.CanGo(kv.Device) { // else it is in use again, or waits for what continues it
		c.evict(e, kv.Device)
	}
}
