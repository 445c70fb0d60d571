package cache

import (
	"errors"
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// ErrMoving says that moves towards a placement are under way: ask again when they are done.
var ErrMoving = errors.New("kv cache: blocks are on their way")

// Placement is where a prefix shall live: in that tier and no other.
type Placement uint8

// The placements.
const (
	Nowhere Placement = iota
	OnlyDevice
	OnlyHost
)

// Place brings every whole block of tokens into a placement. What continues them leaves the tiers that they leave. It
// returns nil when all is so, ErrMoving while moves are under way, ErrNotCached when a block is in no tier, ErrInUse
// when a lease holds one, ErrNoRoom when the tier cannot hold them.
func (c *Cache) Place(salt string, tokens []int32, to Placement) error {
	all := c.cfg.Layout.BlockTokens
	found := c.match(salt, tokens, len(tokens))
	if to == Nowhere {
		return c.placeNowhere(found)
	}
	if len(found) < len(tokens)/all {
		for _, e := range found {
			if moving(e) {
				return ErrMoving
			}
		}
		return fmt.Errorf("%w: %d of %d blocks are known", ErrNotCached, len(found), len(tokens)/all)
	}
	keep, leave := kv.Device, kv.Host
	if to == OnlyHost {
		keep, leave = kv.Host, kv.Device
		if !c.hasHost() {
			return fmt.Errorf("%w: there is no host tier", ErrNoRoom)
		}
	}
	if err := c.bring(found, keep); err != nil {
		return err
	}
	return c.vacate(found, leave)
}

func moving(e *prefix.Entry) bool {
	return e.At[kv.Device].State == prefix.Coming || e.At[kv.Host].State == prefix.Coming
}

func (c *Cache) placeNowhere(found []*prefix.Entry) error {
	if len(found) == 0 {
		return nil
	}
	if err := idle(found[0]); err != nil {
		return err
	}
	for i := len(found) - 1; i >= 0; i-- {
		c.dropAll(found[i])
	}
	return nil
}

// idle says why e and what continues it cannot be taken away now.
func idle(e *prefix.Entry) error {
	var moves, used bool
	var walk func(*prefix.Entry)
	walk = func(e *prefix.Entry) {
		moves = moves || moving(e)
		used = used || e.Pinned(kv.Device) || e.Pinned(kv.Host)
		for _, k := range e.Kids() {
			walk(k)
		}
	}
	walk(e)
	switch {
	case moves:
		return ErrMoving
	case used:
		return ErrInUse
	}
	return nil
}

// bring orders the moves that are missing for all of found to be in tier t.
func (c *Cache) bring(found []*prefix.Entry, t kv.Tier) error {
	for _, e := range found { // none of them makes room for another
		c.index.Pin(e, kv.Device)
		c.index.Pin(e, kv.Host)
	}
	defer func() {
		for _, e := range found {
			c.index.Unpin(e, kv.Device)
			c.index.Unpin(e, kv.Host)
		}
	}()
	waiting := false
	for _, e := range found {
		switch e.At[t].State {
		case prefix.Here:
			continue
		case prefix.Coming:
			waiting = true
			continue
		}
		ids, err := c.take(t, 1)
		if err != nil {
			if waiting || c.Pending() > 0 {
				return ErrMoving
			}
			return ErrNoRoom
		}
		waiting = true
		if t == kv.Device {
			c.load(e, ids[0])
			continue
		}
		c.index.Set(e, kv.Host, prefix.Place{Block: ids[0], State: prefix.Coming})
		c.order(e, storing, kv.Device, kv.Host)
	}
	if waiting {
		return ErrMoving
	}
	return nil
}

// vacate takes found, which are all in the other tier, and what continues them, out of tier t.
func (c *Cache) vacate(found []*prefix.Entry, t kv.Tier) error {
	if len(found) == 0 {
		return nil
	}
	if err := idle(found[0]); err != nil {
		return err
	}
	var out func(e *prefix.Entry)
	out = func(e *prefix.Entry) {
		kids := append([]*prefix.Entry(nil), e.Kids()...)
		for _, k := range kids {
			out(k)
		}
		if e.At[t].State == prefix.Here {
			c.drop(e, t)
		}
	}
	out(found[0])
	return nil
}

// Residency counts the whole blocks of tokens by where they are.
func (c *Cache) Residency(salt string, tokens []int32) (device, host, both, missing int) {
	found := c.match(salt, tokens, len(tokens))
	for _, e := range found {
		d, h := e.At[kv.Device].State == prefix.Here, e.At[kv.Host].State == prefix.Here
		switch {
		case d && h:
			both++
		case d:
			device++
		case h:
			host++
		default:
			missing++
		}
	}
	return device, host, both, missing + len(tokens)/c.cfg.Layout.BlockTokens - len(found)
}

// Flush empties every tier. It fails with ErrInUse while a lease lives or a move is under way.
func (c *Cache) Flush() error {
	if c.leases > 0 || c.Pending() > 0 {
		return fmt.Errorf("%w: %d leases, %d moves", ErrInUse, c.leases, c.Pending())
	}
	var heads []*prefix.Entry
	c.index.Each(func(e *prefix.Entry) {
		if e.Parent == nil {
			heads = append(heads, e)
		}
	})
	for _, e := range heads {
		c.dropAll(e)
	}
	return nil
}
