package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// peak loops keep every accumulator busy and never leave the registers: the ceiling of each family.

func peakBF16() {
	TEXT("peakBF16", NOSPLIT, "func(n int)")
	Doc("peakBF16 runs n x 24 VDPBF16PS: 64 operations each.")
	n := GP64()
	Load(Param("n"), n)
	for i := range 32 {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	Label("loop")
	for i := range 24 {
		vdpbf16ps(i, 24+i%4, 28+i%4)
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func peakF32() {
	TEXT("peakF32", NOSPLIT, "func(n int)")
	Doc("peakF32 runs n x 24 FMA of 16 lanes: 32 operations each.")
	n := GP64()
	Load(Param("n"), n)
	for i := range 32 {
		VPXORD(zmm[i], zmm[i], zmm[i])
	}
	Label("loop")
	for i := range 24 {
		VFMADD231PS(zmm[24+i%4], zmm[28+i%4], zmm[i])
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func peakAVX2() {
	TEXT("peakAVX2", NOSPLIT, "func(n int)")
	Doc("peakAVX2 runs n x 12 FMA of 8 lanes: 16 operations each.")
	n := GP64()
	Load(Param("n"), n)
	for i := range 16 {
		VXORPS(ymm[i], ymm[i], ymm[i])
	}
	Label("loop")
	for i := range 12 {
		VFMADD231PS(ymm[12+i%2], ymm[14+i%2], ymm[i])
	}
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// roundBF16 rounds fp32 to bf16, 16 at a time.
func roundBF16() {
	TEXT("roundBF16", NOSPLIT, "func(dst *uint16, src *float32, n int)")
	Pragma("noescape")
	Doc("roundBF16 rounds n values to bf16, ties to even; n is a multiple of 16.")
	dst, src, n := GP64(), GP64(), GP64()
	Load(Param("dst"), dst)
	Load(Param("src"), src)
	Load(Param("n"), n)
	SHRQ(U8(4), n)
	Label("loop")
	VMOVUPS(Mem{Base: src}, zmm[0])
	vcvtneps2bf16(1, 0)
	VMOVDQU(reg.Y1, Mem{Base: dst})
	ADDQ(U8(64), src)
	ADDQ(U8(32), dst)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// The exponential: x = n ln2 + r with |r| <= ln2/2, e^r by a polynomial of degree 6 (Taylor; its error is below one
// unit in the last place of the result for this range), times 2^n by adding to the exponent field. Below -87.3 the
// result is 0; above 88 it stays e^88, which is what the callers' quotients need.
var expTaylor = []float32{1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1}

const (
	log2e = math.Log2E
	ln2Hi = 0.693359375
	ln2Lo = -2.12194440e-4
	expLo = -87.3
	expHi = 88
)

func broadcast512(v float32, to int) {
	t := GP32()
	MOVL(U32(math.Float32bits(v)), t)
	VPBROADCASTD(t, zmm[to])
}

// exp512 turns x into exp(scale*x - bias) in place and returns nothing: the sum is taken by the caller in one order.
func exp512() {
	TEXT("expAVX512", NOSPLIT, "func(x *float32, n int, scale, bias float32)")
	Pragma("noescape")
	Doc("expAVX512 replaces n values x by exp(scale*x - bias); n is a multiple of 16.")
	x, n := GP64(), GP64()
	Load(Param("x"), x)
	Load(Param("n"), n)
	SHRQ(U8(4), n)
	scale, bias := 20, 21
	VBROADCASTSS(NewParamAddr("scale", 16), zmm[scale])
	VBROADCASTSS(NewParamAddr("bias", 20), zmm[bias])
	const l2e, hi, lo, low, zero, high = 22, 23, 24, 25, 26, 27
	broadcast512(expHi, high)
	broadcast512(log2e, l2e)
	broadcast512(ln2Hi, hi)
	broadcast512(ln2Lo, lo)
	broadcast512(expLo, low)
	VPXORD(zmm[zero], zmm[zero], zmm[zero])
	const poly = 10
	for i, c := range expTaylor {
		broadcast512(c, poly+i)
	}
	Label("loop")
	VMOVUPS(Mem{Base: x}, zmm[0])
	VFMSUB213PS(zmm[bias], zmm[scale], zmm[0]) // x = x*scale - bias
	VMINPS(zmm[0], zmm[high], zmm[0])          // in this order a NaN stays one
	VCMPPS(U8(1), zmm[low], zmm[0], reg.K1)    // k1: x < low
	VMULPS(zmm[l2e], zmm[0], zmm[1])
	VRNDSCALEPS(U8(8), zmm[1], zmm[1])    // n, to nearest
	VFNMADD231PS(zmm[hi], zmm[1], zmm[0]) // r = x - n*hi
	VFNMADD231PS(zmm[lo], zmm[1], zmm[0]) // r -= n*lo
	VMOVAPS(zmm[poly], zmm[2])
	for i := 1; i < len(expTaylor); i++ {
		VFMADD213PS(zmm[poly+i], zmm[0], zmm[2]) // p = p*r + c
	}
	VCVTPS2DQ(zmm[1], zmm[1])
	VPSLLD(U8(23), zmm[1], zmm[1])
	VPADDD(zmm[1], zmm[2], zmm[2])
	VBLENDMPS(zmm[zero], zmm[2], reg.K1, zmm[2])
	VMOVUPS(zmm[2], Mem{Base: x})
	ADDQ(U8(64), x)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// exp2 is exp512 with 256-bit registers.
func exp2() {
	TEXT("expAVX2", NOSPLIT, "func(x *float32, n int, scale, bias float32, table *float32)")
	Pragma("noescape")
	Doc("expAVX2 replaces n values x by exp(scale*x - bias); n is a multiple of 8. table is expTable.")
	x, n, table := GP64(), GP64(), GP64()
	Load(Param("x"), x)
	Load(Param("n"), n)
	Load(Param("table"), table)
	SHRQ(U8(3), n)
	VBROADCASTSS(NewParamAddr("scale", 16), ymm[14])
	VBROADCASTSS(NewParamAddr("bias", 20), ymm[15])
	for i := range 11 { // log2e, hi, lo, low, then the polynomial
		VBROADCASTSS(Mem{Base: table, Disp: 4 * i}, ymm[3+i])
	}
	Label("loop")
	VMOVUPS(Mem{Base: x}, ymm[0])
	VFMSUB213PS(ymm[15], ymm[14], ymm[0])
	VMOVUPS(Mem{Base: table, Disp: 4 * 11}, ymm[1])
	VMINPS(ymm[0], ymm[1], ymm[0]) // in this order a NaN stays one
	VMOVUPS(ymm[0], Mem{Base: x})  // kept for the comparison: there are no registers left
	VMULPS(ymm[3], ymm[0], ymm[1])
	VROUNDPS(U8(8), ymm[1], ymm[1])
	VFNMADD231PS(ymm[4], ymm[1], ymm[0])
	VFNMADD231PS(ymm[5], ymm[1], ymm[0])
	VMOVAPS(ymm[7], ymm[2])
	for i := 1; i < len(expTaylor); i++ {
		VFMADD213PS(ymm[7+i], ymm[0], ymm[2])
	}
	VCVTPS2DQ(ymm[1], ymm[1])
	VPSLLD(U8(23), ymm[1], ymm[1])
	VPADDD(ymm[1], ymm[2], ymm[2])
	VMOVUPS(Mem{Base: x}, ymm[0])
	VCMPPS(U8(5), ymm[6], ymm[0], ymm[0]) // not x < low: a NaN passes
	VANDPS(ymm[0], ymm[2], ymm[2])
	VMOVUPS(ymm[2], Mem{Base: x})
	ADDQ(U8(32), x)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

// scaleAdd folds one tile of values into the running sum of attention: o = o*alpha + t.
func scaleAdd512() {
	TEXT("scaleAddAVX512", NOSPLIT, "func(o, t *float32, n int, alpha float32)")
	Pragma("noescape")
	Doc("scaleAddAVX512 sets o = o*alpha + t for n values; n is a multiple of 16.")
	o, t, n := GP64(), GP64(), GP64()
	Load(Param("o"), o)
	Load(Param("t"), t)
	Load(Param("n"), n)
	SHRQ(U8(4), n)
	VBROADCASTSS(NewParamAddr("alpha", 24), zmm[2])
	Label("loop")
	VMOVUPS(Mem{Base: o}, zmm[0])
	VFMADD213PS(Mem{Base: t}, zmm[2], zmm[0])
	VMOVUPS(zmm[0], Mem{Base: o})
	ADDQ(U8(64), o)
	ADDQ(U8(64), t)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}

func scaleAdd2() {
	TEXT("scaleAddAVX2", NOSPLIT, "func(o, t *float32, n int, alpha float32)")
	Pragma("noescape")
	Doc("scaleAddAVX2 sets o = o*alpha + t for n values; n is a multiple of 8.")
	o, t, n := GP64(), GP64(), GP64()
	Load(Param("o"), o)
	Load(Param("t"), t)
	Load(Param("n"), n)
	SHRQ(U8(3), n)
	VBROADCASTSS(NewParamAddr("alpha", 24), ymm[2])
	Label("loop")
	VMOVUPS(Mem{Base: o}, ymm[0])
	VFMADD213PS(Mem{Base: t}, ymm[2], ymm[0])
	VMOVUPS(ymm[0], Mem{Base: o})
	ADDQ(U8(32), o)
	ADDQ(U8(32), t)
	DECQ(n)
	JNZ(LabelRef("loop"))
	VZEROUPPER()
	RET()
}
