package cuda

import (
	"fmt"
	"unsafe"
)

// tensorMap is CUtensorMap: how the copy engine of compute capability 9.0 finds boxes in a matrix of bf16.
type tensorMap [16]uint64

// What cuTensorMapEncodeTiled names by number.
const (
	mapBF16       = 9
	mapSwizzle128 = 3
	mapPromote256 = 3
)

// mapRows describes rows of width elements that lie pitch elements apart, a multiple of 8, from ptr on. A box has boxRows
// rows and 64 elements of each, which land in shared memory in rows of 128 bytes with the swizzle of wgmma.cuh. What lies outside
// is read as zero.
func (d *Device) mapRows(ptr uintptr, rows int64, width int, pitch int64, boxRows int) (tensorMap, error) {
	type request struct {
		out    [2]tensorMap // one of them begins where it must, at a multiple of 64 bytes
		sizes  [2]uint64
		pitch  [1]uint64
		box    [2]uint32
		stride [2]uint32
	}
	r := &request{sizes: [2]uint64{uint64(width), uint64(rows)}, pitch: [1]uint64{uint64(pitch) * 2},
		box: [2]uint32{64, uint32(boxRows)}, stride: [2]uint32{1, 1}}
	off := -uintptr(unsafe.Pointer(&r.out)) & 63
	at := unsafe.Add(unsafe.Pointer(&r.out), off)
	err := d.on(func() error {
		return d.drv.call("cuTensorMapEncodeTiled", d.drv.encodeTiled, uintptr(at), mapBF16, 2, ptr, uintptr(unsafe.Pointer(&r.sizes)),
			uintptr(unsafe.Pointer(&r.pitch)), uintptr(unsafe.Pointer(&r.box)), uintptr(unsafe.Pointer(&r.stride)), 0, mapSwizzle128, mapPromote256, 0)
	})
	if err != nil {
		return tensorMap{}, fmt.Errorf("%w: %d rows of %d, boxes of %d", err, rows, width, boxRows)
	}
	return *(*tensorMap)(at), nil
}
