// Package cache decides which block of which sequence lives in which tier. It is a pure state machine: it orders
// moves (kv.Move) and never touches a byte, a clock, a goroutine or a device. It refuses to know about requests,
// batches and scheduling.
//
// Start at Cache; Lease is one running sequence's hold on blocks.
package cache

import (
	"errors"
	"fmt"

	"larder/internal/kv"
	"larder/internal/kv/pool"
	"larder/internal/kv/prefix"
)

// Errors of the cache. After any of them nothing has changed, but moves may have been ordered that make room.
var (
	ErrNoRoom    = errors.New("kv cache: no room in the tier") // try again after moves are done or a lease closed
	ErrNotCached = errors.New("kv cache: prefix in no tier")
	ErrInUse     = errors.New("kv cache: blocks in use")
)

// WritePolicy says when a block is copied to the host tier.
type WritePolicy uint8

// The write policies, as SGLang names them.
const (
	WriteThrough          WritePolicy = iota // as soon as the block is full and written
	WriteThroughSelective                    // at the block's second use
	WriteBack                                // when the device tier evicts it
)

// Config sizes the cache. HostBlocks 0 means no host tier.
type Config struct {
	Layout       kv.Layout
	Fingerprint  string // model, weights, layout and dtype; part of every key
	DeviceBlocks int
	HostBlocks   int
	Write        WritePolicy
	Eviction     string // "lru" (default), "lfu" or "slru"
	NoPrefix     bool   // nothing is reused between requests
}

// Validate reports what is wrong with the config.
func (c *Config) Validate() error {
	if err := c.Layout.Validate(); err != nil {
		return err
	}
	if c.DeviceBlocks < 1 || c.HostBlocks < 0 {
		return fmt.Errorf("kv cache: %d device blocks and %d host blocks", c.DeviceBlocks, c.HostBlocks)
	}
	return nil
}

// Hit is how much of a prompt is cached, in tokens: first Device tokens on the device, then Host tokens that only the
// host has. Whole blocks, and never the whole prompt: at least its last token is left to compute.
type Hit struct{ Device, Host int }

// TierStats counts one tier. Leased blocks are used by leases or moves, cached ones hold reusable KV that nobody uses:
// Free + Leased + Cached = Total.
type TierStats struct {
	Total, Free, Leased, Cached  int
	HitTokens                    uint64
	EvictedBlocks, DroppedBlocks uint64 // evicted: to make room; dropped: the content is in no tier any more
	LoadedBlocks, StoredBlocks   uint64 // copied from here to the device; copied into here
	FailedLoads, FailedStores    uint64
}

// Cache is the state of all tiers. For one goroutine.
type Cache struct {
	cfg   Config
	index *prefix.Index
	pools [kv.NumTiers]*pool.Pool
	stats [kv.NumTiers]TierStats

	flights map[kv.MoveID]*flight
	orders  []kv.Move // not drained yet
	lastID  kv.MoveID
	leases  int
	leaving int // stores under way whose device block comes free when they are done
	private int // device blocks of leases that are not in the index
}

// New is an empty cache.
func New(cfg Config) (*Cache, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	policy, err := prefix.PolicyNamed(cfg.Eviction)
	if err != nil {
		return nil, err
	}
	c := &Cache{cfg: cfg, index: prefix.New(policy), flights: map[kv.MoveID]*flight{}}
	c.pools[kv.Device], c.pools[kv.Host] = pool.New(cfg.DeviceBlocks), pool.New(cfg.HostBlocks)
	return c, nil
}

// Lookup reports what a prompt would hit now. It pins nothing and changes no recency.
func (c *Cache) Lookup(salt string, tokens []int32) Hit {
	return c.hit(c.match(salt, tokens, len(tokens)-1))
}

// match finds the known blocks of tokens, whole ones within the first limit tokens, that are in some tier.
func (c *Cache) match(salt string, tokens []int32, limit int) []*prefix.Entry {
	if c.cfg.NoPrefix {
		return nil
	}
	var found []*prefix.Entry
	var parent *prefix.Entry
	key := kv.RootKey(c.cfg.Fingerprint, salt)
	n := c.cfg.Layout.BlockTokens
	for at := 0; at+n <= limit; at += n {
		key = key.Child(tokens[at : at+n])
		e := c.index.Find(key, parent, tokens[at:at+n])
		if e == nil || e.At[kv.Device].State == prefix.Absent && e.At[kv.Host].State != prefix.Here {
			break
		}
		found = append(found, e)
		parent = e
	}
	return found
}

// hit counts a match by tier. A block on its way to the device counts for the host, where it still is.
func (c *Cache) hit(found []*prefix.Entry) Hit {
	var h Hit
	for _, e := range found {
		if e.At[kv.Device].State == prefix.Here {
			h.Device += c.cfg.Layout.BlockTokens
		} else {
			h.Host += c.cfg.Layout.BlockTokens
		}
	}
	return h
}

// Room is how many device blocks Extend could get now: those free, and those idle that need no store first.
func (c *Cache) Room() int {
	if !c.writesBack() {
		return c.pools[kv.Device].Free() + c.index.Idle(kv.Device)
	}
	clean := 0
	c.index.Each(func(e *prefix.Entry) {
		if e.At[kv.Device].State == prefix.Here && !e.Pinned(kv.Device) && e.At[kv.Host].State == prefix.Here {
			clean++
		}
	})
	return c.pools[kv.Device].Free() + clean
}

func (c *Cache) hasHost() bool { return c.cfg.HostBlocks > 0 }

func (c *Cache) writesBack() bool { return c.hasHost() && c.cfg.Write == WriteBack }
