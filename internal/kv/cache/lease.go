package cache

import (
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// Lease is one running sequence's hold on device blocks. The first of them are shared: they stand in the index and are
// pinned. The rest are its own until Commit publishes them.
type Lease struct {
	c      *Cache
	key    kv.Key          // of the last block that is named, or the root
	parent *prefix.Entry   // the entry of that block
	named  int             // blocks whose key is known: those that hold whole committed blocks
	shared []*prefix.Entry // by block; nil where the block is the lease's own. As long as blocks.
	blocks []kv.BlockID
	valid  int
	loads  int // outstanding
	hit    Hit
	closed bool
}

// Open starts a sequence: pins the longest hit, reserves device blocks for what of it only the host has (maxLoad
// tokens at most), and orders the loads. With ErrNoRoom nothing is held.
func (c *Cache) Open(salt string, tokens []int32, maxLoad int) (*Lease, error) {
	found := c.worthLoading(c.match(salt, tokens, len(tokens)-1), maxLoad)
	l := &Lease{c: c, key: kv.RootKey(c.cfg.Fingerprint, salt)}
	for _, e := range found {
		c.index.Pin(e, kv.Device)
		c.index.Pin(e, kv.Host)
	}
	missing := 0
	for _, e := range found {
		if e.At[kv.Device].State == prefix.Absent {
			missing++
		}
	}
	ids, err := c.take(kv.Device, missing)
	if err == nil {
		l.hit = c.hit(found)
		l.adopt(found, ids)
	}
	for _, e := range found {
		c.index.Unpin(e, kv.Host)
		if err != nil {
			c.index.Unpin(e, kv.Device)
		}
	}
	if err != nil {
		return nil, err
	}
	c.leases++
	c.stats[kv.Device].HitTokens += uint64(l.hit.Device)
	c.stats[kv.Host].HitTokens += uint64(l.hit.Host)
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

// adopt makes found the lease's first blocks and orders the loads into ids.
func (l *Lease) adopt(found []*prefix.Entry, ids []kv.BlockID) {
	c := l.c
	for _, e := range found {
		switch e.At[kv.Device].State {
		case prefix.Absent:
			f := c.load(e, ids[0])
			ids = ids[1:]
			f.waiters = append(f.waiters, l)
			l.loads++
		case prefix.Coming:
			f := c.loadOf(e)
			f.waiters = append(f.waiters, l)
			l.loads++
		}
		l.shared = append(l.shared, e)
		l.blocks = append(l.blocks, e.At[kv.Device].Block)
		l.key, l.parent = e.Key, e
		c.index.Touch(e, true)
		if c.cfg.Write == WriteThroughSelective && c.hasHost() && e.At[kv.Host].State == prefix.Absent {
			c.store(e, storing)
		}
	}
	l.named = len(found)
	l.valid = len(found) * c.cfg.Layout.BlockTokens
}

// loadOf finds the load under way of e.
func (c *Cache) loadOf(e *prefix.Entry) *flight {
	for _, f := range c.flights {
		if f.entry == e && f.why == loading {
			return f
		}
	}
	panic("kv/cache: a block is coming to the device without a load")
}

// lose gives up all blocks from e on, because e's load failed: they are no hit, and must be computed. The lease then
// owns fewer blocks than it did; Extend gets others.
func (l *Lease) lose(e *prefix.Entry) {
	if l.closed {
		return
	}
	for i, s := range l.shared {
		if s == e {
			n := l.c.cfg.Layout.BlockTokens
			for _, gone := range l.shared[i:] {
				if gone != nil {
					l.unhit(gone, n)
				}
			}
			l.truncate(i)
			return
		}
	}
}

// unhit takes one block out of what was granted.
func (l *Lease) unhit(e *prefix.Entry, n int) {
	if l.hit.Host >= n {
		l.hit.Host -= n
	} else {
		l.hit.Device -= n
	}
}

// truncate keeps the first n blocks.
func (l *Lease) truncate(n int) {
	for i := len(l.blocks) - 1; i >= n; i-- {
		if e := l.shared[i]; e != nil {
			l.leave(e)
			l.c.index.Unpin(e, kv.Device)
		} else {
			l.c.pools[kv.Device].Give(l.blocks[i])
			l.c.private--
		}
	}
	l.blocks, l.shared = l.blocks[:n], l.shared[:n]
	l.named = min(l.named, n)
	l.valid = min(l.valid, n*l.c.cfg.Layout.BlockTokens)
	l.parent = nil
	if n > 0 {
		l.parent = l.shared[n-1]
	}
	if l.parent != nil {
		l.key = l.parent.Key
	}
}

// leave stops waiting for e's load.
func (l *Lease) leave(e *prefix.Entry) {
	if e.At[kv.Device].State != prefix.Coming {
		return
	}
	for _, f := range l.c.flights {
		if f.entry != e || f.why != loading {
			continue
		}
		for i, w := range f.waiters {
			if w == l {
				f.waiters = append(f.waiters[:i:i], f.waiters[i+1:]...)
				l.loads--
				return
			}
		}
	}
}

// Hit is what was granted at Open, less what failed to load.
func (l *Lease) Hit() Hit { return l.hit }

// Ready says that no load of this lease is outstanding.
func (l *Lease) Ready() bool { return l.loads == 0 }

// Valid is how many tokens have their KV on the device; it means something when Ready.
func (l *Lease) Valid() int { return l.valid }

// Blocks are the device blocks in token order; valid until the next Extend, Commit or Close.
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
	l.shared = append(l.shared, make([]*prefix.Entry, more)...)
	l.c.private += more
	return nil
}

// Commit says that KV of seq[:n] is written on the device, seq being the whole sequence so far. Every block that is
// full now becomes known, and goes to the host as the write policy says.
func (l *Lease) Commit(seq []int32, n int) {
	if n < l.valid || n > len(seq) || l.c.cfg.Layout.Blocks(n) > len(l.blocks) {
		panic(fmt.Sprintf("kv/cache: commit of %d tokens; %d were valid, %d known, %d blocks held", n, l.valid, len(seq), len(l.blocks)))
	}
	l.valid = n
	if l.c.cfg.NoPrefix {
		return
	}
	bt := l.c.cfg.Layout.BlockTokens
	for ; (l.named+1)*bt <= n; l.named++ {
		tokens := seq[l.named*bt : (l.named+1)*bt]
		l.key = l.key.Child(tokens)
		if !l.publish(l.named, tokens) {
			return // an ancestor is unknown or its key is another's: from here on nothing can be named
		}
	}
}

// publish makes the lease's block i known, or takes the known block of the same content instead.
func (l *Lease) publish(i int, tokens []int32) bool {
	c := l.c
	if i > 0 && l.parent == nil {
		return false
	}
	e := c.index.Find(l.key, l.parent, tokens)
	if e == nil {
		if e = c.index.Add(l.key, l.parent, tokens); e == nil {
			l.parent = nil
			return false
		}
	}
	l.parent = e
	switch e.At[kv.Device].State {
	case prefix.Coming: // keep the own copy: the other one cannot be read yet, and what continues it would hang in the air
		l.parent = nil
		return false
	case prefix.Here:
		c.pools[kv.Device].Give(l.blocks[i])
		l.blocks[i] = e.At[kv.Device].Block
	case prefix.Absent:
		c.index.Set(e, kv.Device, prefix.Place{Block: l.blocks[i], State: prefix.Here})
	}
	c.private--
	c.index.Pin(e, kv.Device)
	l.shared[i] = e
	c.index.Touch(e, false)
	if c.cfg.Write == WriteThrough && c.hasHost() && e.At[kv.Host].State == prefix.Absent {
		c.store(e, storing)
	}
	return true
}

// Close gives everything back. What is published stays cached.
func (l *Lease) Close() {
	if l.closed {
		return
	}
	for _, e := range l.shared {
		if e != nil {
			l.c.index.Touch(e, false)
		}
	}
	l.truncate(0)
	l.closed = true
	l.c.leases--
}
