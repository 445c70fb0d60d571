package cuda

import (
	"os"
	"path/filepath"
	"sync"
	"testing"

	"larder/internal/device"
	"larder/internal/device/devicetest"
)

// testCache keeps compiled kernels over the devices of a test run, and the first of them keeps the context alive.
var testCache = sync.OnceValues(func() (string, error) {
	dir := filepath.Join(os.TempDir(), "larder-kernels")
	_, err := New(Config{CacheDir: dir})
	return dir, err
})

// openTest opens the GPU, or skips the test where there is none. LARDER_REQUIRE_CUDA=1 makes that a failure.
func openTest(t testing.TB) *Device {
	t.Helper()
	dir, err := testCache()
	if err != nil {
		if os.Getenv("LARDER_REQUIRE_CUDA") == "1" {
			t.Fatal(err)
		}
		t.Skip("no usable GPU: ", err)
	}
	d, err := New(Config{CacheDir: dir})
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestDevice runs the suite that every device passes.
func TestDevice(t *testing.T) {
	if err := openTest(t).Close(); err != nil {
		t.Fatal(err)
	}
	devicetest.Run(t, func(t testing.TB) device.Device { return openTest(t) })
}
