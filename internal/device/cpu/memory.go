package cpu

import (
	"fmt"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"larder/internal/device"
)

// buffer is anonymous memory of the system, outside the Go heap: the collector neither scans nor counts it, and huge
// pages make it a third faster to read.
type buffer struct {
	mu    sync.Mutex
	bytes []byte
	size  int64
}

const hugePage = 2 << 20

// alloc maps n bytes. The system gives pages when they are first touched.
func alloc(n int64) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("cpu: %d bytes asked for", n)
	}
	if n == 0 {
		return &buffer{}, nil
	}
	b, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("cpu: %d bytes: %w (%v)", n, device.ErrOutOfMemory, err)
	}
	if n >= hugePage {
		advise(b)
	}
	return &buffer{bytes: b, size: n}, nil
}

// Alloc implements device.Memory.
func (d *Device) Alloc(n int64) (device.Buffer, error) { return d.allocChecked(n) }

// AllocHost implements device.Memory.
func (d *Device) AllocHost(n int64) (device.Buffer, error) { return d.allocChecked(n) }

func (d *Device) allocChecked(n int64) (device.Buffer, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	b, err := alloc(n)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Size implements device.Buffer.
func (b *buffer) Size() int64 { return b.size }

// Bytes implements device.Mapped.
func (b *buffer) Bytes() []byte { return b.bytes }

// Free implements device.Buffer.
func (b *buffer) Free() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.bytes == nil {
		return nil
	}
	err := unix.Munmap(b.bytes)
	b.bytes = nil
	return err
}

// slice views a piece of memory as values; off and n count values.
func slice[T any](b []byte, off, n int) []T {
	if n == 0 {
		return nil
	}
	var v T
	size := int(unsafe.Sizeof(v))
	return unsafe.Slice((*T)(unsafe.Pointer(&b[off*size : (off+n)*size][0])), n)
}

// stream runs copies in order on a goroutine of its own.
type stream struct {
	dev   *Device
	queue chan func(error) error
	done  chan struct{}
}

// event is a point of a stream.
type event struct {
	reached chan struct{}
	at      time.Duration
	err     error
}

// streamDepth is how much may be queued before the one who queues waits.
const streamDepth = 1 << 14

// NewStream implements device.Memory.
func (d *Device) NewStream(string) (device.Stream, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	s := &stream{dev: d, queue: make(chan func(error) error, streamDepth), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		var err error // the first; it sticks
		for f := range s.queue {
			err = f(err)
		}
	}()
	return s, nil
}

// Copy implements device.Stream.
func (s *stream) Copy(dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	s.Copy2D(dst, dstOff, 0, src, srcOff, 0, n, 1)
}

// Copy2D implements device.Stream.
func (s *stream) Copy2D(dst device.Buffer, dstOff, dstPitch int64, src device.Buffer, srcOff, srcPitch, width int64, rows int) {
	s.queue <- func(err error) error {
		if err != nil {
			return err
		}
		d, mine := dst.(*buffer)
		f, too := src.(*buffer)
		if !mine || !too {
			return fmt.Errorf("cpu: copy between %T and %T: another device's memory", dst, src)
		}
		to, from := d.Bytes(), f.Bytes()
		if !inside(to, dstOff, dstPitch, width, rows) || !inside(from, srcOff, srcPitch, width, rows) {
			return fmt.Errorf("cpu: copy of %d x %d bytes leaves a buffer", rows, width)
		}
		for r := range int64(rows) {
			copy(to[dstOff+r*dstPitch:][:width], from[srcOff+r*srcPitch:][:width])
		}
		return nil
	}
}

// CopyMethods implements device.Memory.
func (d *Device) CopyMethods() []device.CopyMethod { return []device.CopyMethod{device.CopyEach} }

// CopyMany implements device.Stream: a loop, whatever the method.
func (s *stream) CopyMany(dst, src device.Buffer, pieces []device.Span, _ device.CopyMethod) {
	s.queue <- func(err error) error {
		if err != nil {
			return err
		}
		d, mine := dst.(*buffer)
		f, too := src.(*buffer)
		if !mine || !too {
			return fmt.Errorf("cpu: copy between %T and %T: another device's memory", dst, src)
		}
		to, from := d.Bytes(), f.Bytes()
		for _, p := range pieces {
			if !inside(to, p.Dst, 0, p.N, 1) || !inside(from, p.Src, 0, p.N, 1) {
				return fmt.Errorf("cpu: copy of %d bytes leaves a buffer", p.N)
			}
		}
		for _, p := range pieces {
			copy(to[p.Dst:][:p.N], from[p.Src:][:p.N])
		}
		return nil
	}
}

// inside says whether rows pieces of width bytes lie in b. No sum or product can wrap.
func inside(b []byte, off, pitch, width int64, rows int) bool {
	if off < 0 || pitch < 0 || width < 0 || rows < 1 {
		return false
	}
	room := int64(len(b)) - off - width // what is left for the pitches
	if off > int64(len(b)) || width > int64(len(b)) || room < 0 {
		return false
	}
	return rows == 1 || pitch <= room/int64(rows-1)
}

// Wait implements device.Stream.
func (s *stream) Wait(e device.Event) {
	s.queue <- func(err error) error {
		if other := e.Wait(); err == nil {
			err = other
		}
		return err
	}
}

// Record implements device.Stream.
func (s *stream) Record() device.Event {
	e := &event{reached: make(chan struct{})}
	s.queue <- func(err error) error {
		e.at, e.err = time.Since(s.dev.epoch), err
		close(e.reached)
		return err
	}
	return e
}

// Close implements device.Stream.
func (s *stream) Close() error {
	last := s.Record()
	close(s.queue)
	<-s.done
	return last.Wait()
}

// Done implements device.Event.
func (e *event) Done() bool {
	select {
	case <-e.reached:
		return true
	default:
		return false
	}
}

// Wait implements device.Event.
func (e *event) Wait() error {
	<-e.reached
	return e.err
}

// Time implements device.Event.
func (e *event) Time() time.Duration { return e.at }
