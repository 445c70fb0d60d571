package cuda

import (
	"fmt"
	"runtime"
	"unsafe"

	"larder/internal/device"
)

// CopyMethods implements device.Memory.
func (d *Device) CopyMethods() []device.CopyMethod {
	if d.drv.copyBatch == 0 && d.drv.copyBatchOld == 0 {
		return []device.CopyMethod{device.CopyEach, device.CopyKernel}
	}
	return []device.CopyMethod{device.CopyEach, device.CopyBatch, device.CopyKernel}
}

// CopyMany implements device.Stream.
func (s *stream) CopyMany(dst, src device.Buffer, pieces []device.Span, how device.CopyMethod) {
	s.do(func() error {
		to, err := s.dev.own(dst)
		if err != nil {
			return err
		}
		from, err := s.dev.own(src)
		if err != nil {
			return err
		}
		wide := true // all pieces can be read and written 16 bytes at a time
		for _, p := range pieces {
			if !to.inside(p.Dst, 0, p.N, 1) || !from.inside(p.Src, 0, p.N, 1) {
				return fmt.Errorf("cuda: copy of %d bytes leaves a buffer", p.N)
			}
			wide = wide && (uintptr(p.Dst)|uintptr(p.Src)|uintptr(p.N)|to.ptr|from.ptr)%16 == 0
		}
		switch {
		case how == device.CopyBatch && s.dev.drv.copyBatch|s.dev.drv.copyBatchOld != 0:
			return s.copyBatch(to.ptr, from.ptr, pieces)
		case how == device.CopyKernel && wide:
			return s.copyKernel(to.ptr, from.ptr, pieces, copyBlocks)
		}
		return s.copyEach(to.ptr, from.ptr, pieces)
	})
}

func (s *stream) copyEach(dst, src uintptr, pieces []device.Span) error {
	for _, p := range pieces {
		if p.N == 0 {
			continue
		}
		if err := s.copy(dst+uintptr(p.Dst), 0, src+uintptr(p.Src), 0, p.N, 1); err != nil {
			return err
		}
	}
	return nil
}

// batchLists are the arguments of a batched copy; the driver reads them during the call.
type batchLists struct {
	dst, src, size []uintptr
	attributes     copyAttributes
	first, failed  uintptr
}

// copyAttributes is CUmemcpyAttributes: the source is read in the order of the stream.
type copyAttributes struct {
	order              int32
	srcKind, srcNumber int32
	dstKind, dstNumber int32
	flags              uint32
}

const inStreamOrder = 1 // CU_MEMCPY_SRC_ACCESS_ORDER_STREAM

func (s *stream) copyBatch(dst, src uintptr, pieces []device.Span) error {
	l := &s.batch
	l.dst, l.src, l.size = l.dst[:0], l.src[:0], l.size[:0]
	for _, p := range pieces {
		if p.N > 0 {
			l.dst, l.src, l.size = append(l.dst, dst+uintptr(p.Dst)), append(l.src, src+uintptr(p.Src)), append(l.size, uintptr(p.N))
		}
	}
	if len(l.dst) == 0 {
		return nil
	}
	l.attributes.order = inStreamOrder
	args := []uintptr{uintptr(unsafe.Pointer(&l.dst[0])), uintptr(unsafe.Pointer(&l.src[0])), uintptr(unsafe.Pointer(&l.size[0])), uintptr(len(l.dst)),
		uintptr(unsafe.Pointer(&l.attributes)), uintptr(unsafe.Pointer(&l.first)), 1}
	fn := s.dev.drv.copyBatch
	if fn == 0 {
		fn = s.dev.drv.copyBatchOld
		args = append(args, uintptr(unsafe.Pointer(&l.failed)))
	}
	err := s.dev.drv.call("cuMemcpyBatchAsync", fn, append(args, s.handle)...)
	runtime.KeepAlive(l)
	return err
}

// copyPieces is the kernel's argument.
type copyPieces struct {
	at [160]struct {
		dst, src uintptr
		n        int64 // in 16 bytes
	}
	count int64
}

type copyArgs struct{ pieces copyPieces }

// copyBlocks is how many blocks of threads move pieces.
const copyBlocks = 16

func (s *stream) copyKernel(dst, src uintptr, pieces []device.Span, blocks int) error {
	args := &copyArgs{}
	for len(pieces) > 0 {
		n := min(len(pieces), len(args.pieces.at))
		for i, p := range pieces[:n] {
			at := &args.pieces.at[i]
			at.dst, at.src, at.n = dst+uintptr(p.Dst), src+uintptr(p.Src), p.N/16
		}
		args.pieces.count = int64(n)
		if err := launch(s.dev, s.handle, "copy_pieces", blocks, 1, 256, args); err != nil {
			return err
		}
		pieces = pieces[n:]
	}
	return nil
}
