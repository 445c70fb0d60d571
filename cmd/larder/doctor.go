package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"larder/internal/device/cpu"
	"larder/internal/device/cuda"
)

type doctorCmd struct{}

// Run prints what is on this machine, one fact a line, and what follows from it.
func (doctorCmd) Run(s *streams) error {
	dev, err := cpu.New(cpu.Config{})
	if err != nil {
		return err
	}
	defer dev.Close()
	info := dev.Info()
	fact(s.out, "processor", "%s, %d threads, %s/%s", info.Name, info.Units, runtime.GOOS, runtime.GOARCH)
	fact(s.out, "kernels", "%s: what --kernels auto takes here", info.Kernels)
	fact(s.out, "memory", "%.1f GiB; one layer of qwen3-30b-a3b with dummy weights takes about 2.5", float64(info.MemoryBytes)/(1<<30))
	fact(s.out, "huge pages", "%s", hugePages())
	fact(s.out, "NUMA nodes", "%s", numaNodes())
	fact(s.out, "tiers", "%s", info.TierNote)
	doctorGPU(s.out)
	fact(s.out, "pinnable", "%s", pinnable())
	if path := findTokenizer("", ""); path != "" {
		fact(s.out, "tokenizer", "%s", path)
	} else {
		fact(s.out, "tokenizer", "none: the server takes token ids only; `make data` fetches Qwen3's")
	}
	ceilings, err := dev.Ceilings()
	if err != nil {
		return err
	}
	for _, c := range ceilings {
		fact(s.out, c.Name, "%.1f G%s (%s)", c.Value/1e9, c.Unit, c.How)
	}
	return nil
}

func fact(w io.Writer, name, format string, args ...any) {
	fmt.Fprintf(w, "%-15s %s\n", name, fmt.Sprintf(format, args...))
}

func hugePages() string {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/enabled")
	if err != nil {
		return "unknown here"
	}
	mode := strings.TrimSpace(string(b))
	if strings.Contains(mode, "[never]") {
		return mode + ": weights are read up to a third slower from memory"
	}
	return mode + ": used for weights and KV"
}

func numaNodes() string {
	nodes, err := filepath.Glob("/sys/devices/system/node/node[0-9]*")
	if err != nil || len(nodes) == 0 {
		return "unknown here"
	}
	if len(nodes) == 1 {
		return "1"
	}
	return fmt.Sprintf("%d: bind the process to one (numactl --cpunodebind), larder does not place memory", len(nodes))
}

// doctorGPU says what there is of CUDA, and opens the GPU, if there is one, as a run would.
func doctorGPU(w io.Writer) {
	if !cuda.Present() {
		fact(w, "NVIDIA GPU", "none found (/dev/nvidiactl); the CPU computes")
		return
	}
	found, err := cuda.Inspect(os.Getenv("LARDER_CUDA_PATH"))
	if err != nil {
		fact(w, "NVIDIA GPU", "found, but it cannot be used: %v", err)
		return
	}
	fact(w, "CUDA driver", "%s (%s)", found.Driver, found.DriverPath)
	if found.Embedded {
		fact(w, "CUDA kernels", "in this binary; no compiler is needed (there is: %s)", found.Compiler)
	} else {
		fact(w, "CUDA kernels", "compiled here and kept in %s: %s", cuda.DefaultCacheDir(), found.Compiler)
	}
	for i, g := range found.GPUs {
		fact(w, fmt.Sprintf("GPU %d", i), "%s at %s, compute capability %d.%d, %d SMs, %.1f GiB, %s, %s", g.Name, g.Address, g.Major, g.Minor, g.Units,
			float64(g.MemoryBytes)/(1<<30), orUnknown(g.Link, "PCI Express "), nodeNote(g.Node))
	}
	fact(w, "device", "%s", gpuNote())
}

func orUnknown(value, label string) string {
	if value == "" {
		return label + "link unknown here"
	}
	return label + value
}

func nodeNote(node int) string {
	if node < 0 {
		return "NUMA node unknown here"
	}
	return fmt.Sprintf("NUMA node %d: host memory for KV is taken there", node)
}

// pinnable is how much memory of the host a run could pin now.
func pinnable() string {
	free := freeHostBytes("/")
	if free == 0 {
		return "unknown here"
	}
	return fmt.Sprintf("%.1f GiB of host memory are free for a KV tier, of which %.0f stay for the system",
		float64(free)/(1<<30), float64(hostReserve)/(1<<30))
}

// gpuNote opens the GPU as a run would.
func gpuNote() string {
	gpu, err := cuda.New(cuda.Config{LibraryPath: os.Getenv("LARDER_CUDA_PATH"), CacheDir: cuda.DefaultCacheDir()})
	if err != nil {
		return "found, but it cannot be used: " + err.Error()
	}
	defer gpu.Close()
	info := gpu.Info()
	return fmt.Sprintf("%s, %d SMs, %.1f GiB, kernels %s: what --device auto takes here", info.Name, info.Units, float64(info.MemoryBytes)/(1<<30), info.Kernels)
}
