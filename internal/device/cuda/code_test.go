package cuda

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
)

// TestEmbedded: a release (build tag larder_kernels) has the code of every source for every target, made from the sources
// as they are; another build has none. What is for no target of a release falls back to what is for any.
func TestEmbedded(t *testing.T) {
	_, err := code.ReadDir("code")
	release := err == nil
	for _, src := range sources() {
		for _, target := range append([]string{"sm_120"}, codeTargets...) {
			got, err := embedded(src, target)
			if err != nil || (len(got) > 0) != release {
				t.Errorf("%s for %s: %d bytes, %v; release %v", src.name, target, len(got), err, release)
			}
			if ptx := bytes.Contains(got, []byte(".target sm_80")); release && ptx != (target == "sm_120" || target == anyTarget) {
				t.Errorf("%s for %s: text for the driver: %v", src.name, target, ptx)
			}
		}
		changed := source{src.name, src.text + "\n"}
		if got, _ := embedded(changed, "sm_80"); got != nil {
			t.Errorf("%s, changed, has code", src.name)
		}
	}
}

// TestCubinFrom: code comes from the cache when it is there, and a compiler that cannot be opened is an error, not a panic.
func TestCubinFrom(t *testing.T) {
	if _, err := code.ReadDir("code"); err == nil {
		t.Skip("a release needs no compiler")
	}
	_, err := cubin(source{"x.cu", ""}, "sm_80", "", func() (*nvrtc, error) { return nil, os.ErrNotExist })
	if err == nil {
		t.Error("compiled without a compiler")
	}
	name := filepath.Join(t.TempDir(), "a", "b")
	if err := pack(name, []byte("text")); err != nil {
		t.Fatal(err)
	}
	if raw, err := os.ReadFile(name); err != nil || len(raw) == 0 {
		t.Errorf("packed: %d bytes, %v", len(raw), err)
	}
}
