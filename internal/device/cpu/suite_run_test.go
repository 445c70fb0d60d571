package cpu_test

import (
	"testing"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu"
	"larder/internal/device/cpu/gemm"
)

// TestSuite runs the suite on every kernel family that this processor has, in both dtypes.
func TestSuite(t *testing.T) {
	for _, f := range gemm.Families() {
		for _, dtype := range []arch.DType{arch.BF16, arch.F32} {
			if f.BF16 && dtype == arch.F32 {
				continue
			}
			t.Run(f.Name+"/"+dtype.String(), func(t *testing.T) {
				Run(t, Config{DType: dtype, Open: func(t testing.TB) device.Device {
					d, err := cpu.New(cpu.Config{Kernels: f.Name, DType: dtype})
					if err != nil {
						t.Fatal(err)
					}
					return d
				}})
			})
		}
	}
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]cpu.Config{
		"threads": {Threads: -1}, "kernels": {Kernels: "sse9"}, "dtype": {DType: arch.F16}, "bf16 kernels in fp32": {Kernels: "avx512-bf16", DType: arch.F32},
	} {
		if d, err := cpu.New(cfg); err == nil {
			_ = d.Close()
			t.Errorf("%s: no error", name)
		}
	}
}
