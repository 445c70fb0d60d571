package stats

import "slices"

// Sample collects the values of one quantity. The zero Sample has no unit and no values. Not safe for concurrent use.
type Sample struct {
	Unit   string // "ms", "tok/s", …
	values []float64
	sorted bool
}

// NewSample is a sample with a unit; it keeps its own copy of the values.
func NewSample(unit string, values ...float64) *Sample {
	return &Sample{Unit: unit, values: slices.Clone(values)}
}

// Add appends one value.
func (s *Sample) Add(v float64) {
	s.values = append(s.values, v)
	s.sorted = false
}

// N is the number of values.
func (s *Sample) N() int { return len(s.values) }

// Percentile is the p-th percentile, 0 to 100.
func (s *Sample) Percentile(p float64) Value {
	s.sort()
	return Percentile(s.values, p)
}

func (s *Sample) sort() {
	if !s.sorted {
		slices.Sort(s.values)
		s.sorted = true
	}
}

// Summary is a sample in a few numbers. Where N is 0 they are absent and Reason says why.
type Summary struct {
	Unit   string `json:"unit,omitempty"`
	N      int    `json:"n"`
	Mean   Value  `json:"mean"`
	Std    Value  `json:"std"` // population, as numpy
	Min    Value  `json:"min"`
	P50    Value  `json:"p50"`
	P90    Value  `json:"p90"`
	P95    Value  `json:"p95"`
	P99    Value  `json:"p99"`
	Max    Value  `json:"max"`
	Reason string `json:"reason,omitempty"`
}

// Summary reduces the sample. why is the reason to give when there are no values, such as "one output token: no
// time per output token"; empty means "no samples".
func (s *Sample) Summary(why string) Summary {
	if len(s.values) == 0 {
		return NoSummary(s.Unit, why)
	}
	s.sort()
	at := func(p float64) Value { return Percentile(s.values, p) }
	return Summary{
		Unit: s.Unit, N: len(s.values), Mean: Mean(s.values), Std: StdPopulation(s.values),
		Min: at(0), P50: at(50), P90: at(90), P95: at(95), P99: at(99), Max: at(100),
	}
}

// NoSummary is the summary of nothing, with its reason.
func NoSummary(unit, why string) Summary {
	if why == "" {
		why = "no samples"
	}
	n := None(why)
	return Summary{Unit: unit, Mean: n, Std: n, Min: n, P50: n, P90: n, P95: n, P99: n, Max: n, Reason: why}
}

// Summarize reduces values of one unit; see Sample.Summary for why.
func Summarize(unit string, values []float64, why string) Summary {
	return NewSample(unit, values...).Summary(why)
}
