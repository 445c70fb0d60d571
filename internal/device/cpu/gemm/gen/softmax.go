package main

import (
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// softmax512 is one row's step of the running softmax over 64 scores, all in registers: four vectors side by side keep
// the multipliers busy, and a fifth carries the factor for what was summed before.
func softmax512() {
	TEXT("softmaxAVX512", NOSPLIT, "func(x *float32, seen uint64, scale float32, top, sum *float32) float32")
	Pragma("noescape")
	Doc("softmaxAVX512 is Family.Softmax for 64 scores; seen has a bit for each that counts.")
	const scale, top, l2e, hi, lo, low, zero = 20, 21, 22, 23, 24, 25, 26
	const poly, rest, turns, power = 10, 0, 4, 28 // rest and power have four vectors each, and the old maximum's
	vectors := [5][3]int{{rest, turns, power}, {rest + 1, turns + 1, power + 1}, {rest + 2, turns + 2, power + 2}, {rest + 3, turns + 3, power + 3}, {8, 9, 17}}
	seen := []reg.Register{reg.K1, reg.K2, reg.K3, reg.K4}
	x, bits, topAt, sumAt := GP64(), GP64(), GP64(), GP64()
	Load(Param("x"), x)
	Load(Param("seen"), bits)
	Load(Param("top"), topAt)
	Load(Param("sum"), sumAt)
	VBROADCASTSS(NewParamAddr("scale", 16), zmm[scale])
	for i, c := range []float32{log2e, ln2Hi, ln2Lo, expLo} {
		broadcast512(c, l2e+i)
	}
	VPXORD(zmm[zero], zmm[zero], zmm[zero])
	for i, c := range expTaylor {
		broadcast512(c, poly+i)
	}
	broadcast512(float32(math.Inf(-1)), rest)
	for i := 1; i < 4; i++ {
		VMOVAPS(zmm[rest], zmm[rest+i])
	}
	for i := range 4 {
		KMOVW(bits.As32(), seen[i])
		SHRQ(U8(16), bits)
		VMULPS(Mem{Base: x, Disp: 64 * i}, zmm[scale], seen[i], zmm[rest+i]) // the others stay -Inf
	}
	VMAXPS(zmm[0], zmm[1], zmm[4])
	VMAXPS(zmm[2], zmm[3], zmm[5])
	VMAXPS(zmm[4], zmm[5], zmm[4])
	across(4, 5, func(a, b, to reg.VecPhysical) { VMAXPS(a, b, to) })
	VBROADCASTSS(Mem{Base: topAt}, zmm[8])
	VBROADCASTSS(reg.X4, zmm[top])
	VMAXPS(zmm[8], zmm[top], zmm[top])
	VMOVSS(reg.X21, Mem{Base: topAt})
	each := func(f func(r, n, p int)) {
		for _, v := range vectors {
			f(v[0], v[1], v[2])
		}
	}
	below := []reg.Register{reg.K1, reg.K2, reg.K3, reg.K4, reg.K5} // the masks of what counts are used up
	each(func(r, _, _ int) { VSUBPS(zmm[top], zmm[r], zmm[r]) })
	for i, v := range vectors {
		VCMPPS(U8(1), zmm[low], zmm[v[0]], below[i])
	}
	each(func(r, n, _ int) { VMULPS(zmm[l2e], zmm[r], zmm[n]) })
	each(func(_, n, _ int) { VRNDSCALEPS(U8(8), zmm[n], zmm[n]) })
	each(func(r, n, _ int) { VFNMADD231PS(zmm[hi], zmm[n], zmm[r]) })
	each(func(r, n, _ int) { VFNMADD231PS(zmm[lo], zmm[n], zmm[r]) })
	each(func(_, _, p int) { VMOVAPS(zmm[poly], zmm[p]) })
	for i := 1; i < len(expTaylor); i++ {
		each(func(r, _, p int) { VFMADD213PS(zmm[poly+i], zmm[r], zmm[p]) })
	}
	each(func(_, n, _ int) { VCVTPS2DQ(zmm[n], zmm[n]) })
	each(func(_, n, _ int) { VPSLLD(U8(23), zmm[n], zmm[n]) })
	each(func(_, n, p int) { VPADDD(zmm[n], zmm[p], zmm[p]) })
	for i, v := range vectors {
		VBLENDMPS(zmm[zero], zmm[v[2]], below[i], zmm[v[2]])
	}
	for i := range 4 {
		VMOVUPS(zmm[power+i], Mem{Base: x, Disp: 64 * i})
	}
	VADDPS(zmm[power], zmm[power+1], zmm[4])
	VADDPS(zmm[power+2], zmm[power+3], zmm[5])
	VADDPS(zmm[4], zmm[5], zmm[4])
	across(4, 5, func(a, b, to reg.VecPhysical) { VADDPS(a, b, to) })
	VMOVSS(Mem{Base: sumAt}, reg.X5)
	VFMADD213SS(reg.X4, reg.X17, reg.X5) // sum = sum * factor + these
	VMOVSS(reg.X5, Mem{Base: sumAt})
	VMOVSS(reg.X17, NewParamAddr("ret", 40))
	VZEROUPPER()
	RET()
}

// across folds the 16 lanes of zmm v into its first by halves, with spare for the other half.
func across(v, spare int, fold func(a, b, to reg.VecPhysical)) {
	xmm := []reg.VecPhysical{reg.X0, reg.X1, reg.X2, reg.X3, reg.X4, reg.X5}
	VEXTRACTF64X4(U8(1), zmm[v], ymm[spare])
	fold(ymm[spare], ymm[v], ymm[v])
	VEXTRACTF128(U8(1), ymm[v], xmm[spare])
	fold(xmm[spare], xmm[v], xmm[v])
	VPERMILPS(U8(0x4E), xmm[v], xmm[spare])
	fold(xmm[spare], xmm[v], xmm[v])
	VPERMILPS(U8(0xB1), xmm[v], xmm[spare])
	fold(xmm[spare], xmm[v], xmm[v])
}
