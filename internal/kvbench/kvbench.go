// Package kvbench measures loading and storing the KV of whole requests between two tiers, over the very mover that
// the engine uses (kv/xfer). It knows no engine, no model and no cache; it refuses to print a bandwidth whose bytes
// it has not counted and compared.
//
// Start at Config and Run; metrics.go defines every figure.
package kvbench

import (
	"errors"
	"fmt"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// Direction says which way a phase moves.
type Direction uint8

// The directions. Load is host to device, Store is device to host.
const (
	Load Direction = 1 << iota
	Store
	Duplex = Load | Store
)

// String is the phase's name in reports.
func (d Direction) String() string {
	switch d {
	case Load:
		return "load alone"
	case Store:
		return "store alone"
	case Duplex:
		return "duplex"
	}
	return fmt.Sprintf("direction(%d)", uint8(d))
}

// MarshalText is the direction's name, for JSON.
func (d Direction) MarshalText() ([]byte, error) { return []byte(d.String()), nil }

// Config is one measurement.
type Config struct {
	Layout   kv.Layout        `json:"layout"`    // of one shard: layers, KV heads of the shard, block size
	Tokens   int              `json:"tokens"`    // per request and direction; whole blocks are moved
	Requests int              `json:"requests"`  // per batch
	InFlight int              `json:"in_flight"` // requests that move at once
	Batches  int              `json:"batches"`   // measured batches per phase
	Scatter  bool             `json:"scatter"`   // blocks of a request in random order over the pool, one copy each
	Seed     uint64           `json:"seed"`
	Ceilings []device.Ceiling `json:"ceilings"` // measured on this machine in this run; for shares

	Progress func(done, total int) `json:"-"` // after each batch; nil: none
}

// Validate reports what is wrong with the config.
func (c *Config) Validate() error {
	if err := c.Layout.Validate(); err != nil {
		return err
	}
	if c.Tokens < 1 || c.Requests < 1 || c.InFlight < 1 || c.Batches < 1 {
		return fmt.Errorf("kvbench: tokens, requests, in-flight and batches must be at least 1")
	}
	return nil
}

// BlocksPerRequest is the number of blocks that a request moves each way.
func (c *Config) BlocksPerRequest() int { return c.Layout.Blocks(c.Tokens) }

// BytesPerRequest is what a request moves each way.
func (c *Config) BytesPerRequest() int64 {
	return int64(c.BlocksPerRequest()) * c.Layout.BlockBytes()
}

// DeviceBlocks and HostBlocks are the pools that a run needs. A request loads from and stores to blocks of its own on
// the host; on the device it uses its in-flight slot's.
func (c *Config) DeviceBlocks() int { return 2 * c.inFlight() * c.BlocksPerRequest() }

// HostBlocks: see DeviceBlocks.
func (c *Config) HostBlocks() int { return 2 * c.Requests * c.BlocksPerRequest() }

func (c *Config) inFlight() int { return min(c.InFlight, c.Requests) }

// span is one direction of one request. Times are on the device's clock.
type span struct {
	start, end time.Duration
	active     time.Duration // sum of the single copies
	bytes      int64
	pieces     int
}

func (s *span) add(start, end time.Duration, bytes int64) {
	if s.pieces == 0 || start < s.start {
		s.start = start
	}
	s.end = max(s.end, end)
	s.active += end - start
	s.bytes += bytes
	s.pieces++
}

// request is what was seen of one request.
type request struct {
	load, store span
	submit      time.Duration // host time spent in Submit
}

// Phase is all that was measured of one direction.
type Phase struct {
	Direction Direction `json:"direction"`
	Metrics   []Metric  `json:"metrics"` // the document's ten where they exist for the direction, then ours
	Bytes     int64     `json:"bytes"`   // moved in all batches, as the mover counted
	Pieces    int       `json:"pieces"`  // copies issued in all batches
}

// Result is a whole run.
type Result struct {
	Config Config  `json:"config"`
	Phases []Phase `json:"phases"` // load alone, store alone, duplex
	Checks []Check `json:"checks"`
}

// Check is one identity that the run proved or not.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// ErrChecks is returned, with the result, when a check failed.
var ErrChecks = errors.New("kvbench: a check failed")
