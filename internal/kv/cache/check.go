package cache

import (
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// Stats counts every tier.
func (c *Cache) Stats() [kv.NumTiers]TierStats {
	out := c.stats
	for t := range kv.NumTiers {
		s := &out[t]
		s.Total, s.Free, s.Cached = c.pools[t].Total(), c.pools[t].Free(), c.index.Idle(t)
		s.Leased = s.Total - s.Free - s.Cached
	}
	return out
}

// Check walks everything and names the invariant that is broken.
func (c *Cache) Check() error {
	if err := c.index.Check(); err != nil {
		return err
	}
	for t := range kv.NumTiers {
		if err := c.pools[t].Check(); err != nil {
			return fmt.Errorf("%v tier: %w", t, err)
		}
		if err := c.checkTier(t); err != nil {
			return err
		}
	}
	return c.checkFlights()
}

// checkTier proves invariants 1 and 2 for one tier: every number is free or held once, and nothing more.
func (c *Cache) checkTier(t kv.Tier) error {
	holder := map[kv.BlockID]*prefix.Entry{}
	var err error
	c.index.Each(func(e *prefix.Entry) {
		p := e.At[t]
		if p.State == prefix.Absent {
			return
		}
		if c.pools[t].IsFree(p.Block) {
			err = fmt.Errorf("invariant 2: %v block %d is known and free", t, p.Block)
		}
		if holder[p.Block] != nil {
			err = fmt.Errorf("invariant 2: %v block %d holds two contents", t, p.Block)
		}
		holder[p.Block] = e
	})
	if err != nil {
		return err
	}
	private := 0
	if t == kv.Device {
		private = c.private
	}
	if held := c.pools[t].Total() - c.pools[t].Free(); held != len(holder)+private {
		return fmt.Errorf("invariant 1: %d %v blocks are taken, %d known and %d private", held, t, len(holder), private)
	}
	return nil
}

// checkFlights proves that every block on its way has its move, and that a move's ends are held.
func (c *Cache) checkFlights() error {
	type place struct {
		e *prefix.Entry
		t kv.Tier
	}
	coming := map[place]bool{}
	for id, f := range c.flights {
		from, to := kv.Device, kv.Host
		if f.why == loading {
			from, to = kv.Host, kv.Device
		}
		if f.entry.At[from].State != prefix.Here || !f.entry.Pinned(from) || f.entry.At[to].State != prefix.Coming {
			return fmt.Errorf("invariant 2: move %d has lost its source or its destination", id)
		}
		coming[place{f.entry, to}] = true
	}
	var err error
	c.index.Each(func(e *prefix.Entry) {
		for t := range kv.NumTiers {
			if e.At[t].State == prefix.Coming && !coming[place{e, t}] {
				err = fmt.Errorf("invariant 4: a block is coming to the %v tier without a move", t)
			}
		}
	})
	return err
}
