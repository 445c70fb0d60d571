package xfer

import (
	"fmt"
	"strings"

	"larder/internal/device"
)

// Method is which kind of copy a batch is.
type Method uint8

// The methods.
const (
	Auto   Method = iota // by the table, and 2-D copies where there are regular distances
	Runs                 // a copy for each run of neighbours
	Rows                 // 2-D copies for runs of one size at equal distances
	Batch                // one batched call of the driver
	Kernel               // a kernel over the host's memory
)

var methodNames = []string{Auto: "auto", Runs: "run", Rows: "2d", Batch: "batch", Kernel: "kernel"}

// String is the method's name in flags and reports.
func (m Method) String() string {
	if int(m) < len(methodNames) {
		return methodNames[m]
	}
	return fmt.Sprintf("method(%d)", uint8(m))
}

// MarshalText is the method's name, for JSON.
func (m Method) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads a method's name.
func (m *Method) UnmarshalText(b []byte) error {
	for i, name := range methodNames {
		if name == string(b) {
			*m = Method(i)
			return nil
		}
	}
	return fmt.Errorf("method %q: one of %s", b, strings.Join(methodNames, ", "))
}

// copies is the device's method that carries out a batch which is not 2-D.
func (m Method) copies() device.CopyMethod {
	switch m {
	case Batch:
		return device.CopyBatch
	case Kernel:
		return device.CopyKernel
	}
	return device.CopyEach
}

// Available says whether a device can do it.
func (m Method) Available(mem device.Memory) bool {
	if m == Auto || m == Rows {
		return true
	}
	for _, c := range mem.CopyMethods() {
		if c == m.copies() {
			return true
		}
	}
	return false
}

// fewGrids: 2-D copies are taken where they save most of the pieces.
const fewGrids = 8

// method chooses for a batch.
func (c *Config) method(b *batch) Method {
	switch {
	case c.Method != Auto:
		return c.Method
	case len(b.pieces) == 1:
		return Runs
	case len(b.pieces) >= fewGrids && len(grids(b.pieces))*fewGrids <= len(b.pieces):
		return Rows
	}
	return c.Table.choose(b.to, b.bytes/int64(len(b.pieces)), len(b.pieces))
}
