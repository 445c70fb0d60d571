package xfer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"larder/internal/device"
)

// memory is a device.Memory of plain bytes. Each stream carries out what is queued by itself, unless it is held, on a
// clock of one tick a byte. A copy can be made to stop short and fail; as on a real device, its error then sticks to
// the stream, and what is queued behind it is not done.
type memory struct {
	mu      sync.Mutex
	news    sync.Cond
	streams []*stream
	held    map[string]bool // by name of stream; "" is all
	now     time.Duration
	copied  int64 // bytes that really moved
	copies  int   // batches that were carried out
	queued  int   // that were ever queued
	fail    func(copies int) error
	refuse  error // what NewStream says
	methods []device.CopyMethod
	cost    func(how device.CopyMethod, pieces int, bytes int64) time.Duration // nil: a tick a byte
	seen    []device.CopyMethod
}

func newMemory() *memory {
	m := &memory{held: map[string]bool{}, methods: []device.CopyMethod{device.CopyEach}}
	m.news.L = &m.mu
	return m
}

type buffer []byte

func (b buffer) Size() int64   { return int64(len(b)) }
func (b buffer) Free() error   { return nil }
func (b buffer) Bytes() []byte { return b }

func (m *memory) Alloc(n int64) (device.Buffer, error)     { return make(buffer, n), nil }
func (m *memory) AllocHost(n int64) (device.Buffer, error) { return make(buffer, n), nil }
func (m *memory) CopyMethods() []device.CopyMethod         { return m.methods }

func (m *memory) NewStream(name string) (device.Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	s := &stream{mem: m, name: name}
	m.streams = append(m.streams, s)
	s.worker.Go(s.work)
	return s, nil
}

// hold stops the streams of that name, before what they do next; release lets them go on.
func (m *memory) hold(name string) { m.set(name, true) }

func (m *memory) release(name string) { m.set(name, false) }

func (m *memory) set(name string, held bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.held[name] = held
	m.news.Broadcast()
}

// await waits until f holds.
func (m *memory) await(f func() bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for !f() {
		m.news.Wait()
	}
}

// stream is a queue that a goroutine carries out.
type stream struct {
	mem    *memory
	name   string
	queue  []func()
	err    error
	closed bool
	worker sync.WaitGroup
}

var errShort = errors.New("the copy stopped short")

func (s *stream) work() {
	m := s.mem
	m.mu.Lock()
	defer m.mu.Unlock()
	for {
		switch {
		case len(s.queue) > 0 && !m.held[s.name] && !m.held[""]:
			s.queue[0]()
			s.queue = s.queue[1:]
			m.news.Broadcast()
		case len(s.queue) == 0 && s.closed:
			return
		default:
			m.news.Wait()
		}
	}
}

func (s *stream) push(f func()) {
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	if s.closed {
		panic("a closed stream is used")
	}
	s.queue = append(s.queue, f)
	s.mem.news.Broadcast()
}

func (s *stream) Copy(device.Buffer, int64, device.Buffer, int64, int64) {
	panic("the mover hands over batches")
}

// CopyMany is one copy to those who count them; when it fails, half of each piece has moved.
func (s *stream) CopyMany(dst, src device.Buffer, pieces []device.Span, how device.CopyMethod) {
	s.push(func() {
		m := s.mem
		m.seen = append(m.seen, how)
		var bytes int64
		s.carryOut(func() {
			for _, p := range pieces {
				bytes += s.copy(dst, src, p)
			}
		})
		if m.cost != nil {
			m.now += m.cost(how, len(pieces), bytes)
		} else {
			m.now += time.Duration(bytes)
		}
	})
	s.count()
}

func (s *stream) Copy2D(dst device.Buffer, dstOff, dstPitch int64, src device.Buffer, srcOff, srcPitch, width int64, rows int) {
	s.push(func() {
		s.carryOut(func() {
			for r := range int64(rows) {
				s.mem.now += time.Duration(s.copy(dst, src, device.Span{Dst: dstOff + r*dstPitch, Src: srcOff + r*srcPitch, N: width}))
			}
		})
	})
	s.count()
}

func (s *stream) count() {
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	s.mem.queued++
}

// carryOut does f unless the stream has an error, and gives it one in the middle if it shall fail.
func (s *stream) carryOut(f func()) {
	if s.err != nil {
		return
	}
	if s.mem.fail != nil {
		s.err = s.mem.fail(s.mem.copies)
	}
	s.mem.copies++
	f()
}

func (s *stream) copy(dst, src device.Buffer, p device.Span) int64 {
	n := p.N
	if s.mem.cost != nil {
		return n // only its time counts
	}
	if s.err != nil {
		n /= 2
	}
	copy(dst.(buffer)[p.Dst:][:n], src.(buffer)[p.Src:])
	if s.err == nil {
		s.mem.copied += n
	}
	return n
}

func (s *stream) Wait(e device.Event) { panic(fmt.Sprint("nobody is waited for: ", e)) }

func (s *stream) Record() device.Event {
	e := &event{done: make(chan struct{})}
	s.push(func() {
		e.at, e.err = s.mem.now, s.err
		close(e.done)
	})
	return e
}

// Close lets go of what is held.
func (s *stream) Close() error {
	s.mem.mu.Lock()
	s.closed = true
	s.mem.held[s.name], s.mem.held[""] = false, false
	s.mem.news.Broadcast()
	s.mem.mu.Unlock()
	s.worker.Wait()
	return s.err
}

// open counts the streams that are not closed.
func (m *memory) open() (n int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.streams {
		if !s.closed {
			n++
		}
	}
	return n
}

type event struct {
	done chan struct{}
	at   time.Duration
	err  error
}

func (e *event) Done() bool {
	select {
	case <-e.done:
		return true
	default:
		return false
	}
}

func (e *event) Wait() error         { <-e.done; return e.err }
func (e *event) Time() time.Duration { <-e.done; return e.at }
