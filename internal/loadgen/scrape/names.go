package scrape

import (
	"strconv"
	"strings"
)

// Tiers of a cache as reports name them. vLLM's external cache is whatever its KV connector keeps outside the GPU; it
// stands under Host, with the connector's own name unknown.
const (
	TierDevice  = "device"
	TierHost    = "host"
	TierStorage = "storage"
)

// Counts are the counters of a server that a benchmark wants, by our names. A counter that the server does not have is
// missing from the map.
type Counts map[string]float64

// Names of Counts.
const (
	Prompt     = "prompt_tokens"
	Generated  = "generated_tokens"
	HitDevice  = "device_hit_tokens"
	HitHost    = "host_hit_tokens"
	HitStorage = "storage_hit_tokens"
	Evicted    = "evicted_tokens"
	Preempted  = "preemptions"
	LoadTokens = "loaded_tokens"
	LoadBytes  = "loaded_bytes"
	StoreBytes = "stored_bytes"
)

// counterOrder is the order of a report.
var counterOrder = []string{Prompt, Generated, HitDevice, HitHost, HitStorage, Evicted, Preempted, LoadTokens, LoadBytes, StoreBytes}

// State are the gauges of a server at one moment; missing ones are missing from the map.
type State map[string]float64

// Names of State.
const (
	Running = "running"
	Waiting = "waiting"
	Usage   = "kv_usage" // share of the device's KV memory, 0 to 1
)

// Kind is which server's names a snapshot has: "larder", "sglang", "vllm", or "" for none of them. larder's own server
// has SGLang's names besides its own.
func (s *Snapshot) Kind() string {
	for _, k := range []struct{ prefix, kind string }{{"larder_", "larder"}, {"sglang:", "sglang"}, {"sglang_", "sglang"}, {"vllm:", "vllm"}, {"vllm_", "vllm"}} {
		if s.hasPrefix(k.prefix) {
			return k.kind
		}
	}
	return ""
}

// Counts reads the counters by the names of the server's kind. prometheus_client ends counters with _total; older
// releases called some of them otherwise.
func (s *Snapshot) Counts() Counts {
	c := Counts{}
	set := func(name string, v float64, ok bool) {
		if ok {
			c[name] = v
		}
	}
	get := func(name string, names ...string) {
		v, ok := s.first(names...)
		set(name, v, ok)
	}
	switch s.Kind() {
	case "vllm":
		get(Prompt, "vllm:prompt_tokens_total", "vllm:prompt_tokens")
		get(Generated, "vllm:generation_tokens_total", "vllm:generation_tokens")
		get(HitDevice, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits", "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits")
		get(HitHost, "vllm:external_prefix_cache_hits_total", "vllm:external_prefix_cache_hits", "vllm:connector_prefix_cache_hits_total")
		get(Preempted, "vllm:num_preemptions_total", "vllm:num_preemptions")
	case "sglang", "larder":
		get(Prompt, "sglang:prompt_tokens_total")
		get(Generated, "sglang:generation_tokens_total")
		get(Evicted, "sglang:evicted_tokens_total")
		get(Preempted, "sglang:num_retracted_requests_total", "sglang:num_retracted_reqs_total")
		get(LoadTokens, "sglang:load_back_tokens_total")
		get(LoadBytes, "sglang:load_back_bytes_total")
		get(StoreBytes, "sglang:hicache_backup_bytes_total")
		s.sglangHits(set)
	}
	return c
}

// sglangHits reads the cached tokens by their source. Releases before the label have one series without it, which says
// nothing of tiers: it is taken for the device's, where that server kept all its cache.
func (s *Snapshot) sglangHits(set func(string, float64, bool)) {
	const name = "sglang:cached_tokens_total"
	from := func(match func(source string, labelled bool) bool) (float64, bool) {
		return s.sum(name, func(labels string) bool { return match(label(labels, "cache_source")) })
	}
	v, ok := from(func(src string, labelled bool) bool { return src == "device" || !labelled })
	set(HitDevice, v, ok)
	v, ok = from(func(src string, _ bool) bool { return src == "host" })
	set(HitHost, v, ok)
	v, ok = from(func(src string, _ bool) bool { return strings.HasPrefix(src, "storage") })
	set(HitStorage, v, ok)
}

// State reads the gauges.
func (s *Snapshot) State() State {
	st := State{}
	get := func(name string, names ...string) {
		if v, ok := s.first(names...); ok {
			st[name] = v
		}
	}
	switch s.Kind() {
	case "vllm":
		get(Running, "vllm:num_requests_running")
		get(Waiting, "vllm:num_requests_waiting")
		get(Usage, "vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
	case "sglang", "larder":
		get(Running, "sglang:num_running_reqs")
		get(Waiting, "sglang:num_queue_reqs")
		get(Usage, "sglang:token_usage")
	}
	return st
}

// Hits are all cached tokens, of whatever tier; false when the server counts none.
func (c Counts) Hits() (float64, bool) {
	v, any := 0.0, false
	for _, k := range []string{HitDevice, HitHost, HitStorage} {
		if n, ok := c[k]; ok {
			v, any = v+n, true
		}
	}
	return v, any
}

// Less is what was counted between an earlier reading and this one. A counter that went down belongs to a server that
// was started again in between; its name is returned and the counter left out.
func (c Counts) Less(before Counts) (d Counts, reset []string) {
	d = Counts{}
	for _, name := range counterOrder {
		now, ok1 := c[name]
		then, ok2 := before[name]
		switch {
		case !ok1:
		case !ok2:
			d[name] = now // a counter appears with its first event
		case now < then:
			reset = append(reset, name)
		default:
			d[name] = now - then
		}
	}
	return d, reset
}

// Capacity is how many tokens the device's KV memory holds, if the server says so.
func (s *Snapshot) Capacity() (tokens int, ok bool) {
	if v, ok := s.first("sglang:max_total_num_tokens"); ok && v > 0 {
		return int(v), true
	}
	sum := 0
	for _, i := range s.byName["vllm:cache_config_info"] {
		blocks, ok1 := label(s.series[i].labels, "num_gpu_blocks")
		size, ok2 := label(s.series[i].labels, "block_size")
		n, err1 := strconv.Atoi(blocks)
		k, err2 := strconv.Atoi(size)
		if ok1 && ok2 && err1 == nil && err2 == nil {
			sum += n * k
		}
	}
	return sum, sum > 0
}

// HostTier says whether the counters know a tier below the device.
func (s *Snapshot) HostTier() bool {
	switch s.Kind() {
	case "vllm":
		v, ok := s.first("vllm:external_prefix_cache_queries_total", "vllm:external_prefix_cache_queries")
		return ok && v > 0
	case "sglang", "larder":
		v, _ := s.first("sglang:hicache_host_total_tokens")
		return v > 0
	}
	return false
}
