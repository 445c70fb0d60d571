package cuda

import (
	"errors"
	"fmt"
	"math"
	"unsafe"

	"larder/internal/arch"
	"larder/internal/device"
)

// matrix is bf16 rows [n, k], ld elements apart: k up to whole 16 bytes, padded with zeros.
type matrix struct {
	b        *buffer
	n, k, ld int
	tiles    tensorMap // where hasMany
}

// Shape implements device.Matrix.
func (m *matrix) Shape() (n, k int) { return m.n, m.k }

// Size implements device.Matrix.
func (m *matrix) Size() int64 { return m.b.size }

// vector is fp32 values.
type vector struct {
	b *buffer
	n int
}

// Len implements device.Vector.
func (v *vector) Len() int { return v.n }

// Size implements device.Vector.
func (v *vector) Size() int64 { return v.b.size }

// experts is gate and up in one matrix per expert, eight rows of each in turn, and down. Widths are padded with zeros to
// multiples of 8: what the padding computes is zero.
type experts struct {
	both, down           *buffer
	n, hidden, inner     int
	hiddenPad, innerPad  int
	bothStride, downStep int64     // elements of one expert
	bothMap, downMap     tensorMap // where hasMany
}

// Shape implements device.Experts.
func (e *experts) Shape() (n, hidden, intermediate int) { return e.n, e.hidden, e.inner }

// Size implements device.Experts.
func (e *experts) Size() int64 { return e.both.size + e.down.size }

// pad8 is n up to a multiple of 8: rows of bf16 in whole 16 bytes.
func pad8(n int) int { return (n + 7) / 8 * 8 }

var errShape = errors.New("cuda: wrong shape")

// rows says where rows of a tensor go in memory.
type rows struct {
	start, ld     int64
	stride, first int32
}

type dummyArgs struct {
	dst           uintptr
	p             rows
	rows, k       int64
	seed          uint64
	scale, offset float32
}

type placeRowsArgs struct {
	dst            uintptr
	p              rows
	src            uintptr
	first, rows, k int64
}

type widenArgs struct {
	dst, src uintptr
	n        int32
}

// Matrix implements device.Weights.
func (d *Device) Matrix(parts ...device.Tensor) (device.Matrix, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	n, k := 0, 0
	for i := range parts {
		t := &parts[i]
		if len(t.Shape) != 2 || i > 0 && t.Shape[1] != k {
			return nil, fmt.Errorf("%w: %s has %v, a matrix of %d columns is wanted", errShape, t.Name, t.Shape, k)
		}
		if err := checkTensor(t); err != nil {
			return nil, err
		}
		n, k = n+t.Shape[0], t.Shape[1]
	}
	if n == 0 || k == 0 {
		return nil, fmt.Errorf("%w: an empty matrix", errShape)
	}
	m := &matrix{n: n, k: k, ld: pad8(k)}
	err := d.upload(func(u *uploader) error {
		var err error
		if m.b, err = d.zeroed(int64(n) * int64(m.ld) * 2); err != nil {
			return err
		}
		at := int64(0)
		for i := range parts {
			if err := u.rows(m.b, rows{start: at, ld: int64(m.ld), stride: 1}, &parts[i]); err != nil {
				return err
			}
			at += int64(parts[i].Shape[0])
		}
		m.tiles, err = d.mapWeight(m.b, m.ld)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, freeAll(m.b))
	}
	return m, nil
}

// Vector implements device.Weights.
func (d *Device) Vector(t device.Tensor) (device.Vector, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if len(t.Shape) != 1 {
		return nil, fmt.Errorf("%w: %s has %v, a vector is wanted", errShape, t.Name, t.Shape)
	}
	if err := checkTensor(&t); err != nil {
		return nil, err
	}
	v := &vector{n: t.Shape[0]}
	var raw *buffer
	err := d.upload(func(u *uploader) error {
		var err error
		if raw, err = d.alloc(int64(v.n)*2, false); err != nil {
			return err
		}
		if v.b, err = d.alloc(int64(v.n)*4, false); err != nil {
			return err
		}
		row := t
		row.Shape = []int{1, v.n}
		if err := u.rows(raw, rows{ld: int64(v.n), stride: 1}, &row); err != nil {
			return err
		}
		return launch(d, d.setup.handle, "widen", (v.n+255)/256, 1, 256, &widenArgs{v.b.ptr, raw.ptr, int32(v.n)})
	})
	err = errors.Join(err, freeAll(raw))
	if err != nil {
		return nil, errors.Join(err, freeAll(v.b))
	}
	return v, nil
}

// Experts implements device.Weights.
func (d *Device) Experts(gate, up, down []device.Tensor) (device.Experts, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	e, err := shapeExperts(gate, up, down)
	if err != nil {
		return nil, err
	}
	err = d.upload(func(u *uploader) error {
		var err error
		if e.both, err = d.zeroed(int64(e.n) * e.bothStride * 2); err != nil {
			return err
		}
		if e.down, err = d.zeroed(int64(e.n) * e.downStep * 2); err != nil {
			return err
		}
		for i := range gate {
			both := rows{start: int64(i) * int64(2*e.innerPad), ld: int64(e.hiddenPad), stride: 2}
			other := both
			other.first = 1
			to := rows{start: int64(i) * int64(e.hidden), ld: int64(e.innerPad), stride: 1}
			if err := errors.Join(u.rows(e.both, both, &gate[i]), u.rows(e.both, other, &up[i]), u.rows(e.down, to, &down[i])); err != nil {
				return err
			}
		}
		if e.bothMap, err = d.mapWeight(e.both, e.hiddenPad); err != nil {
			return err
		}
		e.downMap, err = d.mapWeight(e.down, e.innerPad)
		return err
	})
	if err != nil {
		return nil, errors.Join(err, freeAll(e.both, e.down))
	}
	return e, nil
}

func shapeExperts(gate, up, down []device.Tensor) (*experts, error) {
	if len(gate) == 0 || len(up) != len(gate) || len(down) != len(gate) {
		return nil, fmt.Errorf("%w: %d gate, %d up and %d down projections", errShape, len(gate), len(up), len(down))
	}
	for _, list := range [][]device.Tensor{gate, up, down} {
		for i := range list {
			if len(list[i].Shape) != 2 {
				return nil, fmt.Errorf("%w: %s has %v, a matrix is wanted", errShape, list[i].Name, list[i].Shape)
			}
			if err := checkTensor(&list[i]); err != nil {
				return nil, err
			}
		}
	}
	inner, hidden := gate[0].Shape[0], gate[0].Shape[1]
	for i := range gate {
		g, u, w := gate[i].Shape, up[i].Shape, down[i].Shape
		if g[0] != inner || g[1] != hidden || u[0] != inner || u[1] != hidden || w[0] != hidden || w[1] != inner {
			return nil, fmt.Errorf("%w: expert %d has gate %v, up %v, down %v", errShape, i, g, u, w)
		}
	}
	e := &experts{n: len(gate), hidden: hidden, inner: inner, hiddenPad: pad8(hidden), innerPad: pad8(inner)}
	e.bothStride, e.downStep = int64(2*e.innerPad)*int64(e.hiddenPad), int64(hidden)*int64(e.innerPad)
	return e, nil
}

func freeAll(list ...*buffer) error {
	var errs []error
	for _, b := range list {
		if b != nil {
			errs = append(errs, b.Free())
		}
	}
	return errors.Join(errs...)
}

// uploader brings rows of tensors to the GPU, one upload at a time.
type uploader struct {
	dev         *Device
	stage, near *buffer // pinned memory and as much of the GPU's; made when the first checkpoint bytes come, and kept
}

const stageBytes = 16 << 20

// upload runs f with an uploader and waits for all that it queued.
func (d *Device) upload(f func(*uploader) error) error {
	d.setupMu.Lock()
	defer d.setupMu.Unlock()
	d.uploader.dev = d
	err := f(&d.uploader)
	if err == nil || !errors.Is(err, device.ErrLost) {
		err = errors.Join(err, d.on(func() error { return d.drv.call("cuStreamSynchronize", d.drv.streamSync, d.setup.handle) }))
	}
	return err
}

// rows lays a matrix out.
func (u *uploader) rows(dst *buffer, to rows, t *device.Tensor) error {
	d := u.dev
	n, k := int64(t.Shape[0]), int64(t.Shape[1])
	if t.Data == nil {
		return d.on(func() error {
			return launch(d, d.setup.handle, "dummy", min(int((n*k+1023)/1024), 1<<16), 1, 256,
				&dummyArgs{dst.ptr, to, n, k, t.Dummy.Seed, t.Dummy.Scale, t.Dummy.Offset})
		})
	}
	if err := u.makeStage(k * 2); err != nil {
		return err
	}
	at := max(u.stage.size/(k*2), 1)
	for first := int64(0); first < n; first += at {
		if err := u.piece(dst, to, t, first, min(at, n-first)); err != nil {
			return err
		}
	}
	return nil
}

func (u *uploader) makeStage(row int64) error {
	if u.stage != nil && u.stage.size >= row {
		return nil
	}
	if err := freeAll(u.stage, u.near); err != nil {
		return err
	}
	var err error
	if u.stage, err = u.dev.alloc(max(row, stageBytes), true); err != nil {
		return err
	}
	u.near, err = u.dev.alloc(max(row, stageBytes), false)
	return err
}

// piece converts rows to bf16 in pinned memory, copies them, and lays them out. It waits: the memory is used again.
func (u *uploader) piece(dst *buffer, to rows, t *device.Tensor, first, n int64) error {
	d := u.dev
	k := int64(t.Shape[1])
	values(t, unsafe.Slice((*uint16)(u.stage.host), n*k), first*k)
	return d.on(func() error {
		return errors.Join(
			d.drv.call("cuMemcpyAsync", d.drv.copyAsync, u.near.ptr, u.stage.ptr, uintptr(n*k*2), d.setup.handle),
			launch(d, d.setup.handle, "place_rows", min(int((n*k+1023)/1024), 1<<16), 1, 256, &placeRowsArgs{dst.ptr, to, u.near.ptr, first, n, k}),
			d.drv.call("cuStreamSynchronize", d.drv.streamSync, d.setup.handle))
	})
}

func checkTensor(t *device.Tensor) error {
	n := int64(1)
	for _, s := range t.Shape {
		if s < 1 {
			return fmt.Errorf("%w: %s has %v", errShape, t.Name, t.Shape)
		}
		n *= int64(s)
	}
	if t.Data != nil && (t.DType.Size() == 0 || int64(len(t.Data)) != n*int64(t.DType.Size())) {
		return fmt.Errorf("%w: %s has %d bytes for %v of %v", errShape, t.Name, len(t.Data), t.Shape, t.DType)
	}
	return nil
}

// values reads elements from off on as bf16, rounding what is wider.
func values(t *device.Tensor, dst []uint16, off int64) {
	data := t.Data[off*int64(t.DType.Size()):]
	switch t.DType {
	case arch.BF16:
		copy(unsafe.Slice((*byte)(unsafe.Pointer(&dst[0])), 2*len(dst)), data)
	case arch.F16:
		for i := range dst {
			dst[i] = device.BF16(half(uint16(data[2*i]) | uint16(data[2*i+1])<<8))
		}
	case arch.F32:
		for i := range dst {
			b := data[4*i:]
			dst[i] = device.BF16(math.Float32frombits(uint32(b[0]) | uint32(b[1])<<8 | uint32(b[2])<<16 | uint32(b[3])<<24))
		}
	}
}

// half widens an IEEE 754 binary16 value.
func half(h uint16) float32 {
	sign, exp, frac := h>>15, int(h>>10)&31, float64(h&1023)
	var v float64
	switch exp {
	case 31:
		v = math.Inf(1)
		if frac != 0 {
			v = math.NaN()
		}
	case 0:
		v = math.Ldexp(frac, -24)
	default:
		v = math.Ldexp(1024+frac, exp-25)
	}
	if sign != 0 {
		v = -v
	}
	return float32(v)
}
