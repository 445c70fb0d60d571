package loadgen

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"larder/internal/loadgen/mockserver"
)

func newControl(t *testing.T, base, backend string) *Control {
	t.Helper()
	c, err := NewControl(Config{BaseURL: base, Backend: backend})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestControl(t *testing.T) {
	c := newControl(t, serve(t, &mockserver.Server{}), "sglang")
	if err := c.Ready(t.Context(), time.Second); err != nil {
		t.Error(err)
	}
	if ids, err := c.Models(t.Context()); err != nil || len(ids) != 1 || ids[0] != "mock" {
		t.Errorf("models %v, %v", ids, err)
	}
	if p := c.TokenizerPath(t.Context()); p != "mock" {
		t.Errorf("tokenizer path %q", p)
	}
	if b, err := c.Info(t.Context()); err != nil || !strings.HasPrefix(string(b), `{"version"`) {
		t.Errorf("info %s, %v", b, err)
	}
}

func TestFlushRoutes(t *testing.T) {
	var mu sync.Mutex
	var got []string
	s := &mockserver.Server{Control: func(w http.ResponseWriter, r *http.Request) bool {
		mu.Lock()
		defer mu.Unlock()
		got = append(got, r.Method+" "+r.URL.RequestURI())
		if len(got) > 3 {
			http.Error(w, "Timed out waiting for idle state.", http.StatusBadRequest)
		}
		return len(got) > 3
	}}
	base := serve(t, s)
	for _, backend := range []string{"sglang-oai", "vllm-chat", "lmdeploy"} {
		if err := newControl(t, base, backend).Flush(t.Context(), time.Minute); err != nil {
			t.Error(err)
		}
	}
	if err := newControl(t, base, "sglang").Flush(t.Context(), 1500*time.Millisecond); err == nil || !strings.Contains(err.Error(), "idle state") {
		t.Errorf("a refused flush gave %v", err)
	}
	want := "POST /flush_cache?timeout=60,POST /reset_prefix_cache?reset_external=true,POST /flush_cache,POST /flush_cache?timeout=1.5"
	if strings.Join(got, ",") != want {
		t.Errorf("routes %q, want %q", got, want)
	}
}

// Old servers have only the old names; broken ones give an error that names the route.
func TestOldAndBrokenServers(t *testing.T) {
	s := &mockserver.Server{Control: func(w http.ResponseWriter, r *http.Request) bool {
		switch r.URL.Path {
		case "/server_info", "/model_info":
			http.NotFound(w, r)
			return true
		case "/v1/models":
			_, err := io.WriteString(w, "<html>")
			return err == nil
		}
		return false
	}}
	c := newControl(t, serve(t, s), "sglang")
	if p := c.TokenizerPath(t.Context()); p != "mock" {
		t.Errorf("tokenizer path %q by the old name", p)
	}
	if b, err := c.Info(t.Context()); err != nil || len(b) == 0 {
		t.Errorf("info by the old name: %v", err)
	}
	if _, err := c.Models(t.Context()); err == nil || !strings.Contains(err.Error(), "/v1/models") {
		t.Errorf("a web page for a list of models: %v", err)
	}
	c = newControl(t, "http://127.0.0.1:1", "sglang")
	if err := c.Ready(t.Context(), 20*time.Millisecond); err == nil || !strings.Contains(err.Error(), "not ready after 20ms") {
		t.Errorf("nobody there: %v", err)
	}
}

func TestAcceptLength(t *testing.T) {
	for text, want := range map[string]float64{
		`{"internal_states":[{"avg_spec_accept_length":2.5}]}`:            2.5,
		`{"decode":[{"internal_states":[{"avg_spec_accept_length":3}]}]}`: 3,
		`{"internal_states":[{"avg_spec_accept_length":null}]}`:           -1,
		`{"internal_states":[]}`:                                          -1, `{}`: -1, `[]`: -1, ``: -1,
	} {
		if got := AcceptLength([]byte(text)).Or(-1); got != want {
			t.Errorf("%s: %v, want %v", text, got, want)
		}
	}
}
