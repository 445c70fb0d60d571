package main

import (
	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	"github.com/mmcloughlin/avo/reg"
)

// sum2 adds words up: what reads memory as fast as the machine can.
func sum2() {
	TEXT("sumAVX2", NOSPLIT, "func(x *uint64, n int) uint64")
	Pragma("noescape")
	Doc("sumAVX2 adds n words; n is a multiple of 32.")
	x, n := GP64(), GP64()
	Load(Param("x"), x)
	Load(Param("n"), n)
	SHRQ(U8(5), n)
	for i := range 8 {
		VPXOR(ymm[i], ymm[i], ymm[i])
	}
	Label("loop")
	for i := range 8 {
		VPADDQ(Mem{Base: x, Disp: 32 * i}, ymm[i], ymm[i])
	}
	ADDQ(U32(256), x)
	DECQ(n)
	JNZ(LabelRef("loop"))
	for half := 4; half > 0; half /= 2 {
		for i := range half {
			VPADDQ(ymm[i+half], ymm[i], ymm[i])
		}
	}
	VEXTRACTI128(U8(1), reg.Y0, reg.X1)
	VPADDQ(reg.X1, reg.X0, reg.X0)
	VPSRLDQ(U8(8), reg.X0, reg.X1)
	VPADDQ(reg.X1, reg.X0, reg.X0)
	out := GP64()
	VMOVQ(reg.X0, out)
	Store(out, ReturnIndex(0))
	VZEROUPPER()
	RET()
}
