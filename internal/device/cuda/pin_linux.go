package cuda

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapHuge maps n bytes that start on a huge page, preferably on a NUMA node (-1: any). maps is what to unmap.
func mapHuge(n int64, node int) (maps, at []byte, err error) {
	maps, err = unix.Mmap(-1, 0, int(n)+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		return nil, nil, err
	}
	skip := -uintptr(unsafe.Pointer(&maps[0])) & (hugePage - 1)
	at = maps[skip:][:n]
	_ = unix.Madvise(at, unix.MADV_HUGEPAGE) // a system that has none goes on with small ones
	prefer(at, node)
	return maps, at, nil
}

// prefer asks for memory of a node. Where the system refuses, memory comes from anywhere.
func prefer(b []byte, node int) {
	const preferred, bits = 1, 64
	if node < 0 || node >= bits {
		return
	}
	mask := uint64(1) << node
	_, _, _ = unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)), preferred, uintptr(unsafe.Pointer(&mask)), bits+1, 0)
}

// populate has the system give the pages of b. Before Linux 5.14 each is written to.
func populate(b []byte) {
	if unix.Madvise(b, unix.MADV_POPULATE_WRITE) == nil {
		return
	}
	for i := 0; i < len(b); i += 4096 {
		b[i] = 0
	}
}

func unmap(b []byte) error { return unix.Munmap(b) }
