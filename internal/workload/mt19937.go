package workload

import "math/bits"

// twister is the MT19937 generator that numpy's legacy functions and CPython's random module share. The two seed it
// differently and turn its words into numbers differently; see numpyRand and pythonRand.
type twister struct {
	state [624]uint32
	next  int
}

// seedWord fills the state from one word (the authors' init_genrand), as numpy.random.seed does.
func (t *twister) seedWord(s uint32) {
	t.state[0] = s
	for i := 1; i < len(t.state); i++ {
		t.state[i] = 1812433253*(t.state[i-1]^t.state[i-1]>>30) + uint32(i)
	}
	t.next = len(t.state)
}

// seedKey fills the state from a key (the authors' init_by_array), as Python's random.seed does.
func (t *twister) seedKey(key []uint32) {
	const n = 624
	t.seedWord(19650218)
	i, j := 1, 0
	for range max(n, len(key)) {
		t.state[i] = (t.state[i] ^ (t.state[i-1]^t.state[i-1]>>30)*1664525) + key[j] + uint32(j)
		if i++; i == n {
			t.state[0], i = t.state[n-1], 1
		}
		if j++; j == len(key) {
			j = 0
		}
	}
	for range n - 1 {
		t.state[i] = (t.state[i] ^ (t.state[i-1]^t.state[i-1]>>30)*1566083941) - uint32(i)
		if i++; i == n {
			t.state[0], i = t.state[n-1], 1
		}
	}
	t.state[0] = 1 << 31
}

func (t *twister) refill() {
	const n, m = 624, 397
	for i := range t.state {
		y := t.state[i]&(1<<31) | t.state[(i+1)%n]&(1<<31-1)
		v := t.state[(i+m)%n] ^ y>>1
		if y&1 != 0 {
			v ^= 0x9908b0df
		}
		t.state[i] = v
	}
	t.next = 0
}

// word is the next 32 random bits.
func (t *twister) word() uint32 {
	if t.next == len(t.state) {
		t.refill()
	}
	y := t.state[t.next]
	t.next++
	y ^= y >> 11
	y ^= y << 7 & 0x9d2c5680
	y ^= y << 15 & 0xefc60000
	return y ^ y>>18
}

// float is uniform on [0,1) with 53 bits.
func (t *twister) float() float64 {
	a, b := t.word()>>5, t.word()>>6
	return (float64(a)*67108864 + float64(b)) / 9007199254740992
}

// pcg64 is numpy's default generator (PCG XSL RR 128/64), seeded through numpy's SeedSequence.
type pcg64 struct{ hi, lo, incHi, incLo uint64 }

func newPCG64(seed uint64) *pcg64 {
	w := seedSequence(seed)
	p := &pcg64{incHi: w[2]<<1 | w[3]>>63, incLo: w[3]<<1 | 1}
	p.step()
	var carry uint64
	p.lo, carry = bits.Add64(p.lo, w[1], 0)
	p.hi, _ = bits.Add64(p.hi, w[0], carry)
	p.step()
	return p
}

// step advances the 128-bit state by one multiply and add.
func (p *pcg64) step() {
	const mulHi, mulLo = 2549297995355413924, 4865540595714422341
	hi, lo := bits.Mul64(p.lo, mulLo)
	hi += p.hi*mulLo + p.lo*mulHi
	var carry uint64
	p.lo, carry = bits.Add64(lo, p.incLo, 0)
	p.hi, _ = bits.Add64(hi, p.incHi, carry)
}

// float is uniform on [0,1) with 53 bits.
func (p *pcg64) float() float64 {
	p.step()
	x := bits.RotateLeft64(p.hi^p.lo, -int(p.hi>>58))
	return float64(x>>11) / 9007199254740992
}

// seedSequence spreads a seed over four words as numpy's SeedSequence(seed).generate_state(4, uint64).
func seedSequence(seed uint64) [4]uint64 {
	const multA, multB = 0x931e8875, 0x58f38ded
	entropy := []uint32{uint32(seed), uint32(seed >> 32)}
	if entropy[1] == 0 {
		entropy = entropy[:1]
	}
	h := uint32(0x43b0d7e5)
	hash := func(v uint32) uint32 {
		v ^= h
		h *= multA
		v *= h
		return v ^ v>>16
	}
	mix := func(x, y uint32) uint32 {
		r := x*0xca01f9dd - y*0x4973f715
		return r ^ r>>16
	}
	var pool [4]uint32
	for i := range pool {
		var e uint32
		if i < len(entropy) {
			e = entropy[i]
		}
		pool[i] = hash(e)
	}
	for src := range pool {
		for dst := range pool {
			if src != dst {
				pool[dst] = mix(pool[dst], hash(pool[src]))
			}
		}
	}
	var out [4]uint64
	h = 0x8b51f9dd
	for i := range 8 {
		v := pool[i%4] ^ h
		h *= multB
		v *= h
		v ^= v >> 16
		out[i/2] |= uint64(v) << (32 * (i % 2))
	}
	return out
}
