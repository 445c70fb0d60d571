package xfer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
)

// way is one direction. Two goroutines serve it: feed plans what was submitted and puts batches on the stream, as many
// as the window holds; listen waits for their ends. Everything here is under the mover's lock, but for what a batch
// holds, which belongs to one of the two at a time.
type way struct {
	m    *Mover
	name string
	to   kv.Tier
	news sync.Cond // anything below has changed

	orders  []order  // submitted, not planned
	ready   []*batch // planned, not on the stream
	flying  []*batch // on the stream
	ended   []*batch // not reported
	fed     bool     // feed has gone
	backlog int64    // bytes submitted and not ended
	onLink  int64    // of these, bytes on the stream
	stats   Stats
	rate    float64 // bytes a second of late, 0: not known
	alarm   *time.Timer

	lane *lane   // where the next batch goes; nil: the last one failed, or there never was one
	old  []*lane // failed, with batches that have not ended
	gone sync.WaitGroup
}

// order is a Submit; those of its moves that go the other way are not this direction's.
type order struct {
	tag      uint64
	moves    []kv.Move
	to       kv.Tier
	count    int       // of them that go this way
	deadline time.Time // zero: none
}

// lane is a stream. An error on it sticks, so after one it is used no more.
type lane struct {
	stream device.Stream
	open   int    // batches that have not ended
	last   *batch // the newest on it
}

func newWay(m *Mover, name string, to kv.Tier) *way {
	w := &way{m: m, name: name, to: to}
	w.news.L = &m.mu
	w.gone.Go(w.feed)
	w.gone.Go(w.listen)
	return w
}

// take notes a Submit. The lock is held.
func (w *way) take(tag uint64, moves []kv.Move, count int) {
	bytes := int64(count) * w.m.size
	if w.to == kv.Device && w.backlog == 0 {
		w.m.serving.loads, w.m.serving.stores = 0, 0
	}
	w.backlog += bytes
	o := order{tag: tag, moves: moves, to: w.to, count: count}
	if c := &w.m.cfg; w.to == kv.Device && c.LateAfter > 0 && w.rate > 0 {
		o.deadline = time.Now().Add(c.LateAfter + time.Duration(c.LateTimes*float64(w.backlog)/w.rate*1e9))
	}
	w.orders = append(w.orders, o)
	w.news.Broadcast()
}

// feed puts batches on the stream until the mover is closed and nothing is left.
func (w *way) feed() {
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case len(w.ready) == 0 && len(w.orders) > 0:
			w.plan()
		case len(w.ready) == 0 && m.closed:
			w.fed = true
			w.news.Broadcast()
			return
		case len(w.ready) == 0:
			w.news.Wait()
		case w.late():
			w.drop()
		case w.mustWait():
			w.news.Wait()
		default:
			w.next()
		}
	}
}

// plan turns the oldest order into batches.
func (w *way) plan() {
	o := w.orders[0]
	w.orders = w.orders[1:]
	w.m.mu.Unlock()
	began := time.Now()
	list := w.m.batches(o)
	took := time.Since(began)
	w.m.mu.Lock()
	w.stats.HandOver += took
	w.ready = append(w.ready, list...)
}

// late says that the next batch is past its deadline; if it has one to come, somebody looks again then.
func (w *way) late() bool {
	d := w.ready[0].deadline
	if d.IsZero() || w.m.closed {
		return false
	}
	left := time.Until(d)
	if left <= 0 {
		return true
	}
	if w.alarm == nil {
		w.alarm = time.AfterFunc(left, func() {
			w.m.mu.Lock()
			defer w.m.mu.Unlock()
			w.news.Broadcast()
		})
	} else {
		w.alarm.Reset(left)
	}
	return false
}

// drop ends the next batch before it starts.
func (w *way) drop() {
	b := w.ready[0]
	w.ready = w.ready[1:]
	b.err = kv.ErrLate
	w.end(b)
}

// mustWait says that the next batch may not go onto the stream now: the window is full, or it is a store and loads that
// wait would wait longer.
func (w *way) mustWait() bool {
	n := w.ready[0].bytes
	if w.onLink > 0 && w.onLink+n > w.m.cfg.WindowBytes {
		return true
	}
	share, s := w.m.cfg.StoreShare, &w.m.serving
	loads := w.m.ways[kv.Device]
	return w.to == kv.Host && share > 0 && !w.m.closed && loads.backlog > 0 && float64(s.stores+n) > share*float64(s.loads)
}

// next puts the next batch on the stream. The lock is not held meanwhile.
func (w *way) next() {
	b := w.ready[0]
	w.ready[0] = nil
	w.ready = w.ready[1:]
	if b.err = w.open(); b.err != nil {
		w.end(b)
		return
	}
	b.lane = w.lane
	b.lane.open++
	before := b.lane.last
	if before != nil && before.over {
		before = nil
	}
	w.onLink += b.bytes
	w.m.mu.Unlock()
	began := time.Now()
	w.m.handOver(b, before)
	took := time.Since(began)
	w.m.mu.Lock()
	b.lane.last = b
	w.stats.HandOver += took
	w.stats.Batches++
	w.stats.Pieces += uint64(len(b.pieces))
	w.flying = append(w.flying, b)
	w.count(b)
	w.news.Broadcast()
	if b.last && w.to == kv.Device { // for those who ask where it lands
		w.m.ring()
	}
}

// count notes what a batch on the stream means for the other direction and for those who wait for its moves.
func (w *way) count(b *batch) {
	m := w.m
	if w.to == kv.Host {
		m.serving.stores += b.bytes
		return
	}
	m.serving.loads += b.bytes
	m.ways[kv.Host].news.Broadcast()
}

// listen waits for the ends of batches, one after another, until feed has gone and nothing flies.
func (w *way) listen() {
	m := w.m
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		if len(w.flying) == 0 {
			if w.fed {
				return
			}
			w.news.Wait()
			continue
		}
		b := w.flying[0]
		m.mu.Unlock()
		b.err = b.end.Wait()
		b.began, b.finished = b.start.Time(), b.end.Time()
		m.mu.Lock()
		w.flying[0] = nil
		w.flying = w.flying[1:]
		w.onLink -= b.bytes
		w.end(b)
		w.left(b)
	}
}

// end makes a batch one that Poll reports.
func (w *way) end(b *batch) {
	b.over = true
	w.backlog -= b.bytes
	if took := (b.finished - b.began).Seconds(); b.err == nil && took > 0 {
		const weight = 1.0 / 8
		if now := float64(b.bytes) / took; w.rate == 0 {
			w.rate = now
		} else {
			w.rate += weight * (now - w.rate)
		}
	}
	w.ended = append(w.ended, b)
	w.news.Broadcast()
	if w.to == kv.Device && w.backlog == 0 { // stores may go on
		w.m.ways[kv.Host].news.Broadcast()
	}
	w.m.ring()
}

// reportable takes what has ended and counts it.
func (w *way) reportable() []*batch {
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	list := w.ended
	w.ended = nil
	for _, b := range list {
		n := uint64(len(b.moves))
		switch {
		case b.err == nil:
			w.stats.Moves += n
			w.stats.Bytes += uint64(b.bytes)
			w.stats.Busy += b.finished - b.began
		case errors.Is(b.err, kv.ErrLate):
			w.stats.Late += n
			fallthrough
		default:
			w.stats.Failed += n
		}
	}
	return list
}

// open makes sure that there is a stream.
func (w *way) open() error {
	if w.lane != nil {
		return nil
	}
	s, err := w.m.cfg.Memory.NewStream(w.name)
	if err != nil {
		return fmt.Errorf("kv/xfer: stream for %s: %w", w.name, err)
	}
	w.lane = &lane{stream: s}
	return nil
}

// left notes that a batch on its lane has ended. The first that failed retires the lane; the last frees it then.
func (w *way) left(b *batch) {
	l := b.lane
	l.open--
	if b.err != nil && l == w.lane {
		w.lane = nil
		w.old = append(w.old, l)
	}
	if l.open > 0 {
		return
	}
	for i, o := range w.old {
		if o == l {
			w.old = append(w.old[:i], w.old[i+1:]...)
			_ = l.stream.Close() // its error was reported with its moves, and nothing is queued
			return
		}
	}
}

// close waits for what was submitted and frees the stream. What failed while it waited is its error.
func (w *way) close() error {
	w.gone.Wait()
	if w.alarm != nil {
		w.alarm.Stop()
	}
	w.m.mu.Lock()
	defer w.m.mu.Unlock()
	var errs []error
	for _, b := range w.ended {
		if b.err != nil {
			errs = append(errs, b.err)
			break
		}
	}
	if w.lane != nil {
		errs = append(errs, w.lane.stream.Close())
		w.lane = nil
	}
	return errors.Join(errs...)
}
