package serving

import (
	"fmt"
	"strconv"

	"larder/internal/loadgen/scrape"
)

// server writes what the server itself counted during the run.
func (p *page) server(m *Metrics) {
	s := m.Setup.Server
	if s == nil {
		return
	}
	p.rule(" The server's own counters ", '-')
	if s.Reason != "" {
		p.row("Counters:", "unavailable: "+s.Reason)
		return
	}
	p.row("Names:", s.Kind)
	count := func(label, name string) {
		if v, ok := s.Delta[name]; ok {
			p.row(label, strconv.FormatFloat(v, 'f', -1, 64))
		}
	}
	count("Prompt tokens:", scrape.Prompt)
	count("Generated tokens:", scrape.Generated)
	count("Cached tokens, device:", scrape.HitDevice)
	count("Cached tokens, host or external:", scrape.HitHost)
	count("Cached tokens, storage:", scrape.HitStorage)
	count("Tokens evicted from the device:", scrape.Evicted)
	count("Preemptions:", scrape.Preempted)
	count("Bytes loaded from the host:", scrape.LoadBytes)
	count("Bytes stored to the host:", scrape.StoreBytes)
	gauge := func(label, name string, scale float64) {
		if g, ok := s.Gauges[name]; ok {
			p.row(label, fmt.Sprintf("mean %.4g max %.4g (%d readings)", g.Mean*scale, g.Max*scale, g.N))
		}
	}
	gauge("Requests running:", scrape.Running, 1)
	gauge("Requests waiting:", scrape.Waiting, 1)
	gauge("Device KV memory in use (%):", scrape.Usage, 100)
	if s.Samples == 0 {
		p.row("Running and waiting:", "the run was over before the first reading")
	}
	if s.Missed > 0 {
		p.row("Readings that failed:", strconv.Itoa(s.Missed))
	}
}

// serverWarnings say where the server's counters contradict the answers.
func (m *Metrics) serverWarnings(add func(on bool, format string, args ...any)) {
	s := m.Setup.Server
	if s == nil || s.Reason != "" {
		return
	}
	add(len(s.Reset) > 0, "the server was started again during the run: its counters %v went down.", s.Reset)
	t := m.Tokens
	all := m.Completed == m.Attempts && m.Completed > 0
	if got, ok := s.Delta[scrape.Prompt]; ok && all && t.PromptN == m.Completed && t.Prompt > 0 {
		add(differs(got, float64(t.Prompt)), "the server counted %.0f prompt tokens during the run, its answers name %d: others were using it, or it counts otherwise.", got, t.Prompt)
	}
	if got, ok := s.Delta.Hits(); ok && all && t.CachedN == m.Completed {
		want := float64(max(t.Cached.Total, 0))
		add(differs(got, want) && max(got, want) > 0.01*float64(t.Prompt), "the server counted %.0f cached tokens during the run, its answers name %.0f.", got, want)
	}
}

// differs allows two per cent.
func differs(a, b float64) bool { return max(a, b)-min(a, b) > 0.02*max(a, b) }
