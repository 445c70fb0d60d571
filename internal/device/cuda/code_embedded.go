//go:build larder_kernels

package cuda

import "embed"

//go:embed code/*.gz
var code embed.FS
