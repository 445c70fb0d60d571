//go:build !unix

package safetensors

import (
	"io"
	"os"
)

// mapFile reads the whole file where the system has no mmap that we use.
func mapFile(f *os.File, size int64) ([]byte, error) {
	data := make([]byte, size)
	_, err := io.ReadFull(io.NewSectionReader(f, 0, size), data)
	return data, err
}

func unmap([]byte) error { return nil }

func release([]byte, int64, int64) {}
