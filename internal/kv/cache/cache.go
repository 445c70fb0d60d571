// Package cache decides which block of which sequence lives in which tier. It is a pure state machine: it orders
// moves (kv.Move) and never touches a byte, a clock, a goroutine or a device. It refuses to know about requests,
// batches and scheduling.
//
// Start at Cache; Lease is one running sequence's hold on blocks. Which block goes when room is needed: evict.go, and
// prefix.Policy for the order. Invariant 2 lives here: a leased block is never a victim nor the target of another move.
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
	ErrNoRoom    = errors.New("kv cache: no room in the tier") // again after moves are done or a lease is closed
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
	Eviction     string // "lru" (default), "lfu" or "slru"; prefix.PolicyNamed has them all
	NoPrefix     bool   // nothing is reused between requests

	// MaxStoring bounds the device blocks that wait to be stored, because they cannot be evicted meanwhile. What the write
	// policy wants stored beyond that is not, until its next use. 0: no bound.
	MaxStoring int
}

// Validate reports what is wrong with the config.
func (c *Config) Validate() error {
	if err := c.Layout.Validate(); err != nil {
		return err
	}
	if c.DeviceBlocks < 1 || c.HostBlocks < 0 {
		return fmt.Errorf("kv cache: %d device blocks and %d host blocks", c.DeviceBlocks, c.HostBlocks)
	}
	if c.MaxStoring < 0 {
		return fmt.Errorf("kv cache: %d blocks may wait to be stored", c.MaxStoring)
	}
	if c.Write > WriteBack {
		return fmt.Errorf("kv cache: write policy %d is unknown", c.Write)
	}
	return nil
}

// Hit is how much of a prompt is cached, in tokens: first Device tokens on the device, then Host tokens that only the
// host has. Whole blocks, and never the whole prompt: at least its last token is left to compute.
type Hit struct{ Device, Host int }

// TierStats counts one tier. Leased blocks are used by leases or moves, cached ones hold reusable KV that nobody uses:
// Free + Leased + Cached = Total. The counters only grow, and count what has happened: a hit when its sequence has
// computed on it, a load or store when it is done.
type TierStats struct {
	Total, Free, Leased, Cached int
	HitTokens                   uint64 // tokens that sequences did not compute because this tier had them
	EvictedBlocks               uint64 // given up to make room
	DroppedBlocks               uint64 // contents of which this tier gave up the last copy, for whatever reason
	LoadedBlocks, StoredBlocks  uint64 // copied from here to the device; copied into here
	FailedLoads, FailedStores   uint64
	LateLoads                   uint64 // of the failed ones: dropped at their deadline
	SkippedStores               uint64 // not ordered, because too many waited
}

// Cache is the state of all tiers. For one goroutine.
type Cache struct {
	cfg   Config
	index *prefix.Index
	pools [kv.NumTiers]*pool.Pool
	stats [kv.NumTiers]TierStats
	names names

	leases  map[*Lease]struct{}
	flights map[kv.MoveID]*flight
	loads   map[*prefix.Entry]*flight // the flights that are loads
	orders  []kv.Move                 // not drained yet
	lastID  kv.MoveID
	saving  int // flights that save what shall leave the device
	storing int // flights that the write policy wanted
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
	c := &Cache{cfg: cfg, leases: map[*Lease]struct{}{}, flights: map[kv.MoveID]*flight{}, loads: map[*prefix.Entry]*flight{}}
	c.index = prefix.New(policy, c.writesBack())
	c.pools[kv.Device], c.pools[kv.Host] = pool.New(cfg.DeviceBlocks), pool.New(cfg.HostBlocks)
	return c, nil
}

func (c *Cache) hasHost() bool { return c.cfg.HostBlocks > 0 }

func (c *Cache) writesBack() bool { return c.hasHost() && c.cfg.Write == WriteBack }

// Lookup reports what a prompt would hit now. It pins nothing and changes no recency.
func (c *Cache) Lookup(salt string, tokens []int32) Hit {
	var h Hit
	for _, e := range c.match(salt, tokens, len(tokens)-1) {
		if e.At[kv.Device].State == prefix.Here {
			h.Device += c.cfg.Layout.BlockTokens
		} else { // a block on its way to the device counts for the host, where it still is
			h.Host += c.cfg.Layout.BlockTokens
		}
	}
	return h
}

// match finds the known blocks of tokens, whole ones within the first limit tokens, from the first on.
func (c *Cache) match(salt string, tokens []int32, limit int) []*prefix.Entry {
	n := c.cfg.Layout.BlockTokens
	if c.cfg.NoPrefix || limit < n {
		return nil
	}
	c.names.begin(c.cfg.Fingerprint, salt, tokens, n)
	found := make([]*prefix.Entry, 0, limit/n)
	var parent *prefix.Entry
	for at := 0; at+n <= limit; at += n {
		e := c.index.Find(c.names.key(at/n, tokens, n), parent, tokens[at:at+n])
		if e == nil || e.At[kv.Device].State == prefix.Absent && e.At[kv.Host].State != prefix.Here {
			break
		}
		found = append(found, e)
		parent = e
	}
	return found
}

// Room is how many device blocks Extend could get now: those free, and those that can be evicted without a store.
func (c *Cache) Room() int { return c.pools[kv.Device].Free() + c.index.Spare(kv.Device) }

// Stats counts every tier.
func (c *Cache) Stats() [kv.NumTiers]TierStats {
	out := c.stats
	for t := range kv.NumTiers {
		s, p := &out[t], c.pools[t]
		s.Total, s.Free, s.Leased, s.Cached = p.Total(), p.Free(), p.Leased(), p.Cached()
	}
	return out
}
