// Gencode compiles the CUDA kernels of a release into the folder that its first argument names. LARDER_NVRTC says where
// the run-time compiler is. See `make release`.
package main

import (
	"fmt"
	"os"

	"larder/internal/device/cuda"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: gencode FOLDER")
		os.Exit(2)
	}
	if err := cuda.WriteCode(os.Args[1], os.Getenv("LARDER_NVRTC")); err != nil {
		fmt.Fprintln(os.Stderr, "gencode:", err)
		os.Exit(1)
	}
}
