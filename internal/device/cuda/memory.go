package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"larder/internal/device"
)

// buffer is memory of the GPU.
type buffer struct {
	dev  *Device
	ptr  uintptr // as the GPU sees it; 0: freed or empty
	size int64
	host unsafe.Pointer // pinned memory as the CPU sees it; nil: memory of the GPU
	maps []byte         // what of the system's memory was pinned for it; nil: the driver's own
}

// pinned is memory of the host that the GPU reaches.
type pinned struct{ *buffer }

// tooMuch is more than any machine has: asked for so much, the driver may say that the value is wrong.
const tooMuch = 1 << 46

// Alloc implements device.Memory.
func (d *Device) Alloc(n int64) (device.Buffer, error) { return d.alloc(n, false) }

// AllocHost implements device.Memory.
func (d *Device) AllocHost(n int64) (device.Buffer, error) {
	b, err := d.alloc(n, true)
	if err != nil {
		return nil, err
	}
	return pinned{b}, nil
}

func (d *Device) alloc(n int64, host bool) (*buffer, error) {
	if n < 0 {
		return nil, fmt.Errorf("cuda: %d bytes asked for", n)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLocked(); err != nil {
		return nil, err
	}
	if n >= tooMuch {
		return nil, fmt.Errorf("cuda: %d bytes: %w", n, device.ErrOutOfMemory)
	}
	b := &buffer{dev: d, size: n}
	if n > 0 {
		if err := d.on(func() error { return b.take(host) }); err != nil {
			return nil, fmt.Errorf("cuda: %d bytes: %w", n, err)
		}
	}
	d.owned[b] = true
	return b, nil
}

func (b *buffer) take(host bool) error {
	drv := b.dev.drv
	if !host {
		return drv.call("cuMemAlloc", drv.memAlloc, uintptr(unsafe.Pointer(&b.ptr)), uintptr(b.size))
	}
	const portable = 1
	err := drv.call("cuMemHostAlloc", drv.hostAlloc, uintptr(unsafe.Pointer(&b.host)), uintptr(b.size), portable)
	b.ptr = uintptr(b.host)
	return err
}

// Size implements device.Buffer.
func (b *buffer) Size() int64 { return b.size }

// Free implements device.Buffer.
func (b *buffer) Free() error {
	d := b.dev
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil // freed with the device
	}
	delete(d.owned, b)
	return d.on(b.release)
}

// release gives the memory back, once.
func (b *buffer) release() error {
	if b.ptr == 0 {
		return nil
	}
	ptr, drv := b.ptr, b.dev.drv
	b.ptr = 0
	if b.maps != nil {
		maps := b.maps
		b.host, b.maps = nil, nil
		return errors.Join(drv.call("cuMemHostUnregister", drv.hostUnregister, ptr), unmap(maps))
	}
	if b.host != nil {
		b.host = nil
		return drv.call("cuMemFreeHost", drv.hostFree, ptr)
	}
	return drv.call("cuMemFree", drv.memFree, ptr)
}

// Bytes implements device.Mapped.
func (b pinned) Bytes() []byte {
	if b.host == nil {
		return nil
	}
	return unsafe.Slice((*byte)(b.host), b.size)
}

// own finds the buffer behind one that this device gave out.
func (d *Device) own(b device.Buffer) (*buffer, error) {
	var own *buffer
	switch v := b.(type) {
	case *buffer:
		own = v
	case pinned:
		own = v.buffer
	}
	if own == nil || own.dev != d {
		return nil, fmt.Errorf("cuda: %T is another device's memory", b)
	}
	return own, nil
}

// inside says whether rows pieces of width bytes lie in the buffer. No sum or product can wrap.
func (b *buffer) inside(off, pitch, width int64, rows int) bool {
	if off < 0 || pitch < 0 || width < 0 || rows < 1 || off > b.size || width > b.size {
		return false
	}
	room := b.size - off - width // what is left for the pitches
	return room >= 0 && (rows == 1 || pitch <= room/int64(rows-1))
}

// scratch is memory of the GPU that grows when more is asked for than ever before. What it held is lost then.
type scratch struct {
	dev  *Device
	host bool
	b    *buffer
}

func (s *scratch) need(n int64) error {
	if s.b != nil && s.b.size >= n {
		return nil
	}
	if s.b != nil {
		if err := s.b.Free(); err != nil {
			return err
		}
		s.b = nil
	}
	b, err := s.dev.alloc(n+n/4, s.host)
	if err != nil {
		return err
	}
	s.b = b
	return nil
}

// zeroed gives memory of the GPU that is zero once the setup stream is past this point.
func (d *Device) zeroed(n int64) (*buffer, error) {
	b, err := d.alloc(n, false)
	if err != nil || n == 0 {
		return b, err
	}
	err = d.on(func() error {
		return d.drv.call("cuMemsetD8Async", d.drv.setAsync, b.ptr, 0, uintptr(n), d.setup.handle)
	})
	if err != nil {
		return nil, errors.Join(err, b.Free())
	}
	return b, nil
}
