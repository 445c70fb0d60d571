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
