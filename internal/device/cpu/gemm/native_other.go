//go:build !amd64

package gemm

// native is empty: this processor computes in portable Go.
func native() []*Family { return nil }
