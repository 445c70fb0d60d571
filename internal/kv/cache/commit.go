package cache

import (
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/prefix"
)

// Commit says that KV of seq[:n] is written on the device, seq being the whole sequence so far, prompt and reply. Every
// block that is full now becomes known, so that others hit it before this sequence ends, and goes to the host as the
// write policy says. One more pass over the lease's blocks may be under way, behind the one that wrote these: so a block
// whose content is known already, and whose place the known one takes, is given back by the next Commit, Retire or Close.
func (l *Lease) Commit(seq []int32, n int) {
	c := l.c
	if l.closed || !l.Ready() || n < l.valid || n > len(seq) || c.cfg.Layout.Blocks(n) > len(l.blocks) {
		panic(fmt.Sprintf("kv/cache: commit of %d tokens: %d were valid, %d known, %d blocks held, %d on their way, closed %v",
			n, l.valid, len(seq), len(l.blocks), l.loads, l.closed))
	}
	l.valid = n
	l.Retire()
	if c.cfg.NoPrefix {
		return
	}
	toStore := l.use()
	for bt := c.cfg.Layout.BlockTokens; (l.named+1)*bt <= n; {
		e, known := l.publish(seq[l.named*bt : (l.named+1)*bt])
		if e == nil {
			break
		}
		c.index.Touch(e, known)
		if c.wantsStore(e, known) {
			toStore = append(toStore, e)
		}
	}
	if toStore = c.affordable(toStore); len(toStore) > 0 {
		c.store(toStore, storing)
	}
}

// affordable is what of the list may be stored now. The list is in
// the order of the tokens, so what is skipped is a tail: the host can serve what is stored.
func (c *Cache) affordable(list []*prefix.Entry) []*prefix.Entry {
	limit := c.cfg.MaxStoring
	if limit == 0 || c.storing+len(list) <= limit {
		return list
	}
	n := max(limit-c.storing, 0)
	c.stats[kv.Host].SkippedStores += uint64(len(list) - n)
	return list[:n]
}

// use counts the hit as used, once, and says what of it the host shall have now. A lease that is given back before it
// computed anything has used nothing: the scheduler may have tried in vain many times.
func (l *Lease) use() (toStore []*prefix.Entry) {
	if l.used {
		return nil
	}
	l.used = true
	for i, t := range l.hit {
		e := l.shared[i]
		l.c.stats[t].HitTokens += uint64(l.c.cfg.Layout.BlockTokens)
		l.c.index.Touch(e, true)
		if l.c.wantsStore(e, true) {
			toStore = append(toStore, e)
		}
	}
	return toStore
}

// wantsStore says whether the write policy wants e in the host, after its first use or one after that.
func (c *Cache) wantsStore(e *prefix.Entry, again bool) bool {
	if !c.hasHost() || e.Stay || e.At[kv.Host].State != prefix.Absent {
		return false
	}
	return c.cfg.Write == WriteThrough || c.cfg.Write == WriteThroughSelective && again
}

// publish makes the lease's first own block known as these tokens, or takes the known block of the same content
// instead. It returns nil when neither can be: a load of that content is under way, and what continues it must wait
// for it; or another content has its key. Then a later Commit tries again.
func (l *Lease) publish(tokens []int32) (e *prefix.Entry, known bool) {
	c := l.c
	var parent *prefix.Entry
	var key kv.Key
	if l.named > 0 {
		parent = l.shared[l.named-1]
		key = parent.Key.Child(tokens)
	} else {
		key = kv.RootKey(c.cfg.Fingerprint, l.salt).Child(tokens)
	}
	if e = c.index.Find(key, parent, tokens); e == nil {
		e = c.index.Add(key, parent, tokens)
	} else {
		known = true
	}
	if e == nil || e.At[kv.Device].State == prefix.Coming {
		return nil, false
	}
	own := l.blocks[l.named]
	if e.At[kv.Device].State == prefix.Absent {
		c.set(e, kv.Device, prefix.Place{Block: own, State: prefix.Here})
		c.pin(e, kv.Device)
	} else {
		c.pin(e, kv.Device)
		l.blocks[l.named] = e.At[kv.Device].Block
		l.old = append(l.old, own)
	}
	l.shared = append(l.shared, e)
	l.named++
	return e, known
}
