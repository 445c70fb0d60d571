package study

import (
	"context"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"larder/internal/infer"
	"larder/internal/loadgen"
	"larder/internal/record"
	"larder/internal/server"
)

// served is the world behind the real server: its requests come over HTTP, at once, and take real time.
type served struct {
	*world
	mu sync.Mutex
}

func (s *served) Generate(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
	t := infer.Timing{Queued: time.Now()}
	s.mu.Lock()
	defer s.mu.Unlock()
	t.Admitted = time.Now()
	t.Loaded, t.Computing = t.Admitted, t.Admitted
	return s.world.Generate(ctx, r, func(e infer.Event) error {
		t.FirstToken = time.Now()
		e.Usage.Timing = t
		last := e
		for i, id := range e.Tokens { // one event a token, as an engine does
			last.Tokens, last.Finish = []int32{id}, infer.NotFinished
			if i == len(e.Tokens)-1 {
				last.Finish = e.Finish
			}
			if err := emit(last); err != nil {
				return err
			}
		}
		return nil
	})
}

// The study, the load generator and the server agree on every field that the checks rely on.
func TestOverHTTP(t *testing.T) {
	for _, prefixes := range []string{"own", "one"} {
		w := &served{world: newWorld(16)}
		tap := NewTap(w)
		srv, err := server.New(server.Config{ServedModelName: "fake", Version: "test"})
		if err != nil {
			t.Fatal(err)
		}
		err = srv.Attach(server.Backend{Generator: tap, Control: w, Model: server.Model{
			Path: "fake", LoadFormat: "dummy", VocabSize: 5000, ContextLength: 4096, MaxTotal: 1 << 20,
		}})
		if err != nil {
			t.Fatal(err)
		}
		web := httptest.NewServer(srv.HTTPServer().Handler)
		env := w.env()
		// No limits: this world computes nothing, so it would beat any.
		env.BaseURL, env.Driver, env.Tap, env.Control, env.Roofline = web.URL, DriverFunc(loadgen.Run), tap, w, nil
		c := small()
		c.Repeats, c.Prefixes = 2, prefixes
		s, err := Run(context.Background(), c, env)
		web.Close()
		if err != nil {
			t.Fatalf("prefixes %s: %v\n%+v", prefixes, err, s.Checks)
		}
		if !s.OK() || len(s.Rows) != 18 {
			t.Errorf("prefixes %s: %d rows, failed %v", prefixes, len(s.Rows), s.FailedChecks())
		}
		for _, r := range s.Rows {
			if r.Arm == record.HostArm && (r.Cached.Device+r.Cached.Host != 288*r.Batch || r.Split.Compute.Why() != "") {
				t.Errorf("prefixes %s: %+v, split %+v", prefixes, r.Cached, r.Split)
			}
		}
	}
}
