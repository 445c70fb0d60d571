package kvbench

import (
	"errors"
	"testing"

	"larder/internal/device"
	"larder/internal/device/cpu"
)

// memory is the CPU device's, with a fault in the streams of one name.
type memory struct {
	device.Memory
	stream string
	fault  fault
	refuse func(call int) error // of Alloc and AllocHost; nil: none
	calls  int
	opaque bool // host memory that the CPU cannot touch
}

// fault changes what a copy does.
type fault func(s device.Stream, dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64)

func newMemory(t *testing.T) *memory {
	t.Helper()
	d, err := cpu.New(cpu.Config{Threads: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
	})
	return &memory{Memory: d}
}

func (m *memory) Alloc(n int64) (device.Buffer, error) {
	if m.calls++; m.refuse != nil {
		if err := m.refuse(m.calls); err != nil {
			return nil, err
		}
	}
	return m.Memory.Alloc(n)
}

// hidden hides what a buffer can do besides being one.
type hidden struct{ device.Buffer }

func (m *memory) AllocHost(n int64) (device.Buffer, error) {
	b, err := m.Alloc(n)
	if err == nil && m.opaque {
		return hidden{b}, nil
	}
	return b, err
}

func (m *memory) NewStream(name string) (device.Stream, error) {
	s, err := m.Memory.NewStream(name)
	if err == nil && m.fault != nil && name == m.stream {
		return &faultyStream{s, m.fault}, nil
	}
	return s, err
}

type faultyStream struct {
	device.Stream
	fault fault
}

func (s *faultyStream) Copy(dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	s.fault(s.Stream, dst, dstOff, src, srcOff, n)
}

// CopyMany is a copy for each piece, so that a fault meets them all.
func (s *faultyStream) CopyMany(dst, src device.Buffer, pieces []device.Span, _ device.CopyMethod) {
	for _, p := range pieces {
		s.Copy(dst, p.Dst, src, p.Src, p.N)
	}
}

// skip copies nothing, and says nothing.
func skip(device.Stream, device.Buffer, int64, device.Buffer, int64, int64) {}

// short leaves out the last byte.
func short(s device.Stream, dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	s.Copy(dst, dstOff, src, srcOff, n-1)
}

// crossed reads one block further on, or back for the last of the pool.
func crossed(s device.Stream, dst device.Buffer, dstOff int64, src device.Buffer, srcOff, n int64) {
	block := testLayout.BlockBytes()
	if srcOff += block; srcOff+n > src.Size() {
		srcOff -= 2 * block
	}
	s.Copy(dst, dstOff, src, max(srcOff, 0), n)
}

// outside leaves the buffer.
func outside(s device.Stream, dst device.Buffer, _ int64, src device.Buffer, srcOff, n int64) {
	s.Copy(dst, dst.Size(), src, srcOff, n)
}

var errRefused = errors.New("refused")
