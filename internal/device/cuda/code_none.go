//go:build !larder_kernels

package cuda

import "embed"

// code is empty: kernels are compiled where they run.
var code embed.FS
