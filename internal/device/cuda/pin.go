package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"larder/internal/device"
)

// pinPart is how much memory one worker takes at a time, and from how much on parallel work pays.
const pinPart = 64 << 20

// AllocHostSlowly implements device.Pinner.
func (d *Device) AllocHostSlowly(n int64, progress func(done int64)) (device.Buffer, error) {
	if n < pinPart || n >= tooMuch {
		return d.AllocHost(n)
	}
	if err := d.check(); err != nil {
		return nil, err
	}
	b, err := d.pin(n, progress)
	if err != nil {
		return nil, fmt.Errorf("cuda: %d bytes: %w", n, err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.checkLocked(); err != nil {
		return nil, errors.Join(err, d.on(b.release))
	}
	d.owned[b] = true
	return pinned{b}, nil
}

// pin takes huge pages near the GPU, in parallel, and has the driver pin them: the driver alone takes small ones with
// one thread. The pages are registered at once, because no copy may cross from one registration to another.
func (d *Device) pin(n int64, progress func(done int64)) (*buffer, error) {
	maps, at, err := mapHuge(n, d.Node())
	if err != nil {
		return nil, fmt.Errorf("%w (%v)", device.ErrOutOfMemory, err)
	}
	fault(at, progress)
	b := &buffer{dev: d, size: n, host: unsafe.Pointer(&at[0]), maps: maps}
	const portable = 1
	err = d.on(func() error {
		return d.drv.call("cuMemHostRegister", d.drv.hostRegister, uintptr(b.host), uintptr(n), portable)
	})
	if err != nil {
		return nil, errors.Join(err, unmap(maps))
	}
	b.ptr = uintptr(b.host)
	return b, nil
}

// fault has the system give all pages, by as many workers as there are cores, 16 at most.
func fault(b []byte, progress func(done int64)) {
	var next, done atomic.Int64
	var wait sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), 16) {
		wait.Go(func() {
			for {
				at := next.Add(pinPart) - pinPart
				if at >= int64(len(b)) {
					return
				}
				part := b[at:min(at+pinPart, int64(len(b)))]
				populate(part)
				if sum := done.Add(int64(len(part))); progress != nil {
					progress(sum)
				}
			}
		})
	}
	wait.Wait()
}

// Node is the NUMA node that the GPU hangs on; -1 where the system does not say.
func (d *Device) Node() int { return nodeOf(d.drv.address(d.gpu)) }
