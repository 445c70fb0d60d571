package main

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"larder/internal/device"
	"larder/internal/kv/xfer"
	"larder/internal/kvbench"
)

// hostReserve is memory that stays for the system and this process when host memory is pinned.
const hostReserve = 2 << 30

// freeHostBytes is how much host memory can be taken now: what the system calls available, or what the control group
// that this process is in leaves. 0: the system does not say. root is where the system's files lie.
func freeHostBytes(root string) int64 {
	free := meminfo(filepath.Join(root, "proc/meminfo"), "MemAvailable")
	for _, c := range [][2]string{
		{"sys/fs/cgroup/memory.max", "sys/fs/cgroup/memory.current"},
		{"sys/fs/cgroup/memory/memory.limit_in_bytes", "sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, ok := readNumber(filepath.Join(root, c[0]))
		used, known := readNumber(filepath.Join(root, c[1]))
		if ok && known && (free == 0 || limit-used < free) {
			free = max(limit-used, 1)
		}
	}
	return free
}

// meminfo is a field of /proc/meminfo in bytes.
func meminfo(path, key string) int64 {
	f, err := os.Open(path)
	if err != nil {
		return 0
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		if name, value, ok := strings.Cut(lines.Text(), ":"); ok && name == key {
			kb, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			if err == nil {
				return kb << 10
			}
		}
	}
	return 0
}

// readNumber reads a file that holds one number; "max" is none.
func readNumber(path string) (int64, bool) {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return n, err == nil
}

// checkHostBytes says in one line why so much host memory cannot be taken, before any of it is.
func checkHostBytes(need int64, root, advice string) error {
	free := freeHostBytes(root)
	if free == 0 || need+hostReserve <= free {
		return nil
	}
	return usagef("%.1f GiB of host memory are wanted, %.1f are free and %.0f must stay so: %s",
		float64(need)/(1<<30), float64(free)/(1<<30), float64(hostReserve)/(1<<30), advice)
}

// allocHost takes host memory with a progress line where that takes a while.
func allocHost(mem device.Memory, bytes int64, line *progress) (device.Buffer, error) {
	p, ok := mem.(device.Pinner)
	if !ok {
		return mem.AllocHost(bytes)
	}
	return p.AllocHostSlowly(bytes, func(done int64) {
		line.update(float64(done)/float64(bytes), fmt.Sprintf("%.1f of %.1f GiB pinned", float64(done)/(1<<30), float64(bytes)/(1<<30)))
	})
}

// copyTable is what copies between the tiers are chosen by: measured at the first start on a machine, and kept.
func copyTable(mem device.Memory, info device.Info) (*xfer.Table, error) {
	dir := ""
	if cache, err := os.UserCacheDir(); err == nil {
		dir = filepath.Join(cache, "larder", "copies")
	}
	host, _ := os.Hostname() // two machines may share a home
	t, _, err := xfer.Cached(dir, fmt.Sprintf("%s/%s/%d bytes/%s/%v", host, info.Name, info.MemoryBytes, version, mem.CopyMethods()), mem)
	if err != nil && t == nil {
		return nil, fmt.Errorf("measuring how copies go: %w", err)
	}
	return t, nil // a table that cannot be kept is measured again
}

// fitHost has requests share host blocks until the pools fit: the host's in room and in what the system has free, and
// on a CPU, where both pools are host memory, both.
func fitHost(cfg *kvbench.Config, kind string, room int64) error {
	if free := freeHostBytes("/"); free > 0 {
		room = min(room, free-hostReserve)
	}
	fits := func() bool {
		dev, host := cfg.PoolBytes()
		if kind == "cpu" {
			host += dev
		}
		return host <= room
	}
	if fits() {
		return nil
	}
	for cfg.Regions = cfg.Requests - 1; cfg.Regions > 0; cfg.Regions-- {
		if fits() {
			return nil
		}
	}
	return usagef("%d requests in flight of %.1f MiB each way do not fit in %.1f GiB of host memory: move fewer at once, or less each",
		min(cfg.InFlight, cfg.Requests), float64(cfg.BytesPerRequest())/(1<<20), float64(room)/(1<<30))
}
