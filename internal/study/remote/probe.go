package remote

import (
	"context"
	"fmt"
	"slices"
	"time"

	"larder/internal/loadgen"
	"larder/internal/loadgen/scrape"
	"larder/internal/record"
	"larder/internal/study"
	"larder/internal/workload"
)

// knowledge is what the probe found out about the server.
type knowledge struct {
	answers  bool   // answers name cached tokens
	tiers    bool   // and of which tier
	counters string // kind of /metrics, "" when there are none
	noCount  string // why there are none
	reach    int    // cached tokens that a known prefix of the study's length brings
	slack    int    // how far a request's cached tokens may be off
	flush    string // why the cache can not be emptied; "": it can
	capacity int
	// impossible arms, with the reason.
	impossible map[string]string
}

// flushWait is how long a server may wait for its own quiet before it empties its cache.
const flushWait = 30 * time.Second

// probe finds out what the server reports and allows, with prompts that are never measured: it sends a prefix, then a
// prompt that begins with it, which must be a hit; empties the cache; and sends another, which must be none.
func (r *run) probe(ctx context.Context) error {
	k := &r.knows
	k.impossible = map[string]string{}
	set, err := r.prompts(3, r.shared, 1)
	if err != nil {
		return err
	}
	prefix := set.prefixes[:1]
	other := set.items[1]
	other.IDs = slices.Concat(prefix[0].IDs, other.IDs[r.shared:])
	if _, err := r.send(ctx, prefix, 1, "probe"); err != nil {
		return fmt.Errorf("the server does not take the study's prompts: %w", err)
	}
	o, delta, err := r.probeOne(ctx, set.items[0])
	if err != nil {
		return err
	}
	k.answers = o.Cached != nil
	k.tiers = k.answers && o.Cached.Device >= 0
	hits, counted := delta.Hits()
	switch {
	case k.answers:
		k.reach = max(o.Cached.Total, 0)
	case counted:
		k.reach = int(hits)
	default:
		return fmt.Errorf("no arm can be proven: the answers do not name cached tokens, and %s", r.noCounters())
	}
	k.slack = max(k.reach/100, 8)
	if err := r.probeFlush(ctx, other); err != nil {
		return err
	}
	r.limits(ctx)
	return r.probeHost(ctx)
}

// probeHost finds out whether there is a tier below the device, with one prefix, before every burst pays for filler.
func (r *run) probeHost(ctx context.Context) error {
	if !r.fills() {
		return nil
	}
	set, err := r.prompts(1, r.shared, 1)
	if err != nil {
		return err
	}
	if err := r.bring(ctx, record.HostArm, set, "probe of the host tier"); err != nil {
		return err
	}
	before := r.read(ctx)
	res, err := r.send(ctx, set.items, 1, "probe of the host tier")
	if err != nil {
		return err
	}
	e := &evidence{arm: record.HostArm, know: &r.knows, outcomes: res.Outcomes, reach: r.knows.reach}
	if r.observe(ctx, e, before); e.verdict != "" {
		r.knows.impossible[record.HostArm] = fmt.Sprintf("after %s tokens of filler, a prefix that was known before was not found below the device (%s): the server keeps nothing there, evicts it too, or does not say",
			study.Whole(float64(r.filler())), e.verdict)
	}
	return nil
}

// fills says whether there is a host arm, and so filler in every arm.
func (r *run) fills() bool {
	return slices.Contains(r.cfg.Arms, record.HostArm) && r.knows.impossible[record.HostArm] == ""
}

// noCounters says what is wrong with /metrics.
func (r *run) noCounters() string {
	if r.knows.noCount != "" {
		return r.knows.noCount
	}
	return "/metrics has no counter of cached tokens"
}

// probeOne sends one request and returns what the server counted meanwhile.
func (r *run) probeOne(ctx context.Context, item workload.Item) (*loadgen.Outcome, scrape.Counts, error) {
	before := r.read(ctx)
	res, err := r.send(ctx, []workload.Item{item}, 1, "probe")
	if err != nil {
		return nil, nil, err
	}
	var delta scrape.Counts
	if before != nil {
		if after := r.read(ctx); after != nil {
			delta, _ = after.Counts().Less(before.Counts())
		}
	}
	return &res.Outcomes[0], delta, nil
}

// read is one look at the counters; nil when there are none, and then knowledge says why.
func (r *run) read(ctx context.Context) *scrape.Snapshot {
	s, err := r.env.Counters.Read(ctx)
	switch {
	case err != nil:
		r.knows.noCount = err.Error()
		return nil
	case s.Kind() == "":
		r.knows.noCount = "/metrics has none of the names of SGLang, vLLM or larder"
		return nil
	}
	r.knows.counters = s.Kind()
	return s
}

// probeFlush empties the cache and looks whether it is empty: a status of 200 proves nothing.
func (r *run) probeFlush(ctx context.Context, item workload.Item) error {
	k := &r.knows
	if err := r.env.Control.Flush(ctx, flushWait); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		k.flush = err.Error()
		return nil
	}
	o, delta, err := r.probeOne(ctx, item)
	if err != nil {
		return err
	}
	left := 0
	if o.Cached != nil {
		left = max(o.Cached.Total, 0)
	} else if hits, ok := delta.Hits(); ok {
		left = int(hits)
	}
	if left > k.slack {
		k.flush = fmt.Sprintf("the server says that its cache was emptied, and then had %d tokens of an old prompt", left)
	}
	return nil
}

// limits finds the arms that can not be brought about at all.
func (r *run) limits(ctx context.Context) {
	k := &r.knows
	if k.reach < r.shared/2 {
		why := fmt.Sprintf("a prefix of %d tokens that the server had just computed brought %d cached tokens: its prefix cache is off, or it does not count", r.shared, k.reach)
		k.impossible[record.HBMArm], k.impossible[record.HostArm] = why, why
		return
	}
	s := r.read(ctx)
	k.capacity = r.env.Capacity
	if s != nil && k.capacity == 0 {
		k.capacity, _ = s.Capacity()
	}
	switch {
	case !k.tiers && k.counters == "":
		why := "the answers do not say which tier cached tokens came from, and " + r.noCounters()
		k.impossible[record.HBMArm], k.impossible[record.HostArm] = why, why
	case k.capacity == 0 && r.env.Filler == 0:
		k.impossible[record.HostArm] = "the server does not say how many tokens its device holds; --filler-tokens says how much traffic evicts them"
	}
}

// filler is how many tokens of other traffic push everything older off the device.
func (r *run) filler() int {
	if r.env.Filler > 0 {
		return r.env.Filler
	}
	return r.knows.capacity + r.knows.capacity/10
}

// ways says in words how the arms were brought about and proven.
func (r *run) ways() []string {
	k := &r.knows
	proof := "cached tokens by tier in each answer"
	switch {
	case k.answers && !k.tiers:
		proof = "the cached tokens of each answer and, for the tier, the counters of /metrics"
	case !k.answers:
		proof = "the counters of /metrics before and after each burst"
	case k.counters != "":
		proof += ", checked against the counters of /metrics"
	}
	notes := []string{fmt.Sprintf("Each burst is proven by %s. A prefix of %s tokens that is known brings %s cached tokens on this server.", proof, study.Whole(float64(r.shared)), study.Whole(float64(k.reach)))}
	if k.flush == "" {
		notes = append(notes, "All arms of a repeat get the same token ids; the server's cache is emptied before each arm, which the probe found to work.")
	} else {
		notes = append(notes, "The server's cache can not be emptied ("+k.flush+"), so each arm gets prompts of its own that were never sent before: same lengths, other tokens.")
	}
	if r.fills() {
		notes = append(notes, fmt.Sprintf("Host arm: prefixes are sent twice, then %s tokens of filler traffic evict the device's copies; that they come from below the device is proven afterwards. The other arms get the same filler before the prefixes (recompute: and none), so that all find the server equally full and busy.", study.Whole(float64(r.filler()))))
	}
	return notes
}
