package cache

import (
	"fmt"
	"slices"

	"larder/internal/kv"
	"larder/internal/kv/pool"
	"larder/internal/kv/prefix"
)

// Check walks everything and names the invariant that is broken. It takes time in proportion to all there is.
func (c *Cache) Check() error {
	if err := c.index.Check(); err != nil {
		return err
	}
	if err := c.checkEntries(); err != nil {
		return err
	}
	for l := range c.leases {
		if err := c.checkLease(l); err != nil {
			return err
		}
	}
	if err := c.checkFlights(); err != nil {
		return err
	}
	for t := range kv.NumTiers {
		if err := c.checkTier(t); err != nil {
			return err
		}
	}
	return c.checkPins()
}

// checkEntries proves that what is known is somewhere.
func (c *Cache) checkEntries() (err error) {
	c.index.Each(func(e *prefix.Entry) {
		switch {
		case len(e.Tokens) != c.cfg.Layout.BlockTokens:
			err = fmt.Errorf("kv/cache: a block of %d tokens is known", len(e.Tokens))
		case e.At[kv.Device].State == prefix.Absent && e.At[kv.Host].State == prefix.Absent:
			err = fmt.Errorf("kv/cache: block %x is known but in no tier", e.Key)
		case e.At[kv.Device].State != prefix.Here && e.At[kv.Host].State != prefix.Here:
			err = fmt.Errorf("invariant 4: block %x is known but written in no tier", e.Key)
		}
	})
	return err
}

// checkLease proves that a lease holds what it says.
func (c *Cache) checkLease(l *Lease) error {
	switch bt := c.cfg.Layout.BlockTokens; {
	case l.closed || l.c != c:
		return fmt.Errorf("kv/cache: a closed lease is alive")
	case l.named != len(l.shared) || l.named > len(l.blocks) || len(l.hit) > l.named:
		return fmt.Errorf("kv/cache: a lease of %d blocks shares %d, %d are named and %d were hit", len(l.blocks), len(l.shared), l.named, len(l.hit))
	case l.valid > len(l.blocks)*bt || l.valid < l.named*bt:
		return fmt.Errorf("kv/cache: a lease of %d blocks, %d named, has %d valid tokens", len(l.blocks), l.named, l.valid)
	}
	loads := 0
	var parent *prefix.Entry
	for i, e := range l.shared {
		if e.Parent != parent {
			return fmt.Errorf("kv/cache: block %d of a lease does not continue the one before", i)
		}
		if at := e.At[kv.Device]; at.State == prefix.Absent || at.Block != l.blocks[i] {
			return fmt.Errorf("invariant 2: block %d of a lease is %d, but its content is in %v", i, l.blocks[i], at)
		}
		if f := c.loads[e]; f != nil {
			loads++
			if !slices.Contains(f.waiters, l) {
				return fmt.Errorf("kv/cache: a lease does not wait for the load of its block %d", i)
			}
		}
		parent = e
	}
	if loads != l.loads {
		return fmt.Errorf("kv/cache: a lease counts %d loads, %d are under way", l.loads, loads)
	}
	return nil
}

// checkFlights proves that every block on its way has one move, that a move's ends are held, and that nobody waits who
// is gone.
func (c *Cache) checkFlights() error {
	var coming, known [kv.NumTiers]int
	saves, stores := 0, 0
	for id, f := range c.flights {
		from, to := f.ends()
		if f.entry.At[from].State != prefix.Here || f.entry.Pins(from) == 0 || f.entry.At[to].State != prefix.Coming {
			return fmt.Errorf("invariant 2: move %d has lost its source or its destination", id)
		}
		coming[to]++
		switch f.why {
		case saving:
			saves++
		case storing:
			stores++
		}
		if (f.why == loading) != (c.loads[f.entry] == f) {
			return fmt.Errorf("kv/cache: move %d is not in the list of loads, or wrongly so", id)
		}
		for _, l := range f.waiters {
			if _, alive := c.leases[l]; !alive || !slices.Contains(l.shared, f.entry) {
				return fmt.Errorf("kv/cache: move %d is waited for by a lease that does not want it", id)
			}
		}
	}
	c.index.Each(func(e *prefix.Entry) {
		for t := range kv.NumTiers {
			if e.At[t].State == prefix.Coming {
				known[t]++
			}
		}
	})
	if known != coming || saves != c.saving || stores != c.storing || len(c.loads) != coming[kv.Device] {
		return fmt.Errorf("invariant 4: by tier %v blocks are coming, %v moves bring them; %d of %d save, %d of %d store, %d load",
			known, coming, c.saving, saves, c.storing, stores, len(c.loads))
	}
	return nil
}

// checkTier proves invariants 1 and 2 for one tier: every number is free or has one holder, and the pool knows whether
// that one is in use.
func (c *Cache) checkTier(t kv.Tier) (err error) {
	p := c.pools[t]
	if err := p.Check(); err != nil {
		return fmt.Errorf("%v tier: %w", t, err)
	}
	want := make([]pool.State, p.Total())
	hold := func(b kv.BlockID, s pool.State) {
		if want[b] != pool.Free {
			err = fmt.Errorf("invariant 2: %v block %d has two holders", t, b)
		}
		want[b] = s
	}
	c.index.Each(func(e *prefix.Entry) {
		switch at := e.At[t]; {
		case at.State == prefix.Here && e.Pins(t) == 0:
			hold(at.Block, pool.Cached)
		case at.State != prefix.Absent:
			hold(at.Block, pool.Leased)
		}
	})
	if t == kv.Device {
		for l := range c.leases {
			for _, b := range l.blocks[l.named:] {
				hold(b, pool.Leased)
			}
			for _, b := range l.old {
				hold(b, pool.Leased)
			}
		}
	}
	for b, s := range want {
		if got := p.State(kv.BlockID(b)); got != s && err == nil {
			err = fmt.Errorf("invariant 1: %v block %d is %v, should be %v", t, b, got, s)
		}
	}
	return err
}

// checkPins proves that every pin has its lease or move, so that none leaks.
func (c *Cache) checkPins() (err error) {
	type place struct {
		e *prefix.Entry
		t kv.Tier
	}
	pins := map[place]int{}
	for l := range c.leases {
		for _, e := range l.shared {
			pins[place{e, kv.Device}]++
		}
	}
	for _, f := range c.flights {
		from, _ := f.ends()
		pins[place{f.entry, from}]++
	}
	c.index.Each(func(e *prefix.Entry) {
		for t := range kv.NumTiers {
			if got, want := e.Pins(t), pins[place{e, t}]; got != want {
				err = fmt.Errorf("invariant 2: block %x of the %v tier is pinned %d times by %d holders", e.Key, t, got, want)
			}
		}
	})
	return err
}
