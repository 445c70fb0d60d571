// Package xfer carries out the moves that kv/cache orders, between the device's pool and the host's: it coalesces them
// into the fewest, largest copies, runs each direction on a stream of its own, and counts every byte. It holds no
// policy: what moves where was decided elsewhere.
//
// Start at Mover; plan.go is how moves become copies, way.go how a direction survives a failed copy. Invariant 8 lives
// here: bytes reported = bytes moved.
package xfer

import (
	"errors"
	"fmt"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// Config makes a Mover.
type Config struct {
	Layout               kv.Layout
	Memory               device.Memory
	DevicePool, HostPool device.Buffer

	// MaxPieceBytes bounds a single copy, so that one long run does not keep others waiting. 0: 64 MiB, where the
	// links that were measured are at full speed.
	MaxPieceBytes int64

	// Trace, when set, hears of each finished copy. It is called from Poll.
	Trace func(CopyRecord)
}

// CopyRecord is one finished copy. Times are on the device's clock; a copy that never started has none. Bytes are 0
// when it failed.
type CopyRecord struct {
	Tag        uint64 // of its Submit
	From, To   kv.Tier
	Bytes      int64
	Blocks     int
	Start, End time.Duration
	Err        error
}

// Stats counts what one direction has done since the start.
type Stats struct {
	Pieces        uint64        // copies handed over
	Moves, Failed uint64        // blocks that arrived, and that did not
	Bytes         uint64        // that arrived
	Busy          time.Duration // sum of the copies' durations, on the device's clock
	Submit        time.Duration // host time spent in handing copies over, both directions
}

// Mover runs moves. Its methods are for one goroutine, the engine's; copies run by themselves. Loads and stores have a
// stream each, so neither waits for the other's; they share the link, or on a CPU the cores.
type Mover struct {
	cfg    Config
	size   int64 // of a block
	ways   [kv.NumTiers]*way
	wake   chan struct{}
	closed bool
}

const defaultPieceBytes = 64 << 20

// New opens the two streams.
func New(cfg Config) (*Mover, error) {
	if err := cfg.Layout.Validate(); err != nil {
		return nil, err
	}
	if cfg.Memory == nil || cfg.DevicePool == nil || cfg.HostPool == nil {
		return nil, fmt.Errorf("kv/xfer: memory and both pools must be set")
	}
	if cfg.MaxPieceBytes < 0 {
		return nil, fmt.Errorf("kv/xfer: pieces of %d bytes", cfg.MaxPieceBytes)
	}
	if cfg.MaxPieceBytes == 0 {
		cfg.MaxPieceBytes = defaultPieceBytes
	}
	m := &Mover{cfg: cfg, size: cfg.Layout.BlockBytes(), wake: make(chan struct{}, 1)}
	for to, name := range []string{kv.Device: "kv load", kv.Host: "kv store"} {
		m.ways[to] = newWay(name, cfg.Memory)
		go m.ways[to].listen(m.ring)
	}
	for _, w := range m.ways {
		if err := w.open(); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// ring wakes whoever waits on Notify.
func (m *Mover) ring() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Submit starts moves. It queues copies and returns.
func (m *Mover) Submit(moves []kv.Move) { m.SubmitTagged(0, moves) }

// SubmitTagged is Submit with a number that Trace repeats.
func (m *Mover) SubmitTagged(tag uint64, moves []kv.Move) {
	if len(moves) == 0 {
		return
	}
	if m.closed {
		panic("kv/xfer: moves are submitted after Close")
	}
	began := time.Now()
	for _, p := range plan(moves, max(int(m.cfg.MaxPieceBytes/m.size), 1)) {
		if p.from == p.to || p.from >= kv.NumTiers || p.to >= kv.NumTiers {
			panic(fmt.Sprintf("kv/xfer: no way from %v to %v", p.from, p.to))
		}
		m.start(p, tag)
	}
	for _, w := range m.ways {
		w.watchFirst()
	}
	took := time.Since(began)
	m.ways[kv.Device].stats.Submit += took
	m.ways[kv.Host].stats.Submit += took
}

// start queues one copy, or notes why it cannot.
func (m *Mover) start(p piece, tag uint64) {
	w := m.ways[p.to]
	c := copying{piece: p, tag: tag}
	if c.err = w.open(); c.err != nil {
		m.ring()
	} else {
		c.lane = w.lane
		c.lane.open++
		c.start = c.lane.stream.Record()
		c.lane.stream.Copy(m.pool(p.to), int64(p.dst)*m.size, m.pool(p.from), int64(p.src)*m.size, int64(len(p.moves))*m.size)
		c.end = c.lane.stream.Record()
		w.stats.Pieces++
	}
	w.queue = append(w.queue, c)
}

func (m *Mover) pool(t kv.Tier) device.Buffer {
	if t == kv.Device {
		return m.cfg.DevicePool
	}
	return m.cfg.HostPool
}

// Poll reports every move that has ended since the last call, in the order of its direction, and returns how many. It
// does not wait. A copy that fails takes those behind it on its stream along; moves submitted after the failure was
// reported go over a new stream.
func (m *Mover) Poll(done func(kv.Move, error)) int {
	n := 0
	for _, w := range m.ways {
		for len(w.queue) > 0 && w.queue[0].ended() {
			c := w.queue[0]
			w.queue[0] = copying{} // its moves and events are garbage from here on
			w.queue = w.queue[1:]
			n += m.finish(w, &c, done)
		}
		w.watchFirst()
	}
	return n
}

// finish counts one ended copy and reports its moves.
func (m *Mover) finish(w *way, c *copying, done func(kv.Move, error)) int {
	n := len(c.moves)
	r := CopyRecord{Tag: c.tag, From: c.from, To: c.to, Blocks: n, Err: c.err}
	if c.lane != nil {
		r.Err = c.end.Wait()
		r.Start, r.End = c.start.Time(), c.end.Time()
		w.ended(c.lane, r.Err)
	}
	if r.Err != nil {
		w.stats.Failed += uint64(n)
	} else {
		r.Bytes = int64(n) * m.size
		w.stats.Moves += uint64(n)
		w.stats.Bytes += uint64(r.Bytes)
		w.stats.Busy += r.End - r.Start
	}
	if m.cfg.Trace != nil {
		m.cfg.Trace(r)
	}
	for _, mv := range c.moves {
		done(mv, r.Err)
	}
	return n
}

// Notify receives when Poll may have something to report.
func (m *Mover) Notify() <-chan struct{} { return m.wake }

// Pending counts moves that were submitted and not reported.
func (m *Mover) Pending() int {
	n := 0
	for _, w := range m.ways {
		for i := range w.queue {
			n += len(w.queue[i].moves)
		}
	}
	return n
}

// Stats counts the copies into a tier: those to the device are loads, those to the host stores.
func (m *Mover) Stats(to kv.Tier) Stats { return m.ways[to].stats }

// Close waits for what is queued and frees the streams. Poll still reports what it had not, with its errors, and Stats
// still counts it. Closing again does nothing.
func (m *Mover) Close() error {
	if m.closed {
		return nil
	}
	m.closed = true
	var errs []error
	for _, w := range m.ways {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}
