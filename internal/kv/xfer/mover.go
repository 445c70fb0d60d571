// Package xfer carries out the moves that kv/cache orders, between the device's pool and the host's: it coalesces them
// into the fewest, largest pieces, hands pieces over in batches, runs each direction on a stream of its own, and counts
// every byte. It holds no policy: what moves where was decided elsewhere.
//
// Start at Mover; plan.go is how moves become pieces and batches, table.go which kind of copy a batch is, way.go the
// life of a batch and how a direction survives a failed one. Invariant 8 lives here: bytes reported = bytes moved.
package xfer

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// Config makes a Mover.
type Config struct {
	Layout               kv.Layout
	Memory               device.Memory
	DevicePool, HostPool device.Buffer

	// MaxPieceBytes bounds a single piece. 0: none but the batch's.
	MaxPieceBytes int64
	// BatchBytes is how much is handed over at once, with one point behind it. 0: 16 MiB, a third of a millisecond of
	// the links that were measured: large against the cost of a point, small against a request.
	BatchBytes int64
	// WindowBytes is how much of a direction may be on its stream at once; the rest waits here, where it can still be
	// dropped. 0: four batches: when one ends, those behind it last until the next is handed over.
	WindowBytes int64

	Method Method // Auto, or one for all batches
	Table  *Table // what Auto chooses by; nil: one copy for each piece

	// StoreShare bounds what stores may take from loads: while loads wait, stores get at most this share of the loads'
	// bytes. 0: no bound.
	StoreShare float64

	// A load that is not on the stream after LateAfter and LateTimes the time that all before it and itself take at the
	// bandwidth measured so far is reported with kv.ErrLate and not carried out. LateAfter 0: loads have no deadline.
	LateAfter time.Duration
	LateTimes float64

	// Trace, when set, hears of each finished batch. It is called from Poll.
	Trace func(CopyRecord)
}

// CopyRecord is one finished batch. Times are on the device's clock; a batch that never started has none. Bytes are 0
// when it failed.
type CopyRecord struct {
	Tag        uint64 // of its Submit
	From, To   kv.Tier
	Bytes      int64
	Blocks     int
	Pieces     int // contiguous ones
	Method     Method
	Start, End time.Duration
	Err        error
}

// Stats counts what one direction has done since the start.
type Stats struct {
	Batches, Pieces uint64        // handed over
	Moves, Failed   uint64        // blocks that arrived, and that did not
	Late            uint64        // of those that did not: dropped at their deadline
	Bytes           uint64        // that arrived
	Busy            time.Duration // sum of the batches' durations, on the device's clock
	HandOver        time.Duration // time of a goroutine of ours spent in planning and handing batches over
}

// Mover runs moves. Its methods are for one goroutine, the engine's; planning, handing over and waiting are done by
// goroutines of its own. Loads and stores have a stream each, so neither waits behind the other's; they share the link,
// or on a CPU the cores.
type Mover struct {
	cfg     Config
	size    int64 // of a block
	wake    chan struct{}
	pending int // moves that were submitted and not reported

	mu      sync.Mutex
	closed  bool
	ways    [kv.NumTiers]*way
	serving struct { // since loads last began to wait
		loads, stores int64 // bytes on their streams
	}
}

const defaultBatchBytes = 16 << 20

// New opens the two streams.
func New(cfg Config) (*Mover, error) {
	if err := cfg.settle(); err != nil {
		return nil, err
	}
	m := &Mover{cfg: cfg, size: cfg.Layout.BlockBytes(), wake: make(chan struct{}, 1)}
	for to, name := range []string{kv.Device: "kv load", kv.Host: "kv store"} {
		m.ways[to] = newWay(m, name, kv.Tier(to))
	}
	for _, w := range m.ways {
		if err := w.open(); err != nil {
			m.Close()
			return nil, err
		}
	}
	return m, nil
}

// settle checks the config and puts the defaults in.
func (c *Config) settle() error {
	if err := c.Layout.Validate(); err != nil {
		return err
	}
	if c.Memory == nil || c.DevicePool == nil || c.HostPool == nil {
		return fmt.Errorf("kv/xfer: memory and both pools must be set")
	}
	if c.MaxPieceBytes < 0 || c.BatchBytes < 0 || c.WindowBytes < 0 {
		return fmt.Errorf("kv/xfer: pieces of %d, batches of %d, a window of %d bytes", c.MaxPieceBytes, c.BatchBytes, c.WindowBytes)
	}
	if c.StoreShare < 0 || c.LateAfter < 0 || c.LateAfter > 0 && c.LateTimes < 1 {
		return fmt.Errorf("kv/xfer: stores at %v of loads, loads late after %v and %v times their time", c.StoreShare, c.LateAfter, c.LateTimes)
	}
	if c.BatchBytes == 0 {
		c.BatchBytes = defaultBatchBytes
	}
	if c.MaxPieceBytes == 0 {
		c.MaxPieceBytes = c.BatchBytes
	}
	if c.WindowBytes == 0 {
		c.WindowBytes = 4 * c.BatchBytes
	}
	return nil
}

// ring wakes whoever waits on Notify.
func (m *Mover) ring() {
	select {
	case m.wake <- struct{}{}:
	default:
	}
}

// Submit starts moves. It notes the list, which is the mover's from then on, and returns.
func (m *Mover) Submit(moves []kv.Move) { m.SubmitTagged(0, moves) }

// SubmitTagged is Submit with a number that Trace repeats.
func (m *Mover) SubmitTagged(tag uint64, moves []kv.Move) {
	if len(moves) == 0 {
		return
	}
	var counts [kv.NumTiers]int
	for i := range moves {
		v := &moves[i]
		if v.From == v.To || v.From >= kv.NumTiers || v.To >= kv.NumTiers {
			panic(fmt.Sprintf("kv/xfer: no way from %v to %v", v.From, v.To))
		}
		counts[v.To]++
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.closed {
		panic("kv/xfer: moves are submitted after Close")
	}
	m.pending += len(moves)
	for to, n := range counts {
		if n > 0 {
			m.ways[to].take(tag, moves, n)
		}
	}
}

func (m *Mover) pool(t kv.Tier) device.Buffer {
	if t == kv.Device {
		return m.cfg.DevicePool
	}
	return m.cfg.HostPool
}

// Landing is the event behind a load that is on its stream and not reported yet. ok is false for one that waits to be
// handed over; Notify rings when a Submit's loads have been handed over to their end. Many loads share an event.
func (m *Mover) Landing(id kv.MoveID) (e device.Event, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, list := range [][]*batch{m.ways[kv.Device].flying, m.ways[kv.Device].ended} {
		for _, b := range list {
			if b.end != nil && slices.ContainsFunc(b.moves, func(m kv.Move) bool { return m.ID == id }) {
				return b.end, true
			}
		}
	}
	return nil, false
}

// Poll reports every move that has ended since the last call, in the order of its direction, and returns how many. It
// does not wait. A batch that fails takes those behind it on its stream along; what is not on the stream yet goes over
// a new one.
func (m *Mover) Poll(done func(kv.Move, error)) int {
	n := 0
	for _, w := range m.ways {
		for _, b := range w.reportable() {
			if m.cfg.Trace != nil {
				m.cfg.Trace(b.record(m.size))
			}
			for _, mv := range b.moves {
				done(mv, b.err)
			}
			n += len(b.moves)
		}
	}
	m.pending -= n
	return n
}

// Notify receives when Poll may have something to report, or Landing something to tell.
func (m *Mover) Notify() <-chan struct{} { return m.wake }

// Pending counts moves that were submitted and not reported.
func (m *Mover) Pending() int { return m.pending }

// Stats counts the copies into a tier: those to the device are loads, those to the host stores. What ended counts from
// when Poll reports it.
func (m *Mover) Stats(to kv.Tier) Stats {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.ways[to].stats
}

// Close waits for all that was submitted and frees the streams. Poll still reports what it had not, with its errors,
// and Stats still counts it. Closing again does nothing.
func (m *Mover) Close() error {
	m.mu.Lock()
	again := m.closed
	m.closed = true
	for _, w := range m.ways {
		w.news.Broadcast()
	}
	m.mu.Unlock()
	if again {
		return nil
	}
	var errs []error
	for _, w := range m.ways {
		errs = append(errs, w.close())
	}
	return errors.Join(errs...)
}
