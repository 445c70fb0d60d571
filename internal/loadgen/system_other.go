//go:build !unix

package loadgen

import "time"

// open can not be known here without reading.
func (c *conn) open() bool { return true }

// processorTime is not known here.
func processorTime() time.Duration { return 0 }
