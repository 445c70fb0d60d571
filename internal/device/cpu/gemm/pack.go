package gemm

import "unsafe"

// Packed is a weight [N, K] in panels of bf16 pairs.
type Packed struct {
	N, K  int
	steps int
	data  []byte
}

// PackedSize is the bytes that a weight takes.
func PackedSize(n, k int) int64 { return int64(panels(n)) * int64((k+1)/2) * Cols * 4 }

func panels(n int) int { return (n + Cols - 1) / Cols }

// NewPacked lays a weight out in data, which has PackedSize bytes. Fill its panels with Pack before use.
func NewPacked(n, k int, data []byte) *Packed {
	return &Packed{N: n, K: k, steps: (k + 1) / 2, data: data}
}

// Panels is how many panels there are; Padded is N rounded up to whole panels.
func (p *Packed) Panels() int { return panels(p.N) }

// Padded is N rounded up to whole panels.
func (p *Packed) Padded() int { return panels(p.N) * Cols }

// Size is the bytes in memory.
func (p *Packed) Size() int64 { return int64(len(p.data)) }

func (p *Packed) panel(i int) []uint32 {
	size := p.steps * Cols
	return unsafe.Slice((*uint32)(unsafe.Pointer(&p.data[i*size*4])), size)
}

// Pack fills panel i from its rows: rows[j] is row 32i+j as K bf16 values; fewer than 32 rows leave zeros.
func (p *Packed) Pack(i int, rows [][]uint16) {
	panel := p.panel(i)
	if len(rows) < Cols {
		clear(panel)
	}
	const block = 32 // pairs of k at a time: 32 rows of 128 bytes stay in the first-level cache
	for s0 := 0; s0 < p.K/2; s0 += block {
		s1 := min(s0+block, p.K/2)
		for j, row := range rows {
			pairs := row[2*s0 : 2*s1]
			at := s0*Cols + j
			for s := 0; s+1 < len(pairs); s += 2 {
				panel[at] = uint32(pairs[s]) | uint32(pairs[s+1])<<16
				at += Cols
			}
		}
	}
	if p.K%2 == 1 {
		for j, row := range rows {
			panel[(p.steps-1)*Cols+j] = uint32(row[p.K-1])
		}
	}
}

// Row writes row n as fp32.
func (p *Packed) Row(dst []float32, n int) {
	panel := p.panel(n / Cols)
	at := n % Cols
	for k := 0; k < p.K; k += 2 {
		pair := panel[at]
		dst[k] = widen(pair << 16)
		if k+1 < p.K {
			dst[k+1] = widen(pair & 0xffff0000)
		}
		at += Cols
	}
}

func widen(bits uint32) float32 { return *(*float32)(unsafe.Pointer(&bits)) }
