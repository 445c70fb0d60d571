package cache

import (
	"errors"
	"fmt"
	"slices"

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

// Place brings every whole block of tokens into a placement. What continues them leaves the tiers that they leave. What is
// placed in the device alone stays so: the write policy passes it by until it is placed elsewhere or leaves. It
// returns nil when all is so, ErrMoving while moves are under way, ErrNotCached when a block is in no tier, ErrInUse
// when a lease holds one, ErrNoRoom when the tier cannot hold them.
func (c *Cache) Place(salt string, tokens []int32, to Placement) error {
	all := len(tokens) / c.cfg.Layout.BlockTokens
	found := c.match(salt, tokens, len(tokens))
	if to == Nowhere {
		return c.placeNowhere(found)
	}
	if len(found) < all {
		if slices.ContainsFunc(found, moving) { // what fails to arrive may be what is missing
			return ErrMoving
		}
		return fmt.Errorf("%w: %d of %d blocks are known", ErrNotCached, len(found), all)
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
	if err := c.vacate(found, leave); err != nil {
		return err
	}
	for _, e := range found {
		e.Stay = to == OnlyDevice
	}
	return nil
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
		used = used || e.Pins(kv.Device) > 0 || e.Pins(kv.Host) > 0
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

// bring orders the moves that are missing for all of found to be in tier t: all of them, or none.
func (c *Cache) bring(found []*prefix.Entry, t kv.Tier) error {
	why := loading
	if t == kv.Host {
		why = storing
	}
	var missing []*prefix.Entry
	waiting := false
	for _, e := range found {
		for t := range kv.NumTiers { // none of them makes room for another
			c.pin(e, t)
		}
		waiting = waiting || e.At[t].State == prefix.Coming
		if e.At[t].State == prefix.Absent {
			missing = append(missing, e)
		}
	}
	ids, err := c.take(t, len(missing))
	for i := range ids {
		c.order(missing[i], why, ids[i])
	}
	for _, e := range slices.Backward(found) {
		for t := range kv.NumTiers {
			c.unpin(e, t)
		}
	}
	switch {
	case waiting, len(ids) > 0, err != nil && c.Pending() > 0:
		return ErrMoving
	}
	return err
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
		for _, k := range slices.Clone(e.Kids()) {
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
	if len(c.leases) > 0 || c.Pending() > 0 {
		return fmt.Errorf("%w: %d leases, %d moves", ErrInUse, len(c.leases), c.Pending())
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
