// Package stats turns measured samples into numbers that can be printed honestly: a value carries its unit and count,
// a number that does not exist says why, and nothing here ever returns NaN or an infinity.
//
// It knows nothing about requests or servers. Start at Sample and PairedDiff.
package stats

import (
	"encoding/json"
	"math"
	"slices"
)

// Value is a number or the reason why there is none. The zero Value is absent without a reason.
type Value struct {
	v   float64
	ok  bool
	why string
}

// Of is the value v; a NaN or an infinity is absent.
func Of(v float64) Value {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return None("not a finite number")
	}
	return Value{v: v, ok: true}
}

// None is an absent value with its reason.
func None(why string) Value { return Value{why: why} }

// Get returns the number and whether there is one.
func (v Value) Get() (float64, bool) { return v.v, v.ok }

// Or returns the number, or def where there is none. Only for formats that cannot say "absent".
func (v Value) Or(def float64) float64 {
	if !v.ok {
		return def
	}
	return v.v
}

// Why is the reason of an absent value, "" of a present one.
func (v Value) Why() string { return v.why }

// MarshalJSON writes the number, or null; whoever writes a null writes Why beside it.
func (v Value) MarshalJSON() ([]byte, error) {
	if !v.ok {
		return []byte("null"), nil
	}
	return json.Marshal(v.v)
}

// UnmarshalJSON reads a number or null.
func (v *Value) UnmarshalJSON(b []byte) error {
	if string(b) == "null" {
		*v = Value{}
		return nil
	}
	v.why, v.ok = "", true
	return json.Unmarshal(b, &v.v)
}

// Percentile returns the p-th percentile (0 to 100) of values sorted upwards, by linear interpolation between the
// neighbours of rank p/100*(n-1), as numpy does by default. It is absent when there is no value.
func Percentile(sorted []float64, p float64) Value {
	if len(sorted) == 0 {
		return None("no samples")
	}
	rank := min(max(p, 0), 100) / 100 * float64(len(sorted)-1)
	lo := int(math.Floor(rank))
	hi := min(lo+1, len(sorted)-1)
	a, b, t := sorted[lo], sorted[hi], rank-float64(lo)
	// numpy's order of operations: it interpolates from the nearer end, so both ends are exact.
	if t >= 0.5 {
		return Of(b - (b-a)*(1-t))
	}
	return Of(a + (b-a)*t)
}

// Mean is the arithmetic mean.
func Mean(xs []float64) Value {
	if len(xs) == 0 {
		return None("no samples")
	}
	return Of(sum(xs) / float64(len(xs)))
}

// StdPopulation is the standard deviation with divisor n, as numpy's std.
func StdPopulation(xs []float64) Value {
	if len(xs) == 0 {
		return None("no samples")
	}
	return Of(math.Sqrt(squares(xs) / float64(len(xs))))
}

// StdSample is the standard deviation with divisor n-1.
func StdSample(xs []float64) Value {
	if len(xs) < 2 {
		return None("needs two samples")
	}
	return Of(math.Sqrt(squares(xs) / float64(len(xs)-1)))
}

// Median is the 50th percentile of values in any order.
func Median(xs []float64) Value { return Percentile(slices.Sorted(slices.Values(xs)), 50) }

// sum adds with Neumaier's compensation, so that a million small latencies keep their last digits.
func sum(xs []float64) float64 {
	var s, c float64
	for _, x := range xs {
		t := s + x
		if math.Abs(s) >= math.Abs(x) {
			c += (s - t) + x
		} else {
			c += (x - t) + s
		}
		s = t
	}
	return s + c
}

// squares is the sum of squared differences from the mean.
func squares(xs []float64) float64 {
	m := sum(xs) / float64(len(xs))
	var s float64
	for _, x := range xs {
		s += (x - m) * (x - m)
	}
	return s
}
