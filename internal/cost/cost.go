// Package cost says when loading KV beats computing it again: a linear model of a burst's duration fitted to measured
// bursts, and the break-even that follows from measured rates. It is arithmetic: it measures nothing, reads no clock
// and takes no decision for the engine.
//
// Start at Fit (a model from measurements and its error on bursts it has not seen) and Rates (the break-even).
package cost

import (
	"errors"
	"fmt"
	"math"
)

// Burst is one measured burst of requests: the work that it cannot avoid and how long it took.
type Burst struct {
	ID       int    // the caller's own number, carried along
	Name     string // groups bursts that differ in noise only; LeaveOut leaves out one name at a time
	Requests int
	TFLOP    float64 // computed by the model, 1e12 operations
	GiB      float64 // loaded from a slower tier
	Seconds  float64
}

// Model predicts a burst's duration as Fixed + PerRequest*Requests + PerTFLOP*TFLOP + PerGiB*GiB, in seconds. No
// coefficient is negative: work never saves time.
type Model struct{ Fixed, PerRequest, PerTFLOP, PerGiB float64 }

// Predict is the duration in seconds of b by its work alone.
func (m Model) Predict(b Burst) float64 {
	x := b.columns()
	return m.Fixed*x[0] + m.PerRequest*x[1] + m.PerTFLOP*x[2] + m.PerGiB*x[3]
}

// columns are what the model's coefficients multiply, in its fields' order.
func (b Burst) columns() [4]float64 { return [4]float64{1, float64(b.Requests), b.TFLOP, b.GiB} }

// ErrTooFew says that there are not enough different bursts for a model.
var ErrTooFew = errors.New("not enough different bursts to fit a model")

// Fit finds the model with the least sum of squared relative errors. Relative, because bursts differ in duration by
// more than ten times and each counts the same. It needs three bursts, two of them of different work.
func Fit(bursts []Burst) (Model, error) {
	distinct := map[[4]float64]bool{}
	for _, b := range bursts {
		if !(b.Seconds > 0) || math.IsInf(b.Seconds, 0) || !(b.TFLOP >= 0) || !(b.GiB >= 0) {
			return Model{}, fmt.Errorf("burst %q: %v TFLOP, %v GiB in %v s cannot be fitted", b.Name, b.TFLOP, b.GiB, b.Seconds)
		}
		distinct[b.columns()] = true
	}
	if len(bursts) < 3 || len(distinct) < 2 {
		return Model{}, fmt.Errorf("%w: %d bursts of %d kinds", ErrTooFew, len(bursts), len(distinct))
	}
	best, bestErr := Model{}, math.Inf(1)
	// Few coefficients: the best non-negative model is the best over the subsets of coefficients that come out so.
	for mask := 1; mask < 16; mask++ {
		m, ok := fitSubset(bursts, mask)
		if !ok {
			continue
		}
		if e := squaredError(m, bursts); e < bestErr*(1-1e-12) {
			best, bestErr = m, e
		}
	}
	if math.IsInf(bestErr, 1) {
		return Model{}, ErrTooFew
	}
	return best, nil
}

// squaredError is the sum of squared relative errors.
func squaredError(m Model, bursts []Burst) float64 {
	var sum float64
	for _, b := range bursts {
		e := m.Predict(b)/b.Seconds - 1
		sum += e * e
	}
	return sum
}

// fitSubset solves the normal equations for the coefficients in mask (bit i: column i); ok is false
// when they are singular or a coefficient is negative.
func fitSubset(bursts []Burst, mask int) (Model, bool) {
	var cols []int
	for c := range 4 {
		if mask>>c&1 == 1 {
			cols = append(cols, c)
		}
	}
	n := len(cols)
	a := make([][]float64, n) // augmented: n columns and the right side
	for i := range a {
		a[i] = make([]float64, n+1)
	}
	for _, b := range bursts {
		x := b.columns()
		for i := range x {
			x[i] /= b.Seconds
		}
		for i, ci := range cols {
			for j, cj := range cols {
				a[i][j] += x[ci] * x[cj]
			}
			a[i][n] += x[ci]
		}
	}
	sol, ok := solve(a)
	if !ok {
		return Model{}, false
	}
	var full [4]float64
	for i, c := range cols {
		if sol[i] < 0 {
			return Model{}, false
		}
		full[c] = sol[i]
	}
	return Model{full[0], full[1], full[2], full[3]}, true
}

// solve reduces the augmented matrix with pivoting; ok is false when it is singular to working precision.
func solve(a [][]float64) ([]float64, bool) {
	n := len(a)
	scale := make([]float64, n) // the diagonal before elimination: a pivot far below it is rounding noise
	for i := range a {
		scale[i] = a[i][i]
	}
	for c := range n {
		p := c
		for r := c + 1; r < n; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[p][c]) {
				p = r
			}
		}
		if !(math.Abs(a[p][c]) > 1e-11*scale[c]) {
			return nil, false
		}
		a[c], a[p] = a[p], a[c]
		for r := range n {
			if r == c {
				continue
			}
			f := a[r][c] / a[c][c]
			for k := c; k <= n; k++ {
				a[r][k] -= f * a[c][k]
			}
		}
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = a[i][n] / a[i][i]
	}
	return x, true
}

// Prediction is what a model said of a burst that it had not been fitted to.
type Prediction struct {
	Burst     Burst
	Predicted float64 // seconds
}

// Error is predicted/measured - 1.
func (p Prediction) Error() float64 { return p.Predicted/p.Burst.Seconds - 1 }

// LeaveOut predicts every burst by a model fitted to the bursts of all other names. Names whose rest cannot be fitted
// are left out of the answer.
func LeaveOut(bursts []Burst) []Prediction {
	models := map[string]*Model{}
	var out []Prediction
	for _, b := range bursts {
		m, done := models[b.Name]
		if !done {
			m = fitWithout(bursts, b.Name)
			models[b.Name] = m
		}
		if m != nil {
			out = append(out, Prediction{b, m.Predict(b)})
		}
	}
	return out
}

func fitWithout(bursts []Burst, name string) *Model {
	var rest []Burst
	for _, b := range bursts {
		if b.Name != name {
			rest = append(rest, b)
		}
	}
	m, err := Fit(rest)
	if err != nil {
		return nil
	}
	return &m
}

// Errors are the mean and the largest absolute error of predictions; ok is false when there are none.
func Errors(ps []Prediction) (mean, largest float64, ok bool) {
	for _, p := range ps {
		e := math.Abs(p.Error())
		mean += e
		largest = max(largest, e)
	}
	if len(ps) == 0 {
		return 0, 0, false
	}
	return mean / float64(len(ps)), largest, true
}
