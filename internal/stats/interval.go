package stats

import (
	"encoding/json"
	"fmt"
	"math"
)

// Level is the confidence of the intervals of this package.
const Level = 0.95

// Interval is a mean with its two-sided confidence interval at Level. When Reason is not empty the interval does not
// exist: Lo and Hi are 0 and must not be shown, and with N = 0 neither must Mean.
type Interval struct {
	Mean, Lo, Hi float64
	N            int
	Reason       string
}

// OK reports whether Lo and Hi exist.
func (i Interval) OK() bool { return i.Reason == "" }

// ExcludesZero reports whether the whole interval lies on one side of zero, so that the sign of the mean is not noise.
func (i Interval) ExcludesZero() bool { return i.OK() && (i.Lo > 0 || i.Hi < 0) }

// String is "mean [lo, hi] (n=N)", or says what is missing.
func (i Interval) String() string {
	switch {
	case i.N == 0:
		return "none (" + i.Reason + ")"
	case !i.OK():
		return fmt.Sprintf("%.4g (no interval: %s)", i.Mean, i.Reason)
	}
	return fmt.Sprintf("%.4g [%.4g, %.4g] (n=%d)", i.Mean, i.Lo, i.Hi, i.N)
}

// MarshalJSON writes mean, lo, hi (null where they do not exist), n, level and the reason.
func (i Interval) MarshalJSON() ([]byte, error) {
	mean, lo, hi := Of(i.Mean), Of(i.Lo), Of(i.Hi)
	if !i.OK() {
		lo, hi = None(i.Reason), None(i.Reason)
	}
	if i.N == 0 {
		mean = None(i.Reason)
	}
	return json.Marshal(intervalJSON{mean, lo, hi, i.N, Level, i.Reason})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (i *Interval) UnmarshalJSON(b []byte) error {
	var j intervalJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*i = Interval{j.Mean.Or(0), j.Lo.Or(0), j.Hi.Or(0), j.N, j.Reason}
	return nil
}

type intervalJSON struct {
	Mean   Value   `json:"mean"`
	Lo     Value   `json:"lo"`
	Hi     Value   `json:"hi"`
	N      int     `json:"n"`
	Level  float64 `json:"level"`
	Reason string  `json:"reason,omitempty"`
}

// MeanInterval is the mean of xs with its Student-t interval.
func MeanInterval(xs []float64) Interval {
	for _, x := range xs {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			return Interval{Reason: "a sample is not a finite number"}
		}
	}
	switch len(xs) {
	case 0:
		return Interval{Reason: "no samples"}
	case 1:
		return Interval{Mean: xs[0], N: 1, Reason: "one sample"}
	}
	m := Mean(xs).Or(0)
	half := TQuantile(0.5+Level/2, float64(len(xs)-1)) * StdSample(xs).Or(0) / math.Sqrt(float64(len(xs)))
	if _, ok := Of(half).Get(); !ok {
		return Interval{Reason: "the samples are too large to average"}
	}
	return Interval{Mean: m, Lo: m - half, Hi: m + half, N: len(xs)}
}

// PairedDiff is the mean of a[i]-b[i] with its interval: the samples are pairs, measured on the same thing under two
// conditions. Slices of different length are not pairs and give no interval.
func PairedDiff(a, b []float64) Interval {
	if len(a) != len(b) {
		return Interval{Reason: fmt.Sprintf("not pairs: %d and %d samples", len(a), len(b))}
	}
	d := make([]float64, len(a))
	for i := range a {
		d[i] = a[i] - b[i]
	}
	return MeanInterval(d)
}

// PairedRatio is the geometric mean of a[i]/b[i] with its interval, from the differences of the logarithms. All
// samples must be positive.
func PairedRatio(a, b []float64) Interval {
	if len(a) != len(b) {
		return Interval{Reason: fmt.Sprintf("not pairs: %d and %d samples", len(a), len(b))}
	}
	d := make([]float64, len(a))
	for i := range a {
		if !(a[i] > 0 && b[i] > 0) {
			return Interval{Reason: "a ratio needs positive samples"}
		}
		d[i] = math.Log(a[i]) - math.Log(b[i])
	}
	r := MeanInterval(d)
	if r.N > 0 {
		r.Mean = math.Exp(r.Mean)
	}
	if r.OK() {
		r.Lo, r.Hi = math.Exp(r.Lo), math.Exp(r.Hi)
	}
	return r
}
