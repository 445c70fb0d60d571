// Command gen writes the assembly of package gemm: one tile kernel per instruction family and number of rows, and the
// vector kernels around them. Run it through `go generate` in package gemm.
//
// A tile kernel computes rows x 32 outputs: C[r][j] = sum over k of A[r][k] * B[k][j], with B a packed panel (see
// package gemm). Each output has one accumulator that takes k in order, whatever the number of rows, so a row's result
// does not depend on its company.
package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	"github.com/mmcloughlin/avo/ir"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

func main() {
	ConstraintExpr("amd64")
	for rows := 1; rows <= 12; rows++ {
		tileBF16(rows)
	}
	for rows := 1; rows <= 12; rows++ {
		tileF32(rows, false)
		tileF32(rows, true)
	}
	for rows := 1; rows <= 6; rows++ {
		tileAVX2(rows, false)
		tileAVX2(rows, true)
	}
	peakBF16()
	peakF32()
	peakAVX2()
	roundBF16()
	exp512()
	softmax512()
	sum2()
	exp2()
	scaleAdd512()
	scaleAdd2()
	Generate()
}

// op emits an instruction as bytes: the assembler knows no AVX-512 BF16.
func op(bytes ...byte) {
	ops := make([]Op, len(bytes))
	for i, b := range bytes {
		ops[i] = U8(b)
	}
	Instruction(&ir.Instruction{Opcode: "BYTE", Operands: ops[:1]})
	for _, o := range ops[1:] {
		Instruction(&ir.Instruction{Opcode: "BYTE", Operands: []Op{o}})
	}
}

// evex encodes the register form of an EVEX.512.F3.0F38.W0 instruction: dst and rm are zmm numbers, src the vvvv one.
func evex(opcode byte, dst, src, rm int) {
	inv := func(n, bit int) byte { return byte(^n>>bit) & 1 }
	p0 := inv(dst, 3)<<7 | inv(rm, 4)<<6 | inv(rm, 3)<<5 | inv(dst, 4)<<4 | 0x2
	p1 := byte(^src&15)<<3 | 0x4 | 0x2
	p2 := byte(0x40) | inv(src, 4)<<3
	op(0x62, p0, p1, p2, opcode, 0xC0|byte(dst&7)<<3|byte(rm&7))
}

// vdpbf16ps is dst += src . rm over pairs.
func vdpbf16ps(dst, src, rm int) { evex(0x52, dst, src, rm) }

// vcvtneps2bf16 rounds zmm rm to the ymm dst; it has no vvvv operand.
func vcvtneps2bf16(dst, rm int) { evex(0x72, dst, 0, rm) }

var zmm = []reg.VecPhysical{
	reg.Z0, reg.Z1, reg.Z2, reg.Z3, reg.Z4, reg.Z5, reg.Z6, reg.Z7, reg.Z8, reg.Z9, reg.Z10, reg.Z11, reg.Z12, reg.Z13, reg.Z14, reg.Z15,
	reg.Z16, reg.Z17, reg.Z18, reg.Z19, reg.Z20, reg.Z21, reg.Z22, reg.Z23, reg.Z24, reg.Z25, reg.Z26, reg.Z27, reg.Z28, reg.Z29, reg.Z30, reg.Z31,
}

var ymm = []reg.VecPhysical{
	reg.Y0, reg.Y1, reg.Y2, reg.Y3, reg.Y4, reg.Y5, reg.Y6, reg.Y7, reg.Y8, reg.Y9, reg.Y10, reg.Y11, reg.Y12, reg.Y13, reg.Y14, reg.Y15,
}

// rowsOf addresses the rows of a matrix from few registers: every third row has one, the two after it use the pitch
// as an index.
type rowsOf struct {
	base  []reg.GPVirtual
	pitch reg.GPVirtual
}

func loadRows(arg, pitchArg string, rows int) rowsOf {
	r := rowsOf{pitch: GP64()}
	Load(Param(pitchArg), r.pitch)
	first := GP64()
	Load(Param(arg), first)
	r.base = append(r.base, first)
	if rows > 3 {
		three := GP64()
		LEAQ(Mem{Base: r.pitch, Index: r.pitch, Scale: 2}, three)
		for i := 3; i < rows; i += 3 {
			next := GP64()
			LEAQ(Mem{Base: r.base[len(r.base)-1], Index: three, Scale: 1}, next)
			r.base = append(r.base, next)
		}
	}
	return r
}

func (r rowsOf) at(row, disp int) Mem {
	m := Mem{Base: r.base[row/3], Disp: disp}
	if row%3 > 0 {
		m.Index, m.Scale = r.pitch, uint8(row%3)
	}
	return m
}

func (r rowsOf) advance(n int) {
	for _, b := range r.base {
		ADDQ(U32(uint32(n)), b)
	}
}

// loop runs body for n times four steps and then for the rest one by one. advance moves the pointers by so many steps.
func loop(name string, n reg.GPVirtual, body func(step int), advance func(steps int)) {
	const unroll = 4
	four := GP64()
	MOVQ(n, four)
	SHRQ(U8(2), four)
	JZ(LabelRef(name + "rest"))
	Label(name + "four")
	for i := range unroll {
		body(i)
	}
	advance(unroll)
	DECQ(four)
	JNZ(LabelRef(name + "four"))
	Label(name + "rest")
	ANDQ(U8(unroll-1), n)
	JZ(LabelRef(name + "done"))
	Label(name + "one")
	body(0)
	advance(1)
	DECQ(n)
	JNZ(LabelRef(name + "one"))
	Label(name + "done")
}

const tileSignature = "func(c *float32, ldc int, a *byte, lda int, b *byte, steps int)"

// tileBF16 takes bf16 pairs of A against a packed panel with VDPBF16PS: two accumulators a row.
func tileBF16(rows int) {
	name := fmt.Sprintf("tileBF16x%d", rows)
	TEXT(name, NOSPLIT, tileSignature)
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes %d x 32 outputs from bf16 pairs of A.", name, rows))
	a := loadRows("a", "lda", rows)
	b, n := GP64(), GP64()
	Load(Param("b"), b)
	Load(Param("steps"), n)
	acc := func(r, half int) int { return 2*r + half }
	const b0, b1, spare = 24, 25, 26
	for i := range 2 * rows {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	loop("", n, func(s int) {
		VMOVDQU32(Mem{Base: b, Disp: 128 * s}, zmm[b0])
		VMOVDQU32(Mem{Base: b, Disp: 128*s + 64}, zmm[b1])
		for r := range rows {
			t := spare + r%6
			VPBROADCASTD(a.at(r, 4*s), zmm[t])
			vdpbf16ps(acc(r, 0), b0, t)
			vdpbf16ps(acc(r, 1), b1, t)
		}
	}, func(steps int) {
		ADDQ(U32(uint32(128*steps)), b)
		a.advance(4 * steps)
	})
	store512(rows)
}

// store512 writes accumulators 2r and 2r+1 to row r of C.
func store512(rows int) {
	c := loadRows("c", "ldc", rows)
	for r := range rows {
		VMOVUPS(zmm[2*r], c.at(r, 0))
		VMOVUPS(zmm[2*r+1], c.at(r, 64))
	}
	VZEROUPPER()
	RET()
}

// tileF32 multiplies fp32 rows of A with FMA. With plain set, the panel is fp32, one k a step; else it is the packed
// bf16 panel, widened in registers, and a step is a pair of k: first the even, then the odd.
func tileF32(rows int, plain bool) {
	name := fmt.Sprintf("tileF32x%d", rows)
	if plain {
		name = fmt.Sprintf("tilePlainF32x%d", rows)
	}
	TEXT(name, NOSPLIT, tileSignature)
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes %d x 32 outputs from fp32 rows of A.", name, rows))
	a := loadRows("a", "lda", rows)
	b, n := GP64(), GP64()
	Load(Param("b"), b)
	Load(Param("steps"), n)
	for i := range 2 * rows {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	const raw0, raw1, w0, w1, mask = 24, 25, 26, 27, 28
	fma := func(disp, x0, x1 int) {
		for r := range rows {
			t := 29 + r%3
			VBROADCASTSS(a.at(r, disp), zmm[t])
			VFMADD231PS(zmm[x0], zmm[t], zmm[2*r])
			VFMADD231PS(zmm[x1], zmm[t], zmm[2*r+1])
		}
	}
	bytes := 4
	if plain {
		loop("", n, func(s int) {
			VMOVUPS(Mem{Base: b, Disp: 128 * s}, zmm[w0])
			VMOVUPS(Mem{Base: b, Disp: 128*s + 64}, zmm[w1])
			fma(4*s, w0, w1)
		}, func(steps int) {
			ADDQ(U32(uint32(128*steps)), b)
			a.advance(bytes * steps)
		})
		store512(rows)
		return
	}
	bytes = 8
	ones := GP32()
	MOVL(U32(0xffff0000), ones)
	VPBROADCASTD(ones, zmm[mask])
	loop("", n, func(s int) {
		VMOVDQU32(Mem{Base: b, Disp: 128 * s}, zmm[raw0])
		VMOVDQU32(Mem{Base: b, Disp: 128*s + 64}, zmm[raw1])
		VPSLLD(U8(16), zmm[raw0], zmm[w0])
		VPSLLD(U8(16), zmm[raw1], zmm[w1])
		fma(8*s, w0, w1)
		VPANDD(zmm[mask], zmm[raw0], zmm[w0])
		VPANDD(zmm[mask], zmm[raw1], zmm[w1])
		fma(8*s+4, w0, w1)
	}, func(steps int) {
		ADDQ(U32(uint32(128*steps)), b)
		a.advance(bytes * steps)
	})
	store512(rows)
}

// tileAVX2 is tileF32 with 256-bit registers: the panel's 32 columns in two halves of 16, two accumulators a row.
func tileAVX2(rows int, plain bool) {
	name := fmt.Sprintf("tileAVX2x%d", rows)
	if plain {
		name = fmt.Sprintf("tilePlainAVX2x%d", rows)
	}
	TEXT(name, NOSPLIT, tileSignature)
	Pragma("noescape")
	Doc(fmt.Sprintf("%s computes %d x 32 outputs from fp32 rows of A.", name, rows))
	for half := range 2 {
		halfAVX2(rows, plain, half)
	}
	VZEROUPPER()
	RET()
}

func halfAVX2(rows int, plain bool, half int) {
	a := loadRows("a", "lda", rows)
	b, n := GP64(), GP64()
	Load(Param("b"), b)
	ADDQ(U32(uint32(64*half)), b)
	Load(Param("steps"), n)
	for i := range 2 * rows {
		VXORPS(ymm[i], ymm[i], ymm[i])
	}
	const w0, w1, t0 = 12, 13, 14
	fma := func(disp int) {
		for r := range rows {
			t := t0 + r%2
			VBROADCASTSS(a.at(r, disp), ymm[t])
			VFMADD231PS(ymm[w0], ymm[t], ymm[2*r])
			VFMADD231PS(ymm[w1], ymm[t], ymm[2*r+1])
		}
	}
	label := fmt.Sprintf("h%d", half)
	if plain {
		loop(label, n, func(s int) {
			VMOVUPS(Mem{Base: b, Disp: 128 * s}, ymm[w0])
			VMOVUPS(Mem{Base: b, Disp: 128*s + 32}, ymm[w1])
			fma(4 * s)
		}, func(steps int) {
			ADDQ(U32(uint32(128*steps)), b)
			a.advance(4 * steps)
		})
	} else {
		loop(label, n, func(s int) {
			VPSLLD(U8(16), load256(b, 128*s, w0), ymm[w0])
			VPSLLD(U8(16), load256(b, 128*s+32, w1), ymm[w1])
			fma(8 * s)
			for i, w := range []int{w0, w1} { // the odd ones: the low half shifted out and zeros in
				load256(b, 128*s+32*i, w)
				VPSRLD(U8(16), ymm[w], ymm[w])
				VPSLLD(U8(16), ymm[w], ymm[w])
			}
			fma(8*s + 4)
		}, func(steps int) {
			ADDQ(U32(uint32(128*steps)), b)
			a.advance(8 * steps)
		})
	}
	c := loadRows("c", "ldc", rows)
	for r := range rows {
		VMOVUPS(ymm[2*r], c.at(r, 64*half))
		VMOVUPS(ymm[2*r+1], c.at(r, 64*half+32))
	}
}

func load256(b reg.GPVirtual, disp, to int) reg.VecPhysical {
	VMOVDQU(Mem{Base: b, Disp: disp}, ymm[to])
	return ymm[to]
}
