package loadgen

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"larder/internal/workload"
)

// bodies serialises all requests before the clock starts, on all cores.
func (c *Config) bodies(items []workload.Item) ([][]byte, error) {
	out, errs := make([][]byte, len(items)), make([]error, len(items))
	var wg sync.WaitGroup
	workers := min(runtime.GOMAXPROCS(0), len(items))
	for w := range workers {
		wg.Go(func() {
			for i := w; i < len(items); i += workers {
				out[i], errs[i] = c.body(&items[i])
			}
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, fmt.Errorf("item %d: %w", i, err)
		}
	}
	return out, nil
}

// body is the JSON body of one item. Extra fields replace ours of the same name; the item's replace the run's.
func (c *Config) body(it *workload.Item) ([]byte, error) {
	proto, _ := protocolOf(c.Backend)
	var m map[string]any
	var err error
	switch proto {
	case native:
		m, err = c.nativeBody(it)
	case chat:
		m, err = c.chatBody(it)
	default:
		m, err = c.completionBody(it)
	}
	if err != nil {
		return nil, err
	}
	maps.Copy(m, c.Extra)
	maps.Copy(m, it.Extra)
	return json.Marshal(m)
}

func (c *Config) nativeBody(it *workload.Item) (map[string]any, error) {
	sampling := map[string]any{"temperature": c.Temperature, "max_new_tokens": it.OutputLen, "ignore_eos": c.IgnoreEOS}
	if c.TopP > 0 && c.TopP < 1 {
		sampling["top_p"] = c.TopP
	}
	m := map[string]any{"sampling_params": sampling, "stream": c.Stream}
	switch {
	case it.Messages != nil:
		return nil, errors.New("the native backend takes text or ids, not messages; use a chat backend")
	case it.IDs != nil:
		m["input_ids"] = idList(it.IDs)
	default:
		m["text"] = it.Text
	}
	return m, nil
}

func (c *Config) completionBody(it *workload.Item) (map[string]any, error) {
	m := c.openAIBody()
	m["max_tokens"] = it.OutputLen
	switch {
	case it.Messages != nil:
		return nil, errors.New("a completions backend takes text or ids, not messages; use a chat backend")
	case it.IDs != nil:
		m["prompt"] = idList(it.IDs)
	default:
		m["prompt"] = it.Text
	}
	return m, nil
}

func (c *Config) chatBody(it *workload.Item) (map[string]any, error) {
	m := c.openAIBody()
	m["max_completion_tokens"] = it.OutputLen
	switch {
	case it.IDs != nil:
		return nil, errors.New("a chat backend takes text or messages, not token ids")
	case it.Messages != nil:
		m["messages"] = it.Messages
	default:
		m["messages"] = []workload.Message{{Role: "user", Content: it.Text}}
	}
	return m, nil
}

// openAIBody has the fields that both OpenAI protocols share. Continuous usage gives the tokens of each chunk, so that
// several tokens in one chunk are not taken for one.
func (c *Config) openAIBody() map[string]any {
	m := map[string]any{"model": c.Model, "stream": c.Stream, "temperature": c.Temperature, "ignore_eos": c.IgnoreEOS}
	if c.TopP > 0 && c.TopP < 1 {
		m["top_p"] = c.TopP
	}
	if c.Stream && !c.NoUsage {
		m["stream_options"] = map[string]any{"include_usage": true, "continuous_usage_stats": true}
	}
	return m
}

// idList is a JSON list of ids; encoding/json would take several times as long for the prompts of a long run.
func idList(ids []int32) json.RawMessage {
	b := append(make([]byte, 0, 7*len(ids)+2), '[')
	for i, id := range ids {
		if i > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(id), 10)
	}
	return append(b, ']')
}

// header is the header of one item's request.
func (c *Config) header(it *workload.Item) http.Header {
	h := c.Header.Clone()
	if h == nil {
		h = http.Header{}
	}
	h.Set("Content-Type", "application/json")
	if c.Stream {
		h.Set("Accept", "text/event-stream")
	}
	if it.RoutingKey != "" {
		h.Set("X-SMG-Routing-Key", it.RoutingKey)
	}
	return h
}

// headerLines is a header as it goes on the wire, without the last empty line.
func headerLines(h http.Header) string {
	var b strings.Builder
	if err := h.WriteSubset(&b, map[string]bool{"Host": true, "Content-Length": true, "Transfer-Encoding": true, "Connection": true}); err != nil {
		panic("loadgen: a string builder does not fail: " + err.Error())
	}
	return b.String()
}
