package cuda

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"unsafe"
)

// Found is what a machine has for this device, for people to read.
type Found struct {
	Driver     string // the CUDA version that the driver speaks
	DriverPath string
	Compiler   string // version and path of the run-time compiler, or why there is none
	Embedded   bool   // this binary carries machine code and needs no compiler
	GPUs       []GPU
}

// GPU is one of them.
type GPU struct {
	Name, Address string
	Major, Minor  int // compute capability
	Units         int // streaming multiprocessors
	MemoryBytes   int64
	Node          int    // NUMA; -1: the system does not say
	Link          string // PCI Express as it runs and as it could; "": the system does not say
}

// Inspect looks without taking a context or memory. The error is that of a driver that cannot be opened.
func Inspect(libraryPath string) (*Found, error) {
	drv, err := openDriver(libraryPath)
	if err != nil {
		return nil, err
	}
	f := &Found{DriverPath: loadedFrom("libcuda.so", drv.path)}
	var version, count int32
	if err := drv.call("cuDriverGetVersion", drv.version, uintptr(unsafe.Pointer(&version))); err != nil {
		return nil, err
	}
	f.Driver = fmt.Sprintf("%d.%d", version/1000, version%1000/10)
	if err := drv.call("cuDeviceGetCount", drv.count, uintptr(unsafe.Pointer(&count))); err != nil {
		return nil, err
	}
	for i := range int(count) {
		g, err := drv.inspect(i)
		if err != nil {
			return nil, err
		}
		f.GPUs = append(f.GPUs, g)
	}
	_, err = code.ReadDir("code")
	f.Embedded = err == nil
	f.Compiler = compilerNote(libraryPath)
	return f, nil
}

func (d *driver) inspect(ordinal int) (GPU, error) {
	gpu, err := d.open(ordinal)
	if err != nil {
		return GPU{}, err
	}
	seen := &Device{drv: d, gpu: gpu}
	if err := seen.describe(); err != nil && seen.name == "" {
		return GPU{}, err
	}
	major, e1 := d.number(attrMajor, gpu)
	minor, e2 := d.number(attrMinor, gpu)
	if e1 != nil || e2 != nil {
		return GPU{}, fmt.Errorf("cuda: GPU %d does not say its compute capability", ordinal)
	}
	address := d.address(gpu)
	return GPU{seen.name, address, major, minor, seen.units, seen.memory, nodeOf(address), linkOf(address)}, nil
}

func compilerNote(libraryPath string) string {
	n, err := openCompiler(libraryPath)
	if err != nil {
		return err.Error()
	}
	version, err := n.release()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("NVRTC %s (%s)", version, loadedFrom("libnvrtc.so", n.path))
}

// address is where a GPU is on the PCI bus; "" where the driver does not say.
func (d *driver) address(gpu int32) string {
	var text [32]byte
	if d.call("cuDeviceGetPCIBusId", d.busID, uintptr(unsafe.Pointer(&text[0])), uintptr(len(text)-1), uintptr(gpu)) != nil {
		return ""
	}
	id, _, _ := strings.Cut(string(text[:]), "\x00")
	return strings.ToLower(id)
}

// property reads a file that the kernel keeps of a device on the PCI bus; "" where there is none.
func property(address, name string) string {
	if address == "" {
		return ""
	}
	raw, err := os.ReadFile(filepath.Join("/sys/bus/pci/devices", address, name))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(raw))
}

func nodeOf(address string) int {
	node, err := strconv.Atoi(property(address, "numa_node"))
	if err != nil {
		return -1
	}
	return node
}

func linkOf(address string) string {
	speed, width := property(address, "current_link_speed"), property(address, "current_link_width")
	if speed == "" || width == "" {
		return ""
	}
	now := fmt.Sprintf("%s x%s", strings.TrimSuffix(speed, " PCIe"), width)
	most := fmt.Sprintf("%s x%s", strings.TrimSuffix(property(address, "max_link_speed"), " PCIe"), property(address, "max_link_width"))
	if most == now {
		return now
	}
	return now + ", could be " + most
}

// loadedFrom is the file that a library was really loaded from; asked where the system does not say.
func loadedFrom(name, asked string) string {
	maps, err := os.Open("/proc/self/maps")
	if err != nil {
		return asked
	}
	defer maps.Close()
	for lines := bufio.NewScanner(maps); lines.Scan(); {
		if i := strings.IndexByte(lines.Text(), '/'); i >= 0 && strings.Contains(filepath.Base(lines.Text()[i:]), name) {
			return lines.Text()[i:]
		}
	}
	return asked
}
