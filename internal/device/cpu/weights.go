package cpu

import (
	"fmt"
	"math"
	"unsafe"

	"larder/internal/arch"
	"larder/internal/device"
	"larder/internal/device/cpu/gemm"
)

// matrix is a packed weight.
type matrix struct{ *gemm.Packed }

// Shape implements device.Matrix.
func (m *matrix) Shape() (n, k int) { return m.N, m.K }

// vector is a weight that is used element by element, widened once.
type vector []float32

// Len implements device.Vector.
func (v vector) Len() int { return len(v) }

// Size implements device.Vector.
func (v vector) Size() int64 { return int64(len(v)) * 4 }

// experts is gate, up and down of each expert, all packed.
type experts struct {
	gate, up, down []*gemm.Packed
}

// Shape implements device.Experts.
func (e *experts) Shape() (n, hidden, intermediate int) {
	return len(e.gate), e.gate[0].K, e.gate[0].N
}

// Size implements device.Experts.
func (e *experts) Size() int64 {
	return int64(len(e.gate)) * (e.gate[0].Size() + e.up[0].Size() + e.down[0].Size())
}

// Matrix implements device.Weights.
func (d *Device) Matrix(parts ...device.Tensor) (device.Matrix, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	m, err := d.pack(parts)
	if err != nil {
		return nil, err
	}
	return &matrix{m}, nil
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
	raw := make([]uint16, t.Shape[0])
	values(&t, raw, 0)
	v := make(vector, len(raw))
	for i, b := range raw {
		v[i] = device.Float32(b)
	}
	return v, nil
}

// Experts implements device.Weights.
func (d *Device) Experts(gate, up, down []device.Tensor) (device.Experts, error) {
	if err := d.check(); err != nil {
		return nil, err
	}
	if len(gate) == 0 || len(up) != len(gate) || len(down) != len(gate) {
		return nil, fmt.Errorf("%w: %d gate, %d up and %d down projections", errShape, len(gate), len(up), len(down))
	}
	e := &experts{}
	for _, half := range []struct {
		from []device.Tensor
		to   *[]*gemm.Packed
	}{{gate, &e.gate}, {up, &e.up}, {down, &e.down}} {
		for i := range half.from {
			p, err := d.pack(half.from[i : i+1])
			if err != nil {
				return nil, err
			}
			*half.to = append(*half.to, p)
		}
	}
	for i := range e.gate {
		g, u, w := e.gate[i], e.up[i], e.down[i]
		if g.N != e.gate[0].N || g.K != e.gate[0].K || u.N != g.N || u.K != g.K || w.N != g.K || w.K != g.N {
			return nil, fmt.Errorf("%w: expert %d has gate [%d, %d], up [%d, %d], down [%d, %d]", errShape, i, g.N, g.K, u.N, u.K, w.N, w.K)
		}
	}
	return e, nil
}

// pack lays the parts' rows out one after another, in parallel. The values exist once: packed.
func (d *Device) pack(parts []device.Tensor) (*gemm.Packed, error) {
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
	b, err := alloc(gemm.PackedSize(n, k))
	if err != nil {
		return nil, err
	}
	d.keep(b)
	p := gemm.NewPacked(n, k, b.bytes)
	scratch := make([][]uint16, d.team.size)
	d.team.run(p.Panels(), func(worker, i int) {
		if scratch[worker] == nil {
			scratch[worker] = make([]uint16, gemm.Cols*k)
		}
		rows := make([][]uint16, 0, gemm.Cols)
		for r := i * gemm.Cols; r < min((i+1)*gemm.Cols, n); r++ {
			row := scratch[worker][len(rows)*k:][:k]
			rowOf(parts, r, row)
			rows = append(rows, row)
		}
		p.Pack(i, rows)
	})
	return p, nil
}

// rowOf reads row r of the concatenated parts.
func rowOf(parts []device.Tensor, r int, row []uint16) {
	for i := range parts {
		if n := parts[i].Shape[0]; r >= n {
			r -= n
			continue
		}
		values(&parts[i], row, int64(r)*int64(len(row)))
		return
	}
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
	if t.Data == nil {
		t.Dummy.Values(dst, off)
		return
	}
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
	sign, exp, frac := uint32(h>>15)<<31, uint32(h>>10)&31, uint32(h)&1023
	switch {
	case exp == 31:
		return math.Float32frombits(sign | 0x7f800000 | frac<<13)
	case exp == 0:
		v := float32(frac) * 0x1p-24
		if sign != 0 {
			v = -v
		}
		return v
	}
	return math.Float32frombits(sign | (exp+112)<<23 | frac<<13)
}
