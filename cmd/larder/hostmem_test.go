package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestHostBytes reads made-up systems: the least of what the system and a control group leave counts, and a system that
// says nothing stops nobody.
func TestHostBytes(t *testing.T) {
	const meminfo = "MemTotal:       131072000 kB\nMemAvailable:   104857600 kB\n" // 100 GiB free
	for name, c := range map[string]struct {
		files map[string]string
		free  int64
	}{
		"no group":        {map[string]string{"proc/meminfo": meminfo}, 100 << 30},
		"an open group":   {map[string]string{"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "max\n", "sys/fs/cgroup/memory.current": "1\n"}, 100 << 30},
		"a tight group":   {map[string]string{"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "10737418240\n", "sys/fs/cgroup/memory.current": "2147483648\n"}, 8 << 30},
		"an older group":  {map[string]string{"proc/meminfo": meminfo, "sys/fs/cgroup/memory/memory.limit_in_bytes": "10737418240\n", "sys/fs/cgroup/memory/memory.usage_in_bytes": "0\n"}, 10 << 30},
		"a full group":    {map[string]string{"proc/meminfo": meminfo, "sys/fs/cgroup/memory.max": "10\n", "sys/fs/cgroup/memory.current": "20\n"}, 1},
		"nothing is said": {nil, 0},
	} {
		t.Run(name, func(t *testing.T) {
			root := t.TempDir()
			for path, text := range c.files {
				if err := os.MkdirAll(filepath.Dir(filepath.Join(root, path)), 0o755); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(root, path), []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if got := freeHostBytes(root); got != c.free {
				t.Errorf("%d bytes are free, want %d", got, c.free)
			}
			err := checkHostBytes(9<<30, root, "ask for less")
			if tooMuch := c.free > 0 && c.free < 11<<30; tooMuch != (err != nil) || err != nil && strings.Contains(err.Error(), "\n") {
				t.Errorf("9 GiB of %d: %v", c.free, err)
			}
		})
	}
}
