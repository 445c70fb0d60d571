package server

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"larder/internal/infer"
	"larder/internal/kv"
)

// scrapeTimeout bounds how long a scrape waits for the engine.
const scrapeTimeout = 5 * time.Second

// engineCollector reads the engine's counts at each scrape. It is unchecked (it describes nothing), since which tiers
// there are is known only then; while the model loads, or the engine hangs, it reports no numbers rather than zeros.
type engineCollector struct {
	backend func() *Backend
	rate    *meter
}

// Describe sends nothing.
func (c *engineCollector) Describe(chan<- *prometheus.Desc) {}

// Collect asks the engine.
func (c *engineCollector) Collect(ch chan<- prometheus.Metric) {
	b := c.backend()
	up := 0.0
	if b != nil {
		ctx, cancel := context.WithTimeout(context.Background(), scrapeTimeout)
		defer cancel()
		if st, err := b.Control.Stats(ctx); err == nil {
			up = 1
			c.engine(ch, b, &st)
		}
	}
	gauge(ch, "larder_engine_up", "1 if the engine gave its counts to this scrape.", up)
}

func gauge(ch chan<- prometheus.Metric, name, help string, v float64) {
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.GaugeValue, v)
}

func total(ch chan<- prometheus.Metric, name, help string, v uint64) {
	ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, nil, nil), prometheus.CounterValue, float64(v))
}

func (c *engineCollector) engine(ch chan<- prometheus.Metric, b *Backend, st *infer.Stats) {
	gauge(ch, "sglang:num_running_reqs", "Requests being computed.", float64(st.Running))
	gauge(ch, "sglang:num_queue_reqs", "Requests waiting.", float64(st.Waiting))
	gauge(ch, "larder_loading_reqs", "Requests waiting for loads from slower tiers.", float64(st.Loading))
	gauge(ch, "sglang:gen_throughput", "Tokens generated per second, mean of the last five.", c.rate.perSecond(time.Now()))
	gauge(ch, "sglang:context_len", "The model's context length in tokens.", float64(b.Model.ContextLength))
	total(ch, "sglang:num_retracted_requests_total", "Times a request lost its KV to others.", st.Retracted)
	total(ch, "larder_steps_total", "Engine steps.", st.Steps)
	total(ch, "larder_computed_tokens_total", "Prompt tokens computed.", st.ComputedTokens)
	total(ch, "larder_invariant_checks_total", "Times the cache's invariants were checked and held.", st.InvariantChecks)
	if dev := &st.Tiers[kv.Device]; dev.Total > 0 {
		per := float64(st.BlockTokens)
		used := float64(dev.Leased) * per
		gauge(ch, "sglang:page_size", "Tokens in a block.", per)
		gauge(ch, "sglang:num_pages", "Blocks of the device tier.", float64(dev.Total))
		gauge(ch, "sglang:max_total_num_tokens", "Tokens that the device tier holds.", float64(dev.Total)*per)
		gauge(ch, "sglang:num_used_tokens", "Tokens of the device tier in use by requests.", used)
		gauge(ch, "sglang:kv_used_tokens", "Tokens of the device tier in use by requests.", used)
		gauge(ch, "sglang:kv_available_tokens", "Tokens of the device tier that are free.", float64(dev.Free)*per)
		gauge(ch, "sglang:kv_evictable_tokens", "Tokens of the device tier that hold reusable KV nobody uses.", float64(dev.Cached)*per)
		total(ch, "sglang:evicted_tokens_total", "Tokens evicted from the device tier.", dev.EvictedBlocks*uint64(st.BlockTokens))
		gauge(ch, "sglang:token_usage", "Share of the device tier in use by requests.", float64(dev.Leased)/float64(dev.Total))
	}
	if host := &st.Tiers[kv.Host]; host.Total > 0 {
		per := float64(st.BlockTokens)
		gauge(ch, "sglang:hicache_host_used_tokens", "Tokens that the host tier holds.", float64(host.Leased+host.Cached)*per)
		gauge(ch, "sglang:hicache_host_total_tokens", "Tokens that fit into the host tier.", float64(host.Total)*per)
		total(ch, "sglang:hicache_dropped_tokens_total", "Tokens dropped from the host tier and then in no tier.", host.DroppedBlocks*uint64(st.BlockTokens))
	}
	for tier := range kv.NumTiers {
		if t := &st.Tiers[tier]; t.Total > 0 {
			tierMetrics(ch, tier.String(), t)
		}
	}
}

// tierMetrics reports one tier's blocks and counters under the label tier.
func tierMetrics(ch chan<- prometheus.Metric, tier string, t *infer.TierStats) {
	send := func(kind prometheus.ValueType, name, help string, v float64, labels ...string) {
		names := []string{"tier", "state"}[:1+len(labels)]
		ch <- prometheus.MustNewConstMetric(prometheus.NewDesc(name, help, names, nil), kind, v, append([]string{tier}, labels...)...)
	}
	for _, s := range [...]struct {
		state string
		n     int
	}{{"free", t.Free}, {"leased", t.Leased}, {"cached", t.Cached}} {
		send(prometheus.GaugeValue, "larder_tier_blocks", "Blocks of a tier by state.", float64(s.n), s.state)
	}
	for _, c := range [...]struct {
		name, help string
		v          uint64
	}{
		{"larder_tier_hit_tokens_total", "Prompt tokens served from a tier.", t.HitTokens},
		{"larder_tier_evicted_blocks_total", "Blocks evicted from a tier to make room.", t.EvictedBlocks},
		{"larder_tier_dropped_blocks_total", "Blocks dropped whose content is in no tier any more.", t.DroppedBlocks},
		{"larder_tier_loaded_blocks_total", "Blocks moved out of a tier towards the device.", t.LoadedBlocks},
		{"larder_tier_stored_blocks_total", "Blocks moved into a tier.", t.StoredBlocks},
		{"larder_tier_loaded_bytes_total", "Bytes moved out of a tier towards the device.", t.LoadedBytes},
		{"larder_tier_stored_bytes_total", "Bytes moved into a tier.", t.StoredBytes},
		{"larder_tier_failed_loads_total", "Loads that failed.", t.FailedLoads},
		{"larder_tier_late_loads_total", "Of the loads that failed: dropped at their deadline and computed instead.", t.LateLoads},
		{"larder_tier_failed_stores_total", "Stores that failed.", t.FailedStores},
		{"larder_tier_skipped_stores_total", "Stores that were not ordered, because too many waited.", t.SkippedStores},
	} {
		send(prometheus.CounterValue, c.name, c.help, float64(c.v))
	}
}
