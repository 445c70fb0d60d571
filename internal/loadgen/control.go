package loadgen

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"larder/internal/stats"
)

// Control speaks to a server's side routes: models, information, cache. Safe for concurrent use.
type Control struct {
	base, backend string
	header        http.Header
	client        *http.Client
}

// NewControl is a Control for the server of a Config.
func NewControl(cfg Config) (*Control, error) {
	if err := checkURL(cfg.BaseURL); err != nil {
		return nil, err
	}
	t := &http.Transport{DisableCompression: true}
	if u, err := url.Parse(cfg.BaseURL); err == nil && !isLoopback(u) {
		t.Proxy = http.ProxyFromEnvironment
	}
	return &Control{strings.TrimRight(cfg.BaseURL, "/"), cfg.Backend, cfg.Header, &http.Client{Transport: t}}, nil
}

// Close lets go of the connections.
func (c *Control) Close() { c.client.CloseIdleConnections() }

// call makes one request and returns a 200's body; limit bounds it.
func (c *Control) call(ctx context.Context, method, path string, limit time.Duration) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, nil)
	if err != nil {
		return nil, err
	}
	if c.header != nil {
		req.Header = c.header.Clone()
	}
	resp, err := c.client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return nil, fmt.Errorf("%s %s: %w", method, c.base+path, err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<20))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, c.base+path, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %w", method, c.base+path, &statusError{resp.StatusCode, resp.Status + ": " + excerpt(b)})
	}
	return b, nil
}

// statusError is an answer that is not 200.
type statusError struct {
	code int
	text string
}

func (e *statusError) Error() string { return e.text }

// forbidden says whether a server wants another key: no waiting helps.
func forbidden(err error) bool {
	var s *statusError
	return errors.As(err, &s) && (s.code == http.StatusUnauthorized || s.code == http.StatusForbidden)
}

// Ready asks for the list of models once a second until the server answers it; the error is that of the last try.
func (c *Control) Ready(ctx context.Context, limit time.Duration) error {
	end := time.Now().Add(limit)
	for {
		_, err := c.call(ctx, http.MethodGet, "/v1/models", 5*time.Second)
		left := time.Until(end)
		if err == nil || ctx.Err() != nil || forbidden(err) {
			return err
		}
		if left <= 0 {
			return fmt.Errorf("the server is not ready after %v: %w", limit, err)
		}
		waitUntil(ctx, time.Now().Add(min(left, time.Second)))
	}
}

// Models are the ids of the served models.
func (c *Control) Models(ctx context.Context) ([]string, error) {
	b, err := c.call(ctx, http.MethodGet, "/v1/models", 10*time.Second)
	if err != nil {
		return nil, err
	}
	var list struct {
		Data []struct {
			ID string `json:"id"`
		} `json:"data"`
	}
	if err := json.Unmarshal(b, &list); err != nil {
		return nil, fmt.Errorf("GET %s/v1/models: not a list of models (%w): %q", c.base, err, excerpt(b))
	}
	var ids []string
	for _, m := range list.Data {
		ids = append(ids, m.ID)
	}
	return ids, nil
}

// TokenizerPath is where the server says that its tokenizer is, or "".
func (c *Control) TokenizerPath(ctx context.Context) string {
	var info struct {
		Tokenizer string `json:"tokenizer_path"`
		Model     string `json:"model_path"`
	}
	for _, path := range []string{"/model_info", "/get_model_info"} {
		b, err := c.call(ctx, http.MethodGet, path, 5*time.Second)
		if err == nil && json.Unmarshal(b, &info) == nil {
			if info.Tokenizer != "" {
				return info.Tokenizer
			}
			return info.Model
		}
	}
	return ""
}

// Info is what the server says about itself, under the route's new or old name.
func (c *Control) Info(ctx context.Context) (json.RawMessage, error) {
	b, err := c.call(ctx, http.MethodGet, "/server_info", 10*time.Second)
	if err != nil {
		if b, err = c.call(ctx, http.MethodGet, "/get_server_info", 10*time.Second); err != nil {
			return nil, err
		}
	}
	if !json.Valid(b) {
		return nil, fmt.Errorf("the server's information is not JSON: %q", excerpt(b))
	}
	return bytes.TrimSpace(b), nil
}

// Version is the server's version, by vLLM's route or SGLang's; "" when it does not say.
func (c *Control) Version(ctx context.Context) string {
	var v struct {
		Version string `json:"version"`
	}
	b, err := c.call(ctx, http.MethodGet, "/version", 5*time.Second)
	if err != nil || json.Unmarshal(b, &v) != nil || v.Version == "" {
		if b, err = c.Info(ctx); err != nil || json.Unmarshal(b, &v) != nil {
			return ""
		}
	}
	return v.Version
}

// Capacity is how many tokens the device's KV memory holds by SGLang's server information; 0 when it does not say.
func (c *Control) Capacity(ctx context.Context) int {
	var v struct {
		Tokens int `json:"max_total_num_tokens"`
	}
	b, err := c.Info(ctx)
	if err != nil || json.Unmarshal(b, &v) != nil {
		return 0
	}
	return max(v.Tokens, 0)
}

// VocabSize is the size of the model's vocabulary, where the server says so; 0 elsewhere.
func (c *Control) VocabSize(ctx context.Context) int {
	var v struct {
		Size int `json:"vocab_size"`
	}
	b, err := c.call(ctx, http.MethodGet, "/model_info", 5*time.Second)
	if err != nil || json.Unmarshal(b, &v) != nil {
		return 0
	}
	return max(v.Size, 0)
}

// AcceptLength is the mean accepted length of speculative decoding in a server's Info.
func AcceptLength(info json.RawMessage) stats.Value {
	type state struct {
		Length *float64 `json:"avg_spec_accept_length"`
	}
	type states struct {
		Internal []state `json:"internal_states"`
	}
	var v struct {
		states
		Decode []states `json:"decode"`
	}
	if json.Unmarshal(info, &v) != nil {
		return stats.None("the server gives no information")
	}
	s := v.states
	if len(v.Decode) > 0 {
		s = v.Decode[0]
	}
	if len(s.Internal) == 0 || s.Internal[0].Length == nil {
		return stats.None("the server does not decode speculatively")
	}
	return stats.Of(*s.Internal[0].Length)
}

// Flush empties the server's prefix cache by the route that the backend has. SGLang waits up to wait for its own
// requests to end. A status that is not 200 is an error; that a server says 200 proves little, so look at the hits.
func (c *Control) Flush(ctx context.Context, wait time.Duration) error {
	path := "/flush_cache"
	switch {
	case strings.HasPrefix(c.backend, "vllm"):
		path = "/reset_prefix_cache?reset_external=true" // without it the tiers below the GPU go on serving; older releases ignore it
	case strings.HasPrefix(c.backend, "sglang"):
		path += "?timeout=" + strconv.FormatFloat(wait.Seconds(), 'f', -1, 64)
	}
	_, err := c.call(ctx, http.MethodPost, path, wait+10*time.Second)
	return err
}
