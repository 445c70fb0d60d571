package remote

import (
	"fmt"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/record"
)

// unprovenShare is the share of a burst's requests that may be off before the burst is left out.
const unprovenShare = 0.01

// evidence is what a server reported of one burst, and what that proves.
type evidence struct {
	arm      string
	know     *knowledge
	outcomes []loadgen.Outcome
	delta    scrape.Counts // nil: the counters could not be read
	reach    int           // cached tokens that the prefix brings a request

	done     int // requests that succeeded
	unproven int
	proof    string // what proved it
	verdict  string // why it is not proven; ""
}

// judge decides whether the burst's cached tokens came from where the arm says.
//
// Recompute: no cached tokens. HBM: the prefix, and none of it from below the device. Host: the prefix, and none of it
// from the device. By tier from each answer where it says so; else the total from each answer and the tier from the
// counters; else both from the counters. Where answers and counters both speak they must agree, or nothing is proven.
func (e *evidence) judge() {
	e.done, e.unproven, e.proof, e.verdict = 0, 0, "", ""
	silent := 0
	for i := range e.outcomes {
		if o := &e.outcomes[i]; o.OK() {
			e.done++
			if o.Cached == nil {
				silent++
			}
		}
	}
	switch {
	case e.done == 0:
		e.reject("no request succeeded")
	case silent == 0:
		e.byAnswers()
	case e.delta == nil:
		e.reject(fmt.Sprintf("%d of %d answers do not name cached tokens, and /metrics could not be read", silent, e.done))
	case e.done < len(e.outcomes):
		e.reject("requests failed, so the counters can not be set against the answers")
	default:
		e.byCounters("counters")
	}
}

// reject leaves the whole burst unproven.
func (e *evidence) reject(why string) { e.unproven, e.verdict = len(e.outcomes), why }

// byAnswers holds each answer against the arm.
func (e *evidence) byAnswers() {
	first := ""
	tiers := true
	for i := range e.outcomes {
		o := &e.outcomes[i]
		if !o.OK() {
			continue
		}
		tiers = tiers && o.Cached.Device >= 0
		if why := e.misfit(o.Cached); why != "" {
			e.unproven++
			if first == "" {
				first = fmt.Sprintf("request %d: %s", i, why)
			}
		}
	}
	if float64(e.unproven) > unprovenShare*float64(e.done) {
		e.verdict = fmt.Sprintf("%d of %d requests did not find what the arm wants (%s)", e.unproven, e.done, first)
		return
	}
	if why := e.contradiction(); why != "" {
		e.reject(why)
		return
	}
	e.proof = "answers by tier"
	if tiers || e.arm == record.Recompute {
		return
	}
	if e.delta == nil || e.done < len(e.outcomes) {
		e.reject("the answers do not say which tier cached tokens came from, and /metrics does not help")
		return
	}
	e.byCounters("answers, and counters for the tier")
}

// misfit says how one answer's cached tokens differ from the arm's.
func (e *evidence) misfit(c *loadgen.Cached) string {
	total := c.Total
	if total < 0 {
		total = max(c.Device, 0) + max(c.Host, 0)
	}
	switch {
	case e.arm == record.Recompute && total > e.know.slack:
		return fmt.Sprintf("%d tokens were cached instead of none", total)
	case e.arm == record.Recompute:
		return ""
	case !e.near(float64(total), 1):
		return fmt.Sprintf("%d tokens were cached instead of %d", total, e.reach)
	case e.arm == record.HBMArm && c.Device >= 0 && !e.near(float64(c.Device), 1):
		return fmt.Sprintf("%d of %d cached tokens came from the device", c.Device, total)
	case e.arm == record.HostArm && c.Device >= 0 && !e.near(float64(c.Host), 1):
		return fmt.Sprintf("%d of %d cached tokens came from the host, %d from the device", max(c.Host, 0), total, c.Device)
	}
	return ""
}

// near compares tokens of n requests with what their prefixes bring.
func (e *evidence) near(tokens float64, n int) bool {
	d := tokens - float64(n*e.reach)
	return d <= float64(n*e.know.slack) && d >= -float64(n*e.know.slack)
}

// contradiction says where the counters deny what the answers claim.
func (e *evidence) contradiction() string {
	hits, ok := e.delta.Hits()
	if !ok || e.done < len(e.outcomes) {
		return ""
	}
	said := 0
	for i := range e.outcomes {
		said += max(e.outcomes[i].Cached.Total, 0)
	}
	if d := hits - float64(said); d > float64(e.done*e.know.slack) || -d > float64(e.done*e.know.slack) {
		return fmt.Sprintf("the answers name %d cached tokens, the counters of /metrics moved by %.0f: one of them is wrong, or others were using the server", said, hits)
	}
	return ""
}

// byCounters holds the sums of the burst against the arm.
func (e *evidence) byCounters(proof string) {
	device, host := e.delta[scrape.HitDevice], e.delta[scrape.HitHost]
	_, counts := e.delta.Hits()
	few := float64(e.done * e.know.slack)
	switch {
	case !counts:
		e.reject("/metrics has no counter of cached tokens")
	case e.arm == record.Recompute && device+host > few:
		e.reject(fmt.Sprintf("the counters of cached tokens moved by %.0f instead of 0", device+host))
	case e.arm == record.HBMArm && (!e.near(device, e.done) || host > few):
		e.reject(fmt.Sprintf("by the counters %.0f cached tokens came from the device and %.0f from below it, instead of %d and 0", device, host, e.done*e.reach))
	case e.arm == record.HostArm && (!e.near(host, e.done) || device > few):
		e.reject(fmt.Sprintf("by the counters %.0f cached tokens came from the device and %.0f from below it, instead of 0 and %d", device, host, e.done*e.reach))
	default:
		e.proof = proof
	}
}

// cached is what the burst found, by tier: from the answers, or from the counters where answers name no tier.
func (e *evidence) cached() record.Tokens {
	var t record.Tokens
	for i := range e.outcomes {
		o := &e.outcomes[i]
		if !o.OK() {
			continue
		}
		if o.Cached == nil || o.Cached.Device < 0 {
			return record.Tokens{Device: int(e.delta[scrape.HitDevice]), Host: int(e.delta[scrape.HitHost])}
		}
		t.Device += o.Cached.Device
		t.Host += max(o.Cached.Host, 0)
	}
	return t
}

func (e *evidence) expected() record.Tokens {
	switch e.arm {
	case record.HBMArm:
		return record.Tokens{Device: e.done * e.reach}
	case record.HostArm:
		return record.Tokens{Host: e.done * e.reach}
	}
	return record.Tokens{}
}
