package cache

import (
	"slices"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// Lease is one running sequence's hold on device blocks. The first of them are shared: they stand in the index and are
// pinned. The rest are its own until Commit publishes them.
type Lease struct {
	c      *Cache
	salt   string
	named  int             // blocks that are shared; those from here on are its own
	shared []*prefix.Entry // of the first named blocks
	blocks []kv.BlockID
	old    []kv.BlockID // its own that known ones took the place of; a pass that was queued before may read them
	valid  int
	loads  int       // outstanding
	hit    []kv.Tier // of each block that was granted by Open: which tier had it
	used   bool      // computed on
	closed bool
}

// Open starts a sequence: pins the longest hit, reserves device blocks for what of it only the host has (maxLoad
// tokens at most), and orders the loads. If another lease waits for the same block, one load serves both. With
// ErrNoRoom nothing is held.
func (c *Cache) Open(salt string, tokens []int32, maxLoad int) (*Lease, error) {
	found := c.worthLoading(c.match(salt, tokens, len(tokens)-1), maxLoad)
	var missing []*prefix.Entry
	for _, e := range found {
		c.pin(e, kv.Device)
		if e.At[kv.Device].State == prefix.Absent {
			c.pin(e, kv.Host) // so that making room cannot take it
			missing = append(missing, e)
		}
	}
	ids, err := c.take(kv.Device, len(missing))
	l := &Lease{c: c, salt: salt}
	if err == nil {
		l.adopt(found, ids)
	}
	for _, e := range missing {
		c.unpin(e, kv.Host)
	}
	if err != nil {
		for _, e := range slices.Backward(found) {
			c.unpin(e, kv.Device)
		}
		return nil, err
	}
	c.leases[l] = struct{}{}
	return l, nil
}

// worthLoading cuts a match where loading would exceed the bound.
func (c *Cache) worthLoading(found []*prefix.Entry, maxLoad int) []*prefix.Entry {
	left := maxLoad / c.cfg.Layout.BlockTokens
	for i, e := range found {
		if e.At[kv.Device].State != prefix.Here {
			if left--; left < 0 {
				return found[:i]
			}
		}
	}
	return found
}

// adopt makes found, which is pinned, the lease's first blocks and orders the loads into ids.
func (l *Lease) adopt(found []*prefix.Entry, ids []kv.BlockID) {
	l.shared = found
	l.named = len(found)
	l.valid = len(found) * l.c.cfg.Layout.BlockTokens
	l.blocks = make([]kv.BlockID, 0, len(found)+1)
	l.hit = make([]kv.Tier, 0, len(found))
	for _, e := range found {
		tier := kv.Device
		if e.At[kv.Device].State != prefix.Here {
			tier = kv.Host
			f := l.c.loads[e]
			if f == nil {
				f = l.c.order(e, loading, ids[0])
				ids = ids[1:]
			}
			f.waiters = append(f.waiters, l)
			l.loads++
		}
		l.hit = append(l.hit, tier)
		l.blocks = append(l.blocks, e.At[kv.Device].Block)
	}
}

// lose gives up all blocks from e on, because e's load failed: they are no hit, and must be computed. The lease then
// owns fewer blocks than it did; Extend gets others.
func (l *Lease) lose(e *prefix.Entry) {
	if i := slices.Index(l.shared, e); i >= 0 {
		l.truncate(i)
	}
}

// truncate keeps the first n blocks.
func (l *Lease) truncate(n int) {
	for i := len(l.blocks) - 1; i >= n; i-- {
		if i >= l.named {
			l.c.pools[kv.Device].Give(l.blocks[i])
			continue
		}
		l.leave(l.shared[i])
		l.c.unpin(l.shared[i], kv.Device)
	}
	l.blocks = l.blocks[:n]
	l.named = min(l.named, n)
	l.shared = l.shared[:l.named]
	l.hit = l.hit[:min(len(l.hit), n)]
	l.valid = min(l.valid, n*l.c.cfg.Layout.BlockTokens)
}

// leave stops waiting for e's load.
func (l *Lease) leave(e *prefix.Entry) {
	f := l.c.loads[e]
	if f == nil {
		return
	}
	if i := slices.Index(f.waiters, l); i >= 0 {
		f.waiters = slices.Delete(f.waiters, i, i+1)
		l.loads--
	}
}

// Hit is what was granted at Open, less what failed to load.
func (l *Lease) Hit() Hit {
	var n [kv.NumTiers]int
	for _, t := range l.hit {
		n[t] += l.c.cfg.Layout.BlockTokens
	}
	return Hit{Device: n[kv.Device], Host: n[kv.Host]}
}

// Ready says that no load of this lease is outstanding.
func (l *Lease) Ready() bool { return l.loads == 0 }

// Valid is how many tokens have their KV on the device; it means something when Ready.
func (l *Lease) Valid() int { return l.valid }

// Blocks are the device blocks in token order; valid until the next Extend, Commit or Close, and, while the lease is
// not Ready, Done. The caller must not change them.
func (l *Lease) Blocks() []kv.BlockID { return l.blocks }

// Extend owns device blocks for tokens [0, n). ErrNoRoom changes nothing of the lease.
func (l *Lease) Extend(n int) error {
	if l.closed {
		panic("kv/cache: a closed lease is extended")
	}
	more := l.c.cfg.Layout.Blocks(n) - len(l.blocks)
	if more <= 0 {
		return nil
	}
	ids, err := l.c.take(kv.Device, more)
	if err != nil {
		return err
	}
	l.blocks = append(l.blocks, ids...)
	return nil
}

// Retire gives back the blocks whose place known ones took. No pass that was queued before the last Commit may be
// under way.
func (l *Lease) Retire() {
	for _, b := range l.old {
		l.c.pools[kv.Device].Give(b)
	}
	l.old = l.old[:0]
}

// Close gives everything back. What is published stays cached; loads that are under way go on, and what they bring is
// cached. No pass over the lease's blocks may be under way. Closing again does nothing.
func (l *Lease) Close() {
	if l.closed {
		return
	}
	if l.used {
		for _, e := range l.shared {
			l.c.index.Touch(e, false)
		}
	}
	l.Retire()
	l.truncate(0)
	l.closed = true
	delete(l.c.leases, l)
}
