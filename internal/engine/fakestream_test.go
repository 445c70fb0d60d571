package engine

import (
	"encoding/binary"
	"errors"
	"sync"
	"time"

	"larder/internal/device"
	"larder/internal/kv"
	"larder/internal/kv/xfer"
)

// fakeBuffer is memory of either tier.
type fakeBuffer []byte

func (b fakeBuffer) Size() int64    { return int64(len(b)) }
func (b fakeBuffer) Free() error    { return nil }
func (b fakeBuffer) Bytes() []byte  { return b }
func (b fakeBuffer) number() uint64 { return binary.LittleEndian.Uint64(b) }
func (b fakeBuffer) set(v uint64)   { binary.LittleEndian.PutUint64(b, v) }

func (b fakeBuffer) poison() {
	for i := 0; i < len(b); i += slotBytes {
		b[i:].set(poison)
	}
}

// fakeDevice gives streams that really run beside the loop, so that kv/xfer is tested with the engine, and the race
// detector sees a block that is read or written too early.
type fakeDevice struct{}

func (fakeDevice) Alloc(n int64) (device.Buffer, error)     { return make(fakeBuffer, n), nil }
func (fakeDevice) AllocHost(n int64) (device.Buffer, error) { return make(fakeBuffer, n), nil }

func (fakeDevice) CopyMethods() []device.CopyMethod { return []device.CopyMethod{device.CopyEach} }

func (fakeDevice) NewStream(string) (device.Stream, error) {
	s := &fakeStream{queue: make(chan func(), 1<<16)}
	s.worker.Go(func() {
		for f := range s.queue {
			f()
		}
	})
	return s, nil
}

type fakeStream struct {
	queue  chan func()
	worker sync.WaitGroup
}

func (s *fakeStream) Copy(dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	s.queue <- func() { copy(dst.(fakeBuffer)[dstOff:][:n], src.(fakeBuffer)[srcOff:][:n]) }
}

func (s *fakeStream) Copy2D(dst device.Buffer, dstOff, dstPitch int64, src device.Buffer, srcOff, srcPitch, width int64, rows int) {
	for r := range int64(rows) {
		s.Copy(dst, dstOff+r*dstPitch, src, srcOff+r*srcPitch, width)
	}
}

func (s *fakeStream) CopyMany(dst, src device.Buffer, pieces []device.Span, _ device.CopyMethod) {
	for _, p := range pieces {
		s.Copy(dst, p.Dst, src, p.Src, p.N)
	}
}

func (s *fakeStream) Wait(e device.Event) { s.queue <- func() { e.Wait() } }

func (s *fakeStream) Record() device.Event {
	e := make(fakeEvent)
	s.queue <- func() { close(e) }
	return e
}

func (s *fakeStream) Close() error {
	close(s.queue)
	s.worker.Wait()
	return nil
}

type fakeEvent chan struct{}

func (e fakeEvent) Done() bool {
	select {
	case <-e:
		return true
	default:
		return false
	}
}

func (e fakeEvent) Wait() error         { <-e; return nil }
func (e fakeEvent) Time() time.Duration { return 0 }

// countedMover is kv/xfer's mover, closed by the test; a share of the moves is reported as failed.
type countedMover struct {
	*xfer.Mover
	fake *fakeMover // for its numbers
}

func newCountedMover(m *fakeMemory, layout kv.Layout, fake *fakeMover) (*countedMover, error) {
	mover, err := xfer.New(xfer.Config{Layout: layout, Memory: fakeDevice{}, DevicePool: m.tiers[kv.Device], HostPool: m.tiers[kv.Host]})
	return &countedMover{mover, fake}, err
}

var errLost = errors.New("lost on the way")

func (c *countedMover) Poll(done func(kv.Move, error)) int {
	return c.Mover.Poll(func(m kv.Move, err error) {
		if err == nil && c.fake.rand.Float64() < c.fake.failed {
			c.fake.fails++
			err = errLost
		}
		done(m, err)
	})
}
