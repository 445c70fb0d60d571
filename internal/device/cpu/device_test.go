package cpu

import (
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
	"larder/internal/device/devicetest"
)

// TestDevice runs the shared suite on every kernel family of this processor, in bf16 and where it can in fp32.
func TestDevice(t *testing.T) {
	for _, f := range gemm.Families() {
		for _, dtype := range []arch.DType{arch.BF16, arch.F32} {
			if dtype == arch.F32 && f.BF16 {
				continue
			}
			t.Run(f.Name+"/"+dtype.String(), func(t *testing.T) {
				devicetest.Run(t, func(t testing.TB) device.Device {
					d, err := New(Config{Threads: 3, Kernels: f.Name, DType: dtype})
					if err != nil {
						t.Fatal(err)
					}
					return d
				})
			})
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]Config{
		"threads": {Threads: -1}, "kernels": {Kernels: "sse9"}, "dtype": {DType: arch.F16}, "bf16 kernels in fp32": {Kernels: "avx512-bf16", DType: arch.F32},
	} {
		if d, err := New(cfg); err == nil {
			_ = d.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
