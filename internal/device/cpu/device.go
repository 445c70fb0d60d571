// Package cpu is the device that every machine has: the forward pass on the processor's own cores, with vector kernels
// where there are some (package gemm) and portable Go elsewhere. It is the oracle for other devices. "Device" and "host"
// memory are both RAM here, and Info says so. It knows no engine and takes no decision.
//
// Start at New; compute.go is a pass, attention.go and mlp.go its two halves.
package cpu

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
)

// Config makes a Device.
type Config struct {
	Threads int        // 0: all that the process may use
	Kernels string     // a family of package gemm; "" or "auto": the best
	DType   arch.DType // BF16 (or 0): activations are rounded to bf16 before each product; F32: they are not
}

// Device implements device.Device. Alloc, AllocHost, NewStream and the weights are safe for concurrent use; a Compute
// is for one goroutine, and two of them take turns.
type Device struct {
	cfg    Config
	family *gemm.Family
	team   *team
	epoch  time.Time
	memory int64

	mu     sync.Mutex
	closed bool
	owned  []*buffer // the weights' memory, freed by Close
}

var _ device.Device = (*Device)(nil)

// New opens the processor.
func New(cfg Config) (*Device, error) {
	if cfg.Threads < 0 || cfg.Threads > 1024 {
		return nil, fmt.Errorf("cpu: %d threads", cfg.Threads)
	}
	if cfg.Threads == 0 {
		cfg.Threads = runtime.GOMAXPROCS(0)
	}
	if cfg.DType == 0 {
		cfg.DType = arch.BF16
	}
	if cfg.DType != arch.BF16 && cfg.DType != arch.F32 {
		return nil, fmt.Errorf("cpu: cannot compute in %v", cfg.DType)
	}
	f, err := gemm.Find(cfg.Kernels, cfg.DType == arch.F32)
	if err != nil {
		return nil, fmt.Errorf("cpu: %w", err)
	}
	return &Device{cfg: cfg, family: f, team: newTeam(cfg.Threads), epoch: time.Now(), memory: MemoryBytes()}, nil
}

// Info implements device.Device.
func (d *Device) Info() device.Info {
	return device.Info{
		Kind: "cpu", Name: processorName(), Units: d.cfg.Threads, MemoryBytes: d.memory, Kernels: d.family.Name,
		TierNote: "On a CPU the device tier and the host tier are two pools of the same RAM: a load is a memory copy by a core, not a transfer over a link.",
	}
}

// Close implements device.Device. Nothing may run any more.
func (d *Device) Close() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return nil
	}
	d.closed = true
	d.team.close()
	var errs []error
	for _, b := range d.owned {
		errs = append(errs, b.Free())
	}
	return errors.Join(errs...)
}

// keep remembers memory to free with the device.
func (d *Device) keep(b *buffer) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.owned = append(d.owned, b)
}

func (d *Device) check() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.closed {
		return fmt.Errorf("cpu: %w: the device is closed", device.ErrLost)
	}
	return nil
}

var errShape = errors.New("cpu: wrong shape")

// processorName is what the system calls the processor.
func processorName() string {
	if name := procField("/proc/cpuinfo", "model name"); name != "" {
		return name
	}
	return runtime.GOARCH
}

// MemoryBytes is the machine's memory; 0 when the system does not say.
func MemoryBytes() int64 {
	kb, _, _ := strings.Cut(procField("/proc/meminfo", "MemTotal"), " ")
	n, err := strconv.ParseInt(kb, 10, 64)
	if err != nil {
		return 0
	}
	return n << 10
}

// procField is the value of the first line "key: value" of a file of the proc file system.
func procField(path, key string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if k, v, ok := strings.Cut(lines.Text(), ":"); ok && strings.TrimSpace(k) == key {
			return strings.TrimSpace(v)
		}
	}
	return ""
}
