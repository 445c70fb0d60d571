// Package xfer carries out the moves that kv/cache orders, between the device's pool and the host's: it coalesces them
// into the fewest, largest copies, runs each direction on a stream of its own, and counts every byte. It holds no
// policy: what moves where was decided elsewhere.
//
// Start at Mover; plan.go is how moves become copies. Invariant 8 lives here: bytes reported = bytes moved.
package xfer

import (
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

// CopyRecord is one finished copy. Times are on the device's clock.
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
	Moves, Pieces, Failed uint64
	Bytes                 uint64
	Busy                  time.Duration // sum of the copies' durations
	Submit                time.Duration // host time spent in handing copies over, both directions
}

// Mover runs moves. Its methods are for one goroutine, the engine's; copies run by themselves.
type Mover struct {
	cfg  Config
	size int64 // of a block
	ways [kv.NumTiers]*way
	wake chan struct{}
}

// way is one direction: the tier that it copies to names it.
type way struct {
	stream device.Stream
	queue  []copying // in the order of the stream
	stats  Stats
	watch  chan device.Event
	missed bool // an event found the watch full: Poll, which an earlier event wakes, hands one over again
}

// await makes e's end wake whoever waits on Notify.
func (w *way) await(e device.Event) {
	select {
	case w.watch <- e:
		w.missed = false
	default:
		w.missed = true
	}
}

// copying is a piece on a stream.
type copying struct {
	piece
	tag        uint64
	start, end device.Event
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
	if cfg.MaxPieceBytes == 0 {
		cfg.MaxPieceBytes = defaultPieceBytes
	}
	m := &Mover{cfg: cfg, size: cfg.Layout.BlockBytes(), wake: make(chan struct{}, 1)}
	for to, name := range []string{kv.Device: "kv load", kv.Host: "kv store"} {
		s, err := cfg.Memory.NewStream(name)
		if err != nil {
			m.Close()
			return nil, fmt.Errorf("stream for %s: %w", name, err)
		}
		w := &way{stream: s, watch: make(chan device.Event, 1024)}
		m.ways[to] = w
		go m.listen(w.watch)
	}
	return m, nil
}

// listen turns finished events into a wake-up of whoever waits on Notify.
func (m *Mover) listen(events <-chan device.Event) {
	for e := range events {
		_ = e.Wait() // Poll reports the error with its moves
		select {
		case m.wake <- struct{}{}:
		default:
		}
	}
}

// Submit starts moves. It queues copies and returns.
func (m *Mover) Submit(moves []kv.Move) { m.SubmitTagged(0, moves) }

// SubmitTagged is Submit with a number that Trace repeats.
func (m *Mover) SubmitTagged(tag uint64, moves []kv.Move) {
	if len(moves) == 0 {
		return
	}
	began := time.Now()
	for _, p := range plan(moves, max(int(m.cfg.MaxPieceBytes/m.size), 1)) {
		w := m.ways[p.to]
		if w == nil || p.from == p.to {
			panic(fmt.Sprintf("kv/xfer: no way from %v to %v", p.from, p.to))
		}
		c := copying{piece: p, tag: tag, start: w.stream.Record()}
		n := int64(len(p.moves)) * m.size
		w.stream.Copy(m.pool(p.to), int64(p.dst)*m.size, m.pool(p.from), int64(p.src)*m.size, n)
		c.end = w.stream.Record()
		w.queue = append(w.queue, c)
		w.stats.Pieces++
		w.await(c.end)
	}
	took := time.Since(began)
	m.ways[kv.Device].stats.Submit += took
	m.ways[kv.Host].stats.Submit += took
}

func (m *Mover) pool(t kv.Tier) device.Buffer {
	if t == kv.Device {
		return m.cfg.DevicePool
	}
	return m.cfg.HostPool
}

// Poll reports every move that has ended since the last call, in the order of its stream, and returns how many. It
// does not wait.
func (m *Mover) Poll(done func(kv.Move, error)) int {
	n := 0
	for _, w := range m.ways {
		for len(w.queue) > 0 && w.queue[0].end.Done() {
			c := w.queue[0]
			w.queue = w.queue[1:]
			n += m.finish(w, &c, done)
		}
		if w.missed && len(w.queue) > 0 {
			w.await(w.queue[0].end)
		}
	}
	return n
}

// finish counts one ended copy and reports its moves.
func (m *Mover) finish(w *way, c *copying, done func(kv.Move, error)) int {
	err := c.end.Wait()
	n := len(c.moves)
	r := CopyRecord{Tag: c.tag, From: c.from, To: c.to, Bytes: int64(n) * m.size, Blocks: n, Start: c.start.Time(), End: c.end.Time(), Err: err}
	if err != nil {
		w.stats.Failed += uint64(n)
		r.Bytes = 0
	} else {
		w.stats.Moves += uint64(n)
		w.stats.Bytes += uint64(r.Bytes)
	}
	w.stats.Busy += r.End - r.Start
	if m.cfg.Trace != nil {
		m.cfg.Trace(r)
	}
	for _, mv := range c.moves {
		done(mv, err)
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

// Close waits for what is queued and frees the streams.
func (m *Mover) Close() error {
	var first error
	for i, w := range m.ways {
		if w == nil {
			continue
		}
		if err := w.stream.Close(); err != nil && first == nil {
			first = err
		}
		close(w.watch)
		m.ways[i] = nil
	}
	return first
}
