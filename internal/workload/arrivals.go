package workload

import (
	"fmt"
	"math"
	"time"
)

// Arrival says how requests are spread over time. The zero value of all but Rate is the reference's: a Poisson process.
type Arrival struct {
	Rate       float64 // requests per second; +Inf: all at once
	Burstiness float64 // shape of gamma intervals: 1 (or 0) Poisson, below 1 burstier, above 1 smoother
	Constant   bool    // equal intervals instead

	Ramp     string  // "": none; "linear" or "exponential": the rate of request i goes from RampFrom to RampTo
	RampFrom float64 // requests per second
	RampTo   float64
}

// Validate reports the first contradiction.
func (a Arrival) Validate() error {
	finite := func(v float64) bool { return v > 0 && !math.IsInf(v, 0) }
	switch {
	case a.Ramp == "" && !(a.Rate > 0):
		return fmt.Errorf("request rate %v must be above 0 (or inf)", a.Rate)
	case a.Burstiness != 0 && !finite(a.Burstiness):
		return fmt.Errorf("burstiness %v must be a finite number above 0", a.Burstiness)
	case a.Constant && a.Burstiness != 0 && a.Burstiness != 1:
		return fmt.Errorf("constant intervals have no burstiness")
	case a.Ramp == "":
		return nil
	case a.Ramp != "linear" && a.Ramp != "exponential":
		return fmt.Errorf("ramp %q: known are linear, exponential", a.Ramp)
	case !finite(a.RampFrom) || !finite(a.RampTo):
		return fmt.Errorf("a ramp needs finite rates above 0, not %v and %v", a.RampFrom, a.RampTo)
	}
	return nil
}

// rate is the rate at request i of n.
func (a Arrival) rate(i, n int) float64 {
	if a.Ramp == "" {
		return a.Rate
	}
	x := float64(i) / float64(max(n-1, 1))
	if a.Ramp == "linear" {
		return a.RampFrom + (a.RampTo-a.RampFrom)*x
	}
	return a.RampFrom * math.Pow(a.RampTo/a.RampFrom, x)
}

// interval draws the time from request i to the next, in seconds. An infinite rate draws nothing.
func (s *Sampler) interval(a Arrival, i, n int) float64 {
	rate := a.rate(i, n)
	switch {
	case math.IsInf(rate, 1):
		return 0
	case a.Constant:
		return 1 / rate
	case a.Burstiness == 0 || a.Burstiness == 1:
		return s.numpy.exponential(1 / rate)
	}
	return s.numpy.gamma(a.Burstiness) / (rate * a.Burstiness)
}

// Arrivals are n intended send times of a Poisson process of rate requests per second; the first is at 0. An infinite
// rate puts all at 0 and draws nothing.
func (s *Sampler) Arrivals(n int, rate float64) ([]time.Duration, error) {
	due, _, err := s.Plan(n, Arrival{Rate: rate}, Adapters{})
	return due, err
}

// Adapters says which LoRA adapter each request names.
type Adapters struct {
	Names        []string
	Distribution string  // uniform, distinct (in turn) or skewed (each Alpha times as often as the next)
	Alpha        float64 // above 1; for skewed
}

func (a Adapters) validate() error {
	switch {
	case len(a.Names) == 0 || a.Distribution == "uniform":
		return nil
	case a.Distribution != "distinct" && a.Distribution != "skewed":
		return fmt.Errorf("adapter distribution %q: known are uniform, distinct, skewed", a.Distribution)
	case len(a.Names) < 2:
		return fmt.Errorf("the adapter distribution %s needs more than one name", a.Distribution)
	case a.Distribution == "skewed" && !(a.Alpha > 1):
		return fmt.Errorf("adapter alpha %v must be above 1", a.Alpha)
	}
	return nil
}

// Plan is the intended send time of each of n requests, the first at 0, and its adapter; names are nil when there are
// no adapters. The two kinds of draws alternate, as in the reference.
func (s *Sampler) Plan(n int, a Arrival, l Adapters) (due []time.Duration, names []string, err error) {
	if err := a.Validate(); err != nil {
		return nil, nil, err
	}
	if err := l.validate(); err != nil {
		return nil, nil, err
	}
	due = make([]time.Duration, n)
	if len(l.Names) > 0 {
		names = make([]string, n)
	}
	var at float64 // seconds; a float, so that a long schedule does not collect rounding
	for i := range due {
		due[i] = seconds(at)
		if names != nil {
			names[i] = l.Names[s.adapter(l, i)]
		}
		at += s.interval(a, i, n)
	}
	return due, names, nil
}

// adapter draws the index of request i's adapter.
func (s *Sampler) adapter(a Adapters, i int) int {
	switch a.Distribution {
	case "distinct":
		return i % len(a.Names)
	case "skewed":
		weights := make([]float64, len(a.Names))
		for k := range weights {
			weights[k] = math.Pow(a.Alpha, -float64(k))
		}
		return pick(cumulative(weights), s.numpy.t.float())
	}
	return s.python.below(len(a.Names))
}

// seconds converts without overflow: a schedule past 292 years is as good as never.
func seconds(s float64) time.Duration {
	if s >= math.MaxInt64/1e9 {
		return math.MaxInt64
	}
	return time.Duration(s * 1e9)
}
