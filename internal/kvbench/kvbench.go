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
	"larder/internal/kv/xfer"
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
	Scatter  bool             `json:"scatter"`   // blocks of a request in random order over the pool, a piece each
	Layered  bool             `json:"layered"`   // pools are [layer][block], not [block][layer]: each layer of a block is a piece
	Regions  int              `json:"regions"`   // requests that have host blocks of their own, the others share them; 0: all
	Method   xfer.Method      `json:"method"`    // of copying; auto chooses by Table
	Seed     uint64           `json:"seed"`
	Ceilings []device.Ceiling `json:"ceilings"` // measured on this machine in this run; for shares

	Table    *xfer.Table           `json:"-"` // what auto chooses by; nil: one copy for each piece
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
	if c.Regions < 0 {
		return fmt.Errorf("kvbench: host blocks for %d requests", c.Regions)
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

// HostBlocks: see DeviceBlocks. Where host memory is short, requests share what they load, and store over what those
// before them stored.
func (c *Config) HostBlocks() int { return (c.regions() + c.storeRegions()) * c.BlocksPerRequest() }

// PoolBytes is the memory that a run needs on the device and on the host.
func (c *Config) PoolBytes() (dev, host int64) {
	return int64(c.DeviceBlocks()) * c.Layout.BlockBytes(), int64(c.HostBlocks()) * c.Layout.BlockBytes()
}

// regions are the requests that load from blocks of their own.
func (c *Config) regions() int {
	if c.Regions == 0 {
		return c.Requests
	}
	return min(c.Regions, c.Requests)
}

// storeRegions are those that store to blocks of their own; where they are fewer than the requests, each slot has one,
// because two that store at once must not store to the same.
func (c *Config) storeRegions() int {
	if c.regions() == c.Requests {
		return c.Requests
	}
	return c.inFlight()
}

// unit is what is moved as a block: a block, or a layer of one.
func (c *Config) unit() kv.Layout {
	l := c.Layout
	if c.Layered {
		l.Layers = 1
	}
	return l
}

// units are those of a request and direction.
func (c *Config) units() int {
	if c.Layered {
		return c.BlocksPerRequest() * c.Layout.Layers
	}
	return c.BlocksPerRequest()
}

func (c *Config) inFlight() int { return min(c.InFlight, c.Requests) }

// span is one direction of one request. Times are on the device's clock.
type span struct {
	start, end time.Duration
	active     time.Duration // sum of the batches handed over
	batches    int
	bytes      int64
	pieces     int
}

func (s *span) add(c *xfer.CopyRecord) {
	if s.batches == 0 || c.Start < s.start {
		s.start = c.Start
	}
	s.end = max(s.end, c.End)
	s.active += c.End - c.Start
	s.bytes += c.Bytes
	s.pieces += c.Pieces
	s.batches++
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
	Pieces    int       `json:"pieces"`  // contiguous pieces in all batches

	HandOvers int            `json:"hand_overs"` // batches of pieces that the mover handed to its stream
	Methods   map[string]int `json:"methods"`    // of these, by method
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

// poolTouched is how much memory a direction reads and writes over and over.
func (c *Config) poolTouched(d Direction) int64 {
	blocks := 0
	if d&Load != 0 {
		blocks += c.regions() + c.inFlight()
	}
	if d&Store != 0 {
		blocks += c.storeRegions() + c.inFlight()
	}
	return int64(blocks*c.BlocksPerRequest()) * c.Layout.BlockBytes()
}
