package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"larder/internal/device"
)

// stream is a queue of the GPU. An error that is known when something is queued sticks: nothing is queued behind it.
type stream struct {
	dev    *Device
	handle uintptr // 0: closed
	err    error
	batch  batchLists
}

// NewStream implements device.Memory.
func (d *Device) NewStream(string) (device.Stream, error) {
	s, err := d.newStream()
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (d *Device) newStream() (*stream, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLocked(); err != nil {
		return nil, err
	}
	s := &stream{dev: d}
	const nonBlocking = 1
	err := d.on(func() error {
		return d.drv.call("cuStreamCreate", d.drv.streamCreate, uintptr(unsafe.Pointer(&s.handle)), nonBlocking)
	})
	if err != nil {
		return nil, err
	}
	d.streams[s] = true
	return s, nil
}

// do queues something unless an error is known already.
func (s *stream) do(f func() error) {
	if s.err != nil {
		return
	}
	if s.handle == 0 {
		s.err = fmt.Errorf("cuda: %w: the stream is closed", device.ErrLost)
		return
	}
	s.err = s.dev.on(f)
}

// Copy implements device.Stream.
func (s *stream) Copy(dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	s.Copy2D(dst, dstOff, 0, src, srcOff, 0, n, 1)
}

// Copy2D implements device.Stream.
func (s *stream) Copy2D(dst device.Buffer, dstOff, dstPitch int64, src device.Buffer, srcOff, srcPitch, width int64, rows int) {
	s.do(func() error {
		to, err := s.dev.own(dst)
		if err != nil {
			return err
		}
		from, err := s.dev.own(src)
		if err != nil {
			return err
		}
		if !to.inside(dstOff, dstPitch, width, rows) || !from.inside(srcOff, srcPitch, width, rows) {
			return fmt.Errorf("cuda: copy of %d x %d bytes leaves a buffer", rows, width)
		}
		if width == 0 {
			return nil
		}
		return s.copy(to.ptr+uintptr(dstOff), dstPitch, from.ptr+uintptr(srcOff), srcPitch, width, rows)
	})
}

// maxPitch is the widest pitch of one 2-D copy on every GPU so far.
const maxPitch = 1<<31 - 1

// copy chooses between one copy, a 2-D copy, and row by row where a 2-D copy cannot be.
func (s *stream) copy(dst uintptr, dstPitch int64, src uintptr, srcPitch, width int64, rows int) error {
	drv := s.dev.drv
	if dstPitch == width && srcPitch == width {
		width, rows = width*int64(rows), 1
	}
	if rows > 1 && min(dstPitch, srcPitch) >= width && max(dstPitch, srcPitch) <= maxPitch {
		c := copy2D{srcType: unified, src: src, srcPitch: uintptr(srcPitch), dstType: unified, dst: dst, dstPitch: uintptr(dstPitch),
			width: uintptr(width), height: uintptr(rows)}
		return drv.call("cuMemcpy2DAsync", drv.copy2DAsync, uintptr(unsafe.Pointer(&c)), s.handle)
	}
	for r := range int64(rows) {
		err := drv.call("cuMemcpyAsync", drv.copyAsync, dst+uintptr(r*dstPitch), src+uintptr(r*srcPitch), uintptr(width), s.handle)
		if err != nil {
			return err
		}
	}
	return nil
}

// copy2D is CUDA_MEMCPY2D.
type copy2D struct {
	srcX, srcY, srcType, srcHost, src, srcArray, srcPitch uintptr
	dstX, dstY, dstType, dstHost, dst, dstArray, dstPitch uintptr
	width, height                                         uintptr
}

const unified = 4 // CU_MEMORYTYPE_UNIFIED; the upper half of the word is padding

// Wait implements device.Stream.
func (s *stream) Wait(e device.Event) {
	s.do(func() error {
		own, ok := e.(*event)
		if !ok || own.dev != s.dev {
			return e.Wait()
		}
		if own.err != nil {
			return own.err
		}
		return s.dev.drv.call("cuStreamWaitEvent", s.dev.drv.streamWait, s.handle, own.handle, 0)
	})
}

// event is a point of a stream. Its handle goes back to the device's free ones when nobody has the event any more.
type event struct {
	dev    *Device
	handle uintptr
	clock  *epoch
	err    error // known when the point was marked
}

// Record implements device.Stream.
func (s *stream) Record() device.Event {
	e := &event{dev: s.dev}
	s.do(func() error {
		h, clock, err := s.dev.takeEvent()
		if err != nil {
			return err
		}
		e.handle, e.clock = h, clock
		runtime.AddCleanup(e, s.dev.giveEvent, h)
		return s.dev.drv.call("cuEventRecord", s.dev.drv.eventRecord, h, s.handle)
	})
	e.err = s.err
	return e
}

// takeEvent gives a free event and the epoch to time it against.
func (d *Device) takeEvent() (uintptr, *epoch, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLocked(); err != nil {
		return 0, nil, err
	}
	if time.Since(d.clock.since) > epochLasts {
		if err := d.turnClock(); err != nil {
			return 0, nil, err
		}
	}
	if n := len(d.events); n > 0 {
		h := d.events[n-1]
		d.events = d.events[:n-1]
		return h, d.clock, nil
	}
	h, err := d.newEvent()
	return h, d.clock, err
}

func (d *Device) newEvent() (uintptr, error) {
	var h uintptr
	err := d.drv.call("cuEventCreate", d.drv.eventCreate, uintptr(unsafe.Pointer(&h)), 0)
	return h, err
}

func (d *Device) giveEvent(h uintptr) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.closed {
		d.events = append(d.events, h)
	}
}

// startClock takes the first epoch: time 0.
func (d *Device) startClock() error {
	e, err := d.mark()
	if err != nil {
		return err
	}
	d.clock = &epoch{event: e, since: time.Now()}
	return nil
}

// turnClock takes a fresh epoch, timed against the last.
func (d *Device) turnClock() error {
	e, err := d.mark()
	if err != nil {
		return err
	}
	at, err := d.elapsed(d.clock, e)
	if err != nil {
		return err
	}
	d.clock = &epoch{event: e, at: at, since: time.Now()}
	return nil
}

// mark is an event that is over: recorded on a stream of its own.
func (d *Device) mark() (uintptr, error) {
	var s uintptr
	const nonBlocking = 1
	if err := d.drv.call("cuStreamCreate", d.drv.streamCreate, uintptr(unsafe.Pointer(&s)), nonBlocking); err != nil {
		return 0, err
	}
	h, err := d.newEvent()
	if err == nil {
		err = errors.Join(d.drv.call("cuEventRecord", d.drv.eventRecord, h, s), d.drv.call("cuEventSynchronize", d.drv.eventSync, h))
	}
	return h, errors.Join(err, d.drv.call("cuStreamDestroy", d.drv.streamDestroy, s))
}

// elapsed is an event's time on the device's clock.
func (d *Device) elapsed(from *epoch, e uintptr) (time.Duration, error) {
	var ms float32
	err := d.drv.call("cuEventElapsedTime", d.drv.eventElapsed, uintptr(unsafe.Pointer(&ms)), from.event, e)
	return from.at + time.Duration(float64(ms)*1e6), err
}

// Close implements device.Stream.
func (s *stream) Close() error {
	err := s.err
	if s.handle != 0 {
		err = s.dev.on(func() error { // it reports what s.err does, if the GPU is lost
			return s.dev.drv.call("cuStreamSynchronize", s.dev.drv.streamSync, s.handle)
		})
		if !errors.Is(err, device.ErrLost) {
			err = errors.Join(s.err, err)
		}
	}
	d := s.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed || s.handle == 0 {
		return err
	}
	delete(d.streams, s)
	h := s.handle
	s.handle = 0
	err2 := d.on(func() error { return d.drv.call("cuStreamDestroy", d.drv.streamDestroy, h) })
	if errors.Is(err, device.ErrLost) { // the second says the same
		return err
	}
	return errors.Join(err, err2)
}

// Done implements device.Event. A point behind an error is reached.
func (e *event) Done() bool {
	if e.err != nil {
		return true
	}
	var done bool
	err := e.dev.on(func() error {
		err := e.dev.drv.query(e.handle)
		done = !errors.Is(err, errNotReady)
		return nil
	})
	return done || err != nil
}

var errNotReady = errors.New("not ready")

// query asks whether an event is over without making an error of the usual answer.
func (d *driver) query(h uintptr) error {
	r := d.result(d.eventQuery, h)
	switch r {
	case resultOK:
		return nil
	case resultNotReady:
		return errNotReady
	}
	return d.fail("cuEventQuery", r)
}

// Wait implements device.Event.
func (e *event) Wait() error {
	if e.err != nil {
		return e.err
	}
	return e.dev.on(func() error {
		return e.dev.drv.call("cuEventSynchronize", e.dev.drv.eventSync, e.handle)
	})
}

// Time implements device.Event.
func (e *event) Time() time.Duration {
	if e.err != nil || e.clock == nil {
		return 0
	}
	var at time.Duration
	err := e.dev.on(func() error {
		var err error
		at, err = e.dev.elapsed(e.clock, e.handle)
		return err
	})
	if err != nil {
		return 0
	}
	return at
}
