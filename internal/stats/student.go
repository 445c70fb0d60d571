package stats

import "math"

// TQuantile is the value below which a Student-t variable with df degrees of freedom (df > 0, not necessarily whole)
// lies with probability p in (0,1). Outside these ranges it returns 0.
func TQuantile(p, df float64) float64 {
	if !(p > 0 && p < 1 && df > 0) || p == 0.5 {
		return 0
	}
	if p < 0.5 {
		return -TQuantile(1-p, df)
	}
	// The tail probability falls steadily in t: bracket, then halve. 200 halvings reach the last bit from any bracket.
	lo, hi := 0.0, 1.0
	for tCDF(hi, df) < p && hi < 1e300 {
		lo, hi = hi, hi*2
	}
	for range 200 {
		mid := lo + (hi-lo)/2
		if mid == lo || mid == hi {
			break
		}
		if tCDF(mid, df) < p {
			lo = mid
		} else {
			hi = mid
		}
	}
	return hi
}

// tCDF is P(T <= t) for t >= 0, through the incomplete beta function.
func tCDF(t, df float64) float64 {
	return 1 - 0.5*incompleteBeta(df/2, 0.5, df/(df+t*t))
}

// incompleteBeta is the regularised incomplete beta function I_x(a, b) by its continued fraction, which converges
// fast below the mean; above it the symmetric form is used.
func incompleteBeta(a, b, x float64) float64 {
	if x <= 0 {
		return 0
	}
	if x >= 1 {
		return 1
	}
	la, _ := math.Lgamma(a)
	lb, _ := math.Lgamma(b)
	lab, _ := math.Lgamma(a + b)
	front := math.Exp(lab - la - lb + a*math.Log(x) + b*math.Log1p(-x))
	if x < (a+1)/(a+b+2) {
		return front * betaFraction(a, b, x) / a
	}
	return 1 - front*betaFraction(b, a, 1-x)/b
}

// betaFraction evaluates the continued fraction of the incomplete beta function by Lentz's method.
func betaFraction(a, b, x float64) float64 {
	const tiny = 1e-300
	guard := func(v float64) float64 {
		if math.Abs(v) < tiny {
			return tiny
		}
		return v
	}
	c, d := 1.0, 1/guard(1-(a+b)*x/(a+1))
	h := d
	for m := 1.0; m <= 500; m++ {
		step := func(coef float64) float64 {
			d = 1 / guard(1+coef*d)
			c = guard(1 + coef/c)
			h *= d * c
			return d * c
		}
		step(m * (b - m) * x / ((a + 2*m - 1) * (a + 2*m)))
		del := step(-(a + m) * (a + b + m) * x / ((a + 2*m) * (a + 2*m + 1)))
		if math.Abs(del-1) < 1e-15 {
			break
		}
	}
	return h
}
