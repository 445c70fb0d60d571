//go:build !amd64

package gemm

// native is empty: this processor computes in portable Go.
func native() []*Family { return nil }

// Sum adds words up, as fast as they can be read.
func Sum(x []uint64) uint64 { return goSum(x) }
