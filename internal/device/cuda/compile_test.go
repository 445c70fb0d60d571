package cuda

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"unsafe"
)

// spills finds registers that the assembler keeps in memory.
var spills = regexp.MustCompile(`([1-9][0-9]*) bytes spill`)

// TestKernelsCompile compiles every kernel for the oldest and the newest target, and for one with little shared memory. LARDER_NVRTC is the compiler's path, or
// its folder's (scripts/install_nvrtc.sh prints one); no GPU is needed.
func TestKernelsCompile(t *testing.T) {
	path := os.Getenv("LARDER_NVRTC")
	if path == "" {
		t.Skip("LARDER_NVRTC names no compiler (scripts/install_nvrtc.sh installs one)")
	}
	n, err := openCompiler(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, goal := range []string{"sm_80", "sm_89", "sm_90a"} {
		for _, src := range sources() {
			t.Run(src.name+"/"+goal, func(t *testing.T) {
				t.Parallel()
				code, log, err := n.build(src, goal)
				if err != nil {
					t.Fatal(err)
				}
				if len(code) == 0 {
					t.Error("no machine code")
				}
				for line := range strings.Lines(log) {
					if spills.MatchString(line) || strings.Contains(strings.ToLower(line), "warning") || strings.Contains(line, "C75") {
						t.Error(strings.TrimSpace(line))
					}
				}
			})
		}
	}
}

// TestKernelsAreListed compares the kernels in the sources with those that are loaded.
func TestKernelsAreListed(t *testing.T) {
	known := kernelArgs("sm_90a")
	for _, src := range sources() {
		known := known[src.name]
		for _, m := range regexp.MustCompile(`extern "C" __global__ void (?:__launch_bounds__\([^\n]+\)\s+)?([a-z]\w*)\(`).FindAllStringSubmatch(src.text, -1) {
			if _, ok := known[m[1]]; !ok {
				t.Errorf("%s: kernel %s is not listed", src.name, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^(?:MANY|FEW)\((\w+_\w+),`).FindAllStringSubmatch(src.text, -1) {
			if known[m[1]] == nil || sharedBytes("sm_90a", m[1]) == 0 {
				t.Errorf("%s: kernel %s is not listed", src.name, m[1])
			}
		}
		for _, m := range regexp.MustCompile(`(?m)^ATTEND\((\d+), (\w+),`).FindAllStringSubmatch(src.text, -1) {
			if name := "attend_" + m[1] + "_" + m[2]; known[name] == nil || sharedBytes("sm_80", name) == 0 {
				t.Errorf("%s: kernel %s is not listed", src.name, name)
			}
		}
	}
}

// TestShared: no kernel asks for more shared memory than a block of its target may have.
func TestShared(t *testing.T) {
	for target, most := range map[string]int{"sm_80": 163 << 10, "sm_86": 99 << 10, "sm_89": 99 << 10, "sm_90a": 227 << 10, "sm_120": 99 << 10} {
		for _, list := range kernelArgs(target) {
			for name := range list {
				if n := sharedBytes(target, name); n > most {
					t.Errorf("%s on %s: %d bytes, at most %d", name, target, n, most)
				}
			}
		}
	}
}

// TestLayouts holds the structs that C shares to C's sizes.
func TestLayouts(t *testing.T) {
	for name, v := range map[string][2]uintptr{
		"CUDA_MEMCPY2D": {unsafe.Sizeof(copy2D{}), 128}, "Gemm": {unsafe.Sizeof(gemmParams{}), 112}, "Attend": {unsafe.Sizeof(attendParams{}), 104},
		"Place": {unsafe.Sizeof(placeParams{}), 144}, "CUtensorMap": {unsafe.Sizeof(tensorMap{}), 128}, "Many": {unsafe.Sizeof(manyParams{}), 56}, "FewRows": {unsafe.Sizeof(fewParams{}), 32}, "Rows": {unsafe.Sizeof(rows{}), 24}, "int4": {unsafe.Sizeof(tile{}), 16}, "int2": {unsafe.Sizeof(placed{}), 8},
	} {
		if v[0] != v[1] {
			t.Errorf("%s has %d bytes, want %d", name, v[0], v[1])
		}
	}
}

func TestTarget(t *testing.T) {
	for _, c := range []struct {
		major, minor int
		want         string
	}{{8, 0, "sm_80"}, {8, 9, "sm_89"}, {9, 0, "sm_90a"}, {12, 0, "sm_120"}, {7, 5, ""}} {
		if got, err := target(c.major, c.minor); got != c.want || (err != nil) != (c.want == "") {
			t.Errorf("%d.%d: %q, %v", c.major, c.minor, got, err)
		}
	}
}

// TestMissingLibrary says what was looked for and where.
func TestMissingLibrary(t *testing.T) {
	dir := t.TempDir()
	_, err := openLibrary(dir, "liblarder-is-not-there.so.1")
	if err == nil {
		t.Fatal("a library that is not there was opened")
	}
	for _, want := range []string{"liblarder-is-not-there.so.1", dir, "LARDER_CUDA_PATH"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not name %s", err, want)
		}
	}
	if strings.Contains(err.Error(), "\n") {
		t.Errorf("%q is more than a line", err)
	}
}
