package xfer

import (
	"fmt"

	"larder/internal/device"
)

// way is one direction.
type way struct {
	name   string
	memory device.Memory
	lane   *lane     // where the next copy goes; nil: the last one failed, or there never was one
	old    []*lane   // failed, with copies that are not reported yet
	queue  []copying // not reported, in order
	stats  Stats

	watched device.Event      // what the listener was told to wait for last
	watch   chan device.Event // to the listener, which has at most one more to wait for
	silent  chan struct{}     // closed when the listener has gone
}

// lane is a stream. An error on it sticks, so after one it is used no more.
type lane struct {
	stream device.Stream
	open   int // copies that are not reported
}

// copying is a piece on a stream, or one that could not start: then it has an error and nothing else.
type copying struct {
	piece
	tag        uint64
	lane       *lane
	start, end device.Event
	err        error
}

func (c *copying) ended() bool { return c.lane == nil || c.end.Done() }

func newWay(name string, memory device.Memory) *way {
	return &way{name: name, memory: memory, watch: make(chan device.Event, 1), silent: make(chan struct{})}
}

// listen rings when an event that it was told to wait for is reached.
func (w *way) listen(ring func()) {
	defer close(w.silent)
	for e := range w.watch {
		_ = e.Wait() // Poll reports the error with its moves
		ring()
	}
}

// watchFirst has the end of the first copy that has not ended waited for. Those behind it are looked at when it is
// reported, so one event at a time is enough, however many copies are queued.
func (w *way) watchFirst() {
	if len(w.queue) == 0 || w.queue[0].lane == nil || w.queue[0].end == w.watched {
		return
	}
	w.watched = w.queue[0].end
	select {
	case <-w.watch: // an older one: it has ended and is reported
	default:
	}
	w.watch <- w.watched // there is room: nobody else sends
}

// open makes sure that there is a stream.
func (w *way) open() error {
	if w.lane != nil {
		return nil
	}
	s, err := w.memory.NewStream(w.name)
	if err != nil {
		return fmt.Errorf("kv/xfer: stream for %s: %w", w.name, err)
	}
	w.lane = &lane{stream: s}
	return nil
}

// ended notes that a copy on l was reported. The first that failed retires l; the last frees it then.
func (w *way) ended(l *lane, err error) {
	l.open--
	if err != nil && l == w.lane {
		w.lane = nil
		w.old = append(w.old, l)
	}
	for i, o := range w.old {
		if o == l && l.open == 0 {
			w.old = append(w.old[:i], w.old[i+1:]...)
			_ = l.stream.Close() // its error was reported with its moves, and nothing is queued
			return
		}
	}
}

// close waits for what is queued, frees the streams and ends the listener.
func (w *way) close() error {
	var first error
	for _, l := range append(w.old, w.lane) {
		if l == nil {
			continue
		}
		if err := l.stream.Close(); err != nil && first == nil {
			first = err
		}
	}
	w.old, w.lane = nil, nil
	close(w.watch)
	<-w.silent
	return first
}
