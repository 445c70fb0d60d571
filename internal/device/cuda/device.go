// Package cuda is the device for NVIDIA GPUs of compute capability 8.0 and up, without cgo: libcuda and NVRTC are opened
// at run time, and the kernels, CUDA C++ below kernels/, are compiled for the GPU found and cached on disk. It knows no
// engine and takes no decision. Package device/cpu is its oracle.
//
// All products run on bf16 inputs with fp32 sums, the residual stream and the router are fp32, as on the CPU device. A
// row's result depends on its sequence's tokens alone, bit for bit: every sum has one order, whatever the tile.
//
// Start at New; driver.go and nvrtc.go are the libraries, memory.go buffers and streams, compute.go a pass.
package cuda

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"
	"unsafe"

	"larder/internal/device"
)

// Config makes a Device.
type Config struct {
	Ordinal     int    // which GPU, as CUDA numbers them
	LibraryPath string // a folder to look for CUDA's libraries in first; "": the usual places
	CacheDir    string // where compiled kernels are kept; "": none. See DefaultCacheDir
}

// DefaultCacheDir is the user's cache folder for compiled kernels; "" where the system names none.
func DefaultCacheDir() string {
	dir, err := os.UserCacheDir()
	if err != nil {
		return ""
	}
	return filepath.Join(dir, "larder", "kernels")
}

// Device implements device.Device. Alloc, AllocHost, NewStream and the weights are safe for concurrent use; a Compute is
// for one goroutine.
type Device struct {
	cfg     Config
	drv     *driver
	gpu     int32
	context uintptr
	target  string // what kernels are compiled for
	name    string
	units   int
	memory  int64
	modules []uintptr
	kernels map[string]*kernel
	setup   *stream // weights are made and laid out on it

	setupMu  sync.Mutex
	uploader uploader // setupMu guards it
	mu       sync.Mutex
	closed   bool
	owned    map[*buffer]bool
	streams  map[*stream]bool
	events   []uintptr // free ones
	clock    *epoch
}

var _ device.Device = (*Device)(nil)

// New opens a GPU. The error is one line that says what is missing: the driver's library, a GPU, the compiler.
func New(cfg Config) (*Device, error) {
	drv, err := openDriver(cfg.LibraryPath)
	if err != nil {
		return nil, err
	}
	d := &Device{cfg: cfg, drv: drv, owned: map[*buffer]bool{}, streams: map[*stream]bool{}}
	if d.gpu, err = drv.open(cfg.Ordinal); err != nil {
		return nil, err
	}
	if err := d.describe(); err != nil {
		return nil, err
	}
	if err := drv.call("cuDevicePrimaryCtxRetain", drv.retain, uintptr(unsafe.Pointer(&d.context)), uintptr(d.gpu)); err != nil {
		return nil, err
	}
	err = d.on(func() error {
		if err := d.load(&cfg); err != nil {
			return err
		}
		return d.startClock()
	})
	if err == nil {
		d.setup, err = d.newStream()
	}
	if err != nil {
		return nil, errors.Join(err, d.Close())
	}
	return d, nil
}

// describe reads what the GPU is.
func (d *Device) describe() error {
	var text [128]byte
	var bytes uintptr
	err := errors.Join(
		d.drv.call("cuDeviceGetName", d.drv.name, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)-1), uintptr(d.gpu)),
		d.drv.call("cuDeviceTotalMem", d.drv.totalMem, uintptr(unsafe.Pointer(&bytes)), uintptr(d.gpu)))
	major, e1 := d.drv.number(attrMajor, d.gpu)
	minor, e2 := d.drv.number(attrMinor, d.gpu)
	units, e3 := d.drv.number(attrUnits, d.gpu)
	if err := errors.Join(err, e1, e2, e3); err != nil {
		return err
	}
	d.name, _, _ = strings.Cut(string(text[:]), "\x00")
	d.units, d.memory = units, int64(bytes)
	d.target, err = target(major, minor)
	return err
}

// Info implements device.Device.
func (d *Device) Info() device.Info {
	family := "mma.sync bf16"
	if d.target == "sm_90a" {
		family = "wgmma bf16"
	}
	return device.Info{Kind: "cuda", Name: d.name, Units: d.units, MemoryBytes: d.memory, Kernels: family + ", " + d.target}
}

// Free is how much device memory is free now, in bytes.
func (d *Device) Free() (int64, error) {
	if err := d.check(); err != nil {
		return 0, err
	}
	var free, total uintptr
	err := d.on(func() error {
		return d.drv.call("cuMemGetInfo", d.drv.memInfo, uintptr(unsafe.Pointer(&free)), uintptr(unsafe.Pointer(&total)))
	})
	return int64(free), err
}

// Close implements device.Device. It frees all memory that the device gave out and what is left of streams.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	err := d.on(d.freeAll)
	err = errors.Join(err, d.drv.call("cuDevicePrimaryCtxRelease", d.drv.release, uintptr(d.gpu)))
	if errors.Is(err, device.ErrLost) { // all that is left says the same
		return fmt.Errorf("cuda: %w: nothing of it could be freed", device.ErrLost)
	}
	return err
}

func (d *Device) freeAll() error {
	var errs []error
	for s := range d.streams {
		errs = append(errs, d.drv.call("cuStreamSynchronize", d.drv.streamSync, s.handle), d.drv.call("cuStreamDestroy", d.drv.streamDestroy, s.handle))
		s.handle = 0
	}
	for b := range d.owned {
		errs = append(errs, b.release())
	}
	clear(d.owned)
	clear(d.streams)
	for _, e := range d.events {
		errs = append(errs, d.drv.call("cuEventDestroy", d.drv.eventDestroy, e))
	}
	d.events = nil
	for _, m := range d.modules {
		errs = append(errs, d.drv.call("cuModuleUnload", d.drv.moduleUnload, m))
	}
	return errors.Join(errs...)
}

func (d *Device) check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.checkLocked()
}

func (d *Device) checkLocked() error {
	if d.closed {
		return fmt.Errorf("cuda: %w: the device is closed", device.ErrLost)
	}
	return nil
}

// epoch is an event of known time; others are timed against it. CUDA gives times as fp32 milliseconds, so a fresh one is
// taken now and then.
type epoch struct {
	event uintptr
	at    time.Duration // on the device's clock
	since time.Time
}

const epochLasts = 10 * time.Second
