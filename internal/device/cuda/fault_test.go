package cuda

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"unsafe"

	"larder/internal/device"
)

// TestOutOfMemory: what does not fit changes nothing.
func TestOutOfMemory(t *testing.T) {
	d := openTest(t)
	defer d.Close()
	if _, err := d.Alloc(d.memory * 2); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("twice the GPU's memory: %v", err)
	}
	if _, err := d.AllocHost(1 << 50); !errors.Is(err, device.ErrOutOfMemory) {
		t.Errorf("a petabyte of the host's memory: %v", err)
	}
	b, err := d.Alloc(1 << 20)
	if err != nil {
		t.Fatal("after that: ", err)
	}
	if err := b.Free(); err != nil {
		t.Error(err)
	}
}

// TestLost runs a kernel that stops the GPU, in a process of its own, for the context is lost with it. Every call after
// that must fail as lost, in one line, and none may hang.
func TestLost(t *testing.T) {
	if os.Getenv("LARDER_TRAP") != "" {
		trap(t)
		return
	}
	if err := openTest(t).Close(); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(os.Args[0], "-test.run", "^TestLost$", "-test.v", "-test.timeout", "60s")
	cmd.Env = append(os.Environ(), "LARDER_TRAP=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}

type trapArgs struct{ code int32 }

func trap(t *testing.T) {
	d := openTest(t)
	n, err := openCompiler("")
	if err != nil {
		t.Skip(err)
	}
	text, _, err := n.build(source{"trap.cu", `extern "C" __global__ void stop(int code) { if (code == 7) asm volatile("trap;"); }`}, d.target)
	if err != nil {
		t.Fatal(err)
	}
	err = d.on(func() error {
		var module uintptr
		if err := d.drv.call("cuModuleLoadData", d.drv.moduleLoad, uintptr(unsafe.Pointer(&module)), uintptr(unsafe.Pointer(&text[0]))); err != nil {
			return err
		}
		return d.findKernels(module, map[string]any{"stop": trapArgs{}})
	})
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.newStream()
	if err != nil {
		t.Fatal(err)
	}
	s.do(func() error { return launch(d, s.handle, "stop", 1, 1, 1, &trapArgs{7}) })
	if err := s.Record().Wait(); !errors.Is(err, device.ErrLost) {
		t.Errorf("waiting behind the trap: %v", err)
	}
	_, err = d.Alloc(1 << 20)
	_, err2 := d.NewStream("late")
	for _, err := range []error{err, err2, s.Close(), d.Close()} {
		if !errors.Is(err, device.ErrLost) || strings.Contains(err.Error(), "\n") {
			t.Errorf("after it: %v", err)
		}
	}
}
