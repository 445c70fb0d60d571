package xfer

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"larder/internal/device"
)

// memory is a device.Memory of plain bytes. Nothing runs by itself: run carries out what is queued, in the order of
// each stream, on a clock of one tick a byte. A copy can be made to stop short and fail; as on a real device, its
// error then sticks to the stream, and what is queued behind it is not done.
type memory struct {
	mu      sync.Mutex
	streams []*stream
	now     time.Duration
	copied  int64 // bytes that really moved
	copies  int   // that were carried out
	fail    func(copies int) error
	refuse  error // what NewStream says
}

type buffer []byte

func (b buffer) Size() int64   { return int64(len(b)) }
func (b buffer) Free() error   { return nil }
func (b buffer) Bytes() []byte { return b }

func (m *memory) Alloc(n int64) (device.Buffer, error)     { return make(buffer, n), nil }
func (m *memory) AllocHost(n int64) (device.Buffer, error) { return make(buffer, n), nil }

func (m *memory) CopyMethods() []device.CopyMethod { return []device.CopyMethod{device.CopyEach} }

func (m *memory) NewStream(name string) (device.Stream, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.refuse != nil {
		return nil, m.refuse
	}
	s := &stream{mem: m, name: name}
	m.streams = append(m.streams, s)
	return s, nil
}

// stream is a queue that waits to be run.
type stream struct {
	mem    *memory
	name   string
	queue  []func()
	err    error
	closed bool
}

var errShort = errors.New("the copy stopped short")

func (s *stream) push(f func()) {
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	if s.closed {
		panic("a closed stream is used")
	}
	s.queue = append(s.queue, f)
}

func (s *stream) Copy(dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	s.push(func() {
		if s.err != nil {
			return
		}
		m := s.mem
		if m.fail != nil {
			s.err = m.fail(m.copies)
		}
		if m.copies++; s.err != nil {
			n /= 2
		}
		copy(dst.(buffer)[dstOff:dstOff+n], src.(buffer)[srcOff:srcOff+n])
		m.now += time.Duration(n)
		if s.err == nil {
			m.copied += n
		}
	})
}

// CopyMany is one copy to those who count copies; when it fails, half of each piece has moved.
func (s *stream) CopyMany(dst, src device.Buffer, pieces []device.Span, _ device.CopyMethod) {
	s.push(func() {
		if s.err != nil {
			return
		}
		m := s.mem
		if m.fail != nil {
			s.err = m.fail(m.copies)
		}
		m.copies++
		for _, p := range pieces {
			n := p.N
			if s.err != nil {
				n /= 2
			} else {
				m.copied += n
			}
			copy(dst.(buffer)[p.Dst:][:n], src.(buffer)[p.Src:])
			m.now += time.Duration(n)
		}
	})
}

func (s *stream) Copy2D(device.Buffer, int64, int64, device.Buffer, int64, int64, int64, int) {
	panic("blocks are moved whole")
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

func (s *stream) Close() error {
	for s.step() {
	}
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	s.closed = true
	return s.err
}

// step carries out the next thing of the stream; false when there is none.
func (s *stream) step() bool {
	s.mem.mu.Lock()
	defer s.mem.mu.Unlock()
	if len(s.queue) == 0 {
		return false
	}
	s.queue[0]()
	s.queue = s.queue[1:]
	return true
}

// run carries out all that is queued on the streams of that name; "" is all.
func (m *memory) run(name string) {
	m.mu.Lock()
	streams := append([]*stream(nil), m.streams...)
	m.mu.Unlock()
	for _, s := range streams {
		for (name == "" || s.name == name) && s.step() {
		}
	}
}

// open counts the streams that are not closed.
func (m *memory) open() (n int) {
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
