package server

import (
	"math"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"
)

// SGLang's buckets, so that dashboards made for it fit.
var (
	ttftBuckets = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400}
	itlBuckets  = []float64{.002, .004, .006, .008, .010, .015, .020, .025, .030, .035, .040, .06, .08, .1, .2, .4, .6, .8, 1, 2, 4, 6, 8}
	e2eBuckets  = []float64{.1, .2, .4, .6, .8, 1, 2, 4, 6, 8, 10, 20, 40, 60, 80, 100, 200, 400, 600, 1200, 1800, 2400}
	fineBuckets = []float64{.001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5, 10, 20, 50, 100}
	moveBuckets = []float64{.0001, .0002, .0005, .001, .002, .005, .01, .02, .05, .1, .2, .5, 1, 2, 5}
	sizeBuckets = []float64{1, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144}
)

// Metrics counts what happens, in SGLang's names where they mean the same and in larder_ ones elsewhere. What the
// engine knows is read from it at each scrape; what the server sees is counted as it happens; how long moves take
// comes through the Observe methods, which any goroutine may call and which never block.
type Metrics struct {
	registry *prometheus.Registry
	handler  http.Handler
	rate     meter

	prompt, generated, requests, aborted prometheus.Counter
	cachedDevice, cachedHost, cachedAll  prometheus.Counter
	failures                             *prometheus.CounterVec
	ttft, itl, e2e, queue, loadWait      prometheus.Histogram
	promptSize, uncachedSize, answerSize prometheus.Histogram
	load, store                          prometheus.Histogram
	loadTokens, loadBytes                prometheus.Counter
	storeTokens, storeBytes              prometheus.Counter
	step                                 *prometheus.HistogramVec
}

// newMetrics makes the collectors. backend gives what Attach stored, or nil.
func newMetrics(model string, backend func() *Backend) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry()}
	labels := prometheus.Labels{"model_name": model, "engine_type": "unified", "tp_rank": "0", "pp_rank": "0"}
	reg := prometheus.WrapRegistererWith(labels, m.registry)
	counter := func(name, help string) prometheus.Counter {
		c := prometheus.NewCounter(prometheus.CounterOpts{Name: name, Help: help})
		reg.MustRegister(c)
		return c
	}
	histogram := func(name, help string, buckets []float64) prometheus.Histogram {
		h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
		reg.MustRegister(h)
		return h
	}
	m.prompt = counter("sglang:prompt_tokens_total", "Prompt tokens of finished requests.")
	m.generated = counter("sglang:generation_tokens_total", "Tokens generated.")
	m.requests = counter("sglang:num_requests_total", "Requests finished.")
	m.aborted = counter("sglang:num_aborted_requests_total", "Requests aborted by name, by a client that left, or by a failure.")
	cached := prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "sglang:cached_tokens_total", Help: "Prompt tokens that were not computed, by the tier that held them.",
	}, []string{"cache_source"})
	m.failures = prometheus.NewCounterVec(prometheus.CounterOpts{Name: "larder_failed_sequences_total", Help: "Sequences that ended with an error, by HTTP status (499: the client left)."}, []string{"status"})
	m.step = prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "larder_step_seconds", Help: "Time of one engine step.", Buckets: fineBuckets}, []string{"mode"})
	reg.MustRegister(cached, m.failures, m.step)
	m.cachedDevice, m.cachedHost, m.cachedAll = cached.WithLabelValues("device"), cached.WithLabelValues("host"), cached.WithLabelValues("total")
	m.ttft = histogram("sglang:time_to_first_token_seconds", "Arrival to first token.", ttftBuckets)
	m.itl = histogram("sglang:inter_token_latency_seconds", "Between tokens; an interval that brought several counts once for each, divided.", itlBuckets)
	m.e2e = histogram("sglang:e2e_request_latency_seconds", "Arrival to last token.", e2eBuckets)
	m.queue = histogram("sglang:queue_time_seconds", "In the queue until admitted.", fineBuckets)
	m.loadWait = histogram("larder_load_wait_seconds", "Admission until the loads from slower tiers landed, of requests that had some.", fineBuckets)
	m.promptSize = histogram("sglang:prompt_tokens_histogram", "Prompt tokens per request.", sizeBuckets)
	m.uncachedSize = histogram("sglang:uncached_prompt_tokens_histogram", "Prompt tokens computed per request.", sizeBuckets)
	m.answerSize = histogram("sglang:generation_tokens_histogram", "Generated tokens per request.", sizeBuckets)
	m.load = histogram("sglang:load_back_duration_seconds", "Time of one load from the host tier.", moveBuckets)
	m.store = histogram("sglang:hicache_backup_duration_seconds", "Time of one store to the host tier.", moveBuckets)
	m.loadTokens = counter("sglang:load_back_tokens_total", "Tokens loaded from the host tier.")
	m.loadBytes = counter("sglang:load_back_bytes_total", "Bytes loaded from the host tier.")
	m.storeTokens = counter("sglang:hicache_backup_tokens_total", "Tokens stored to the host tier.")
	m.storeBytes = counter("sglang:hicache_backup_bytes_total", "Bytes stored to the host tier.")
	reg.MustRegister(&engineCollector{backend: backend, rate: &m.rate})
	m.handler = promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{})
	return m
}

// ObserveLoad counts one finished load of a run of blocks from the host tier to the device.
func (m *Metrics) ObserveLoad(tokens int, bytes int64, took time.Duration) {
	m.load.Observe(took.Seconds())
	m.loadTokens.Add(float64(tokens))
	m.loadBytes.Add(float64(bytes))
}

// ObserveStore counts one finished store of a run of blocks from the device to the host tier.
func (m *Metrics) ObserveStore(tokens int, bytes int64, took time.Duration) {
	m.store.Observe(took.Seconds())
	m.storeTokens.Add(float64(tokens))
	m.storeBytes.Add(float64(bytes))
}

// ObserveStep counts one engine step; mode is "prefill", "decode" or "mixed".
func (m *Metrics) ObserveStep(mode string, took time.Duration) {
	m.step.WithLabelValues(mode).Observe(took.Seconds())
}

// token counts n new tokens of q, which has not taken them yet.
func (m *Metrics) token(q *sequence, n int, now time.Time) {
	if n == 0 {
		return
	}
	m.rate.add(now, n)
	m.generated.Add(float64(n))
	if q.first.IsZero() {
		m.ttft.Observe(now.Sub(q.start).Seconds())
		return
	}
	each := now.Sub(q.last).Seconds() / float64(n)
	for range n {
		m.itl.Observe(each)
	}
}

// finished counts q, which ended with err.
func (m *Metrics) finished(q *sequence, err error) {
	m.requests.Inc()
	if err != nil {
		m.failures.WithLabelValues(itoa(toFault(err).Status)).Inc()
	}
	if err != nil || q.finish.Reason == "abort" {
		m.aborted.Inc()
		return
	}
	u := &q.usage
	m.prompt.Add(float64(u.PromptTokens))
	m.cachedDevice.Add(float64(u.Cached.Device))
	m.cachedHost.Add(float64(u.Cached.Host))
	m.cachedAll.Add(float64(u.Cached.Total()))
	m.promptSize.Observe(float64(u.PromptTokens))
	m.uncachedSize.Observe(float64(u.Computed))
	m.answerSize.Observe(float64(len(q.ids)))
	m.e2e.Observe(time.Since(q.start).Seconds())
	if wait := between(u.Timing.Queued, u.Timing.Admitted); !math.IsNaN(wait) {
		m.queue.Observe(wait)
	}
	if load := between(u.Timing.Admitted, u.Timing.Loaded); load > 0 {
		m.loadWait.Observe(load)
	}
}

func (s *Server) serveMetrics(w http.ResponseWriter, r *http.Request) error {
	if !s.cfg.EnableMetrics {
		return fail(http.StatusNotFound, "metrics are off; start the server with --enable-metrics")
	}
	s.metrics.handler.ServeHTTP(w, r)
	return nil
}

// meter measures tokens per second over the last whole seconds.
type meter struct {
	mu    sync.Mutex // guards what follows
	slots [meterSeconds + 1]int
	at    [meterSeconds + 1]int64 // Unix second of each slot
}

const meterSeconds = 5

func (m *meter) add(now time.Time, n int) {
	sec := now.Unix()
	i := sec % int64(len(m.slots))
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.at[i] != sec {
		m.at[i], m.slots[i] = sec, 0
	}
	m.slots[i] += n
}

// perSecond is the mean over the last meterSeconds whole seconds.
func (m *meter) perSecond(now time.Time) float64 {
	sec, sum := now.Unix(), 0
	m.mu.Lock()
	defer m.mu.Unlock()
	for i, at := range m.at {
		if at < sec && at >= sec-meterSeconds {
			sum += m.slots[i]
		}
	}
	return float64(sum) / meterSeconds
}
