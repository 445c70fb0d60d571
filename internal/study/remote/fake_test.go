package remote

import (
	"crypto/sha256"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	"larder/internal/loadgen/mockserver"
)

const fakeBlock = 16

// fake is a server with a prefix cache in two tiers and no model: a device tier that evicts the least recently used,
// and perhaps a host tier that keeps all. It speaks SGLang's or vLLM's forms of answers and counters. Faults are
// switched on by name.
type fake struct {
	kind  string // sglang or vllm
	fault string
	host  bool // there is a tier below the device
	most  int  // blocks that the device holds

	mu       sync.Mutex
	tick     int
	device   map[string]int // last use
	below    map[string]bool
	prompt   int
	hits     [2]int
	requests int
}

func newFake(kind string) *fake {
	return &fake{kind: kind, host: true, most: 512, device: map[string]int{}, below: map[string]bool{}}
}

func (f *fake) server() *mockserver.Server {
	return &mockserver.Server{Answer: f.answer, Control: f.control}
}

// keys name the whole blocks of a prompt, each with all before it.
func keys(ids []any) []string {
	h := sha256.New()
	var out []string
	for i, id := range ids {
		fmt.Fprint(h, id, ",")
		if i%fakeBlock == fakeBlock-1 {
			out = append(out, string(h.Sum(nil)))
		}
	}
	return out
}

// take serves a prompt, the nth: the tokens found on the device and below it, while all of it comes onto the device.
func (f *fake) take(ids []any) (hits [2]int, nth int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.requests++
	f.prompt += len(ids)
	all := keys(ids)
	for i, k := range all {
		_, on := f.device[k]
		if (i+1)*fakeBlock >= len(ids) || !on && !f.below[k] {
			break
		}
		if on {
			hits[0] += fakeBlock
		} else {
			hits[1] += fakeBlock
		}
	}
	for _, k := range all {
		f.tick++
		f.device[k] = f.tick
		f.below[k] = f.host
	}
	for len(f.device) > f.most {
		oldest, at := "", f.tick+1
		for k, t := range f.device {
			if t < at {
				oldest, at = k, t
			}
		}
		delete(f.device, oldest)
	}
	f.hits[0] += hits[0]
	f.hits[1] += hits[1]
	return hits, f.requests
}

func (f *fake) answer(r *mockserver.Request) mockserver.Answer {
	ids, _ := r.Field("input_ids").([]any)
	if r.Path != "/generate" {
		ids, _ = r.Field("prompt").([]any)
	}
	if len(ids) == 0 || f.fault == "text only" {
		return mockserver.Answer{Status: 400, Type: "application/json", Pieces: []mockserver.Piece{{Data: `{"error":{"message":"token ids are not taken"}}`}}}
	}
	hits, nth := f.take(ids)
	if f.fault == "dies" && nth > 40 {
		return mockserver.Answer{End: mockserver.Cut}
	}
	computed := len(ids) - hits[0] - hits[1]
	o := mockserver.Options{First: time.Duration(computed)*10*time.Microsecond + time.Duration(hits[1])*2*time.Microsecond, Prompt: len(ids), Cached: [3]int{hits[0], hits[1], 0}, IDs: true, Usage: true}
	switch f.fault {
	case "always cached":
		o.Cached = [3]int{len(ids) / fakeBlock * fakeBlock, 0, 0}
	case "host as device":
		o.Cached = [3]int{hits[0] + hits[1], 0, 0}
	case "silent", "silent, no metrics":
		o.Prompt, o.Usage = 0, false
	case "wrong":
		if hits[1] > 0 {
			o.Text = "b"
			o.IDs = false
		}
	}
	return mockserver.Stream(r, o)
}

func (f *fake) control(w http.ResponseWriter, r *http.Request) bool {
	switch r.URL.Path {
	case "/metrics":
		if strings.HasSuffix(f.fault, "no metrics") {
			http.NotFound(w, r)
			return true
		}
		fmt.Fprint(w, f.metrics())
	case "/flush_cache", "/reset_prefix_cache":
		f.mu.Lock()
		defer f.mu.Unlock()
		switch f.fault {
		case "no flush":
			http.NotFound(w, r)
		case "flush of the device":
			clear(f.device)
		default:
			clear(f.device)
			clear(f.below)
		}
	default:
		return false
	}
	return true
}

func (f *fake) metrics() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.kind == "vllm" {
		text := fmt.Sprintf("vllm:prompt_tokens_total{engine=\"0\"} %d\nvllm:prefix_cache_hits_total{engine=\"0\"} %d\n", f.prompt, f.hits[0])
		if f.host {
			text += fmt.Sprintf("vllm:external_prefix_cache_queries_total %d\nvllm:external_prefix_cache_hits_total %d\n", f.prompt, f.hits[1])
		}
		return text + fmt.Sprintf("vllm:cache_config_info{block_size=\"16\",num_gpu_blocks=\"%d\"} 1\n", f.most)
	}
	text := fmt.Sprintf("sglang:prompt_tokens_total %d\nsglang:cached_tokens_total{cache_source=\"device\"} %d\nsglang:cached_tokens_total{cache_source=\"host\"} %d\n", f.prompt, f.hits[0], f.hits[1])
	if f.fault == "no capacity" {
		return text
	}
	return text + fmt.Sprintf("sglang:max_total_num_tokens %d\n", f.most*fakeBlock)
}
