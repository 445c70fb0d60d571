package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"larder/internal/infer"
	"larder/internal/infer/echo"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// ask posts over a real socket.
func ask(t testing.TB, c *http.Client, url, body string) *http.Response {
	t.Helper()
	resp, err := c.Post(url, "application/json", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

// TestClientLeaves hangs up in the middle of each kind of request; the engine's request must end.
func TestClientLeaves(t *testing.T) {
	engine, g := holding()
	f := serve(t, Config{}, engine, nil)
	hs := f.wire()
	for path, body := range map[string]string{
		"/generate":            `{"text":["a","b"],"stream":%t}`,
		"/v1/completions":      `{"prompt":"a","stream":%t,"n":2}`,
		"/v1/chat/completions": chatOf(`,"stream":%t,"n":2`),
	} {
		for _, stream := range []bool{true, false} {
			ctx, hangUp := context.WithCancel(t.Context())
			req, err := http.NewRequestWithContext(ctx, "POST", hs.URL+path, strings.NewReader(fmt.Sprintf(body, stream)))
			if err != nil {
				t.Fatal(err)
			}
			req.Header.Set("Content-Type", "application/json")
			done := make(chan error, 1)
			go func() {
				resp, err := hs.Client().Do(req)
				if err == nil {
					_, err = io.Copy(io.Discard, resp.Body)
					resp.Body.Close()
				}
				done <- err
			}()
			<-g.entered
			<-g.entered
			hangUp()
			for range 2 {
				if err := <-g.left; !errors.Is(err, context.Canceled) && toFault(err).Status != statusClientClosed {
					t.Errorf("%s: the engine's request ended with %v", path, err)
				}
			}
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%s: the client saw %v", path, err)
			}
		}
	}
}

// TestAbortRequest ends a request by its name: the answer is whole, with the reason abort. An empty name and an
// unknown one abort nothing.
func TestAbortRequest(t *testing.T) {
	engine, g := holding()
	f := serve(t, Config{}, engine, nil)
	hs := f.wire()
	for _, c := range []struct{ path, body, abort, want string }{
		{"/generate", `{"text":"a","rid":"r1"}`, `{"rid":"r1"}`, `"finish_reason":{"type":"abort","message":"the request was aborted"}`},
		{"/generate", `{"text":"a","rid":"r1","stream":true}`, `{"rid":"r1"}`, `"finish_reason":{"type":"abort","message":"the request was aborted"}`},
		{"/v1/completions", `{"prompt":"a"}`, `{"abort_all":true}`, `"text":"x","logprobs":null,"finish_reason":"abort"`},
		{"/v1/chat/completions", chatOf(`,"rid":"c"`), `{"rid":"c"}`, `"content":"x"`},
	} {
		answer := make(chan string, 1)
		go func() {
			resp := ask(t, hs.Client(), hs.URL+c.path, c.body)
			answer <- fmt.Sprint(resp.StatusCode, " ", readAll(t, resp.Body))
		}()
		<-g.entered
		for _, nothing := range []string{`{}`, `{"rid":""}`, `{"rid":"other"}`, `{"rid":null,"abort_all":false}`} {
			f.post("/abort_request", nothing, 200)
		}
		if strings.Contains(c.body, `"r1"`) {
			f.post("/generate", `{"text":"a","rid":"r1"}`, 400) // an id in use is not given twice
		}
		select {
		case err := <-g.left:
			t.Fatalf("%s: ended with %v before it was aborted", c.path, err)
		default:
		}
		f.post("/abort_request", c.abort, 200)
		<-g.left
		if got := <-answer; !strings.HasPrefix(got, "200 ") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %s", c.path, got)
		}
	}
}

// TestSlowReader lets one client read nothing: others go on, and the slow one's request is ended.
func TestSlowReader(t *testing.T) {
	ended := make(chan error, 1)
	e := echo.New(echo.Config{})
	engine := &script{Engine: e}
	engine.say = func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		u, err := e.Generate(ctx, r, emit)
		if len(r.Tokens) > 1 {
			ended <- err
		}
		return u, err
	}
	f := serve(t, Config{StallTimeout: 200 * time.Millisecond}, engine, func(b *Backend) { b.Model.ContextLength, b.Model.MaxTotal = 1<<20, 0 })
	hs := f.wire()
	conn, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	body := `{"input_ids":[65,66],"sampling_params":{"max_new_tokens":1000000},"stream":true}`
	fmt.Fprintf(conn, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	for {
		resp := ask(t, hs.Client(), hs.URL+"/generate", `{"input_ids":[65],"sampling_params":{"max_new_tokens":1}}`)
		if got := readAll(t, resp.Body); resp.StatusCode != 200 || !strings.HasPrefix(got, `{"text":"A"`) {
			t.Fatalf("beside a slow reader: %d %s", resp.StatusCode, got)
		}
		select {
		case err := <-ended:
			if !errors.Is(err, errSlowReader) {
				t.Errorf("the slow reader's request ended with %v", err)
			}
			// What was sent must not look like a whole answer.
			if rest, _ := io.ReadAll(conn); bytes.Contains(rest, []byte("[DONE]")) || bytes.HasSuffix(rest, []byte("0\r\n\r\n")) {
				t.Error("the cut stream looks whole")
			}
			return
		default:
		}
	}
}

// TestSlowReaderOfWholeAnswer reads nothing of an answer that no socket buffers; its handler must return.
func TestSlowReaderOfWholeAnswer(t *testing.T) {
	f := serve(t, Config{StallTimeout: 100 * time.Millisecond}, echoing(), func(b *Backend) {
		b.Tokenizer, b.Model.ContextLength, b.Model.MaxTotal = nil, 1<<30, 0
	})
	returned := make(chan struct{})
	hs := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer close(returned)
		f.ServeHTTP(w, r)
	}))
	hs.Config.ConnContext = func(ctx context.Context, c net.Conn) context.Context {
		if err := c.(*net.TCPConn).SetWriteBuffer(4096); err != nil {
			t.Error(err)
		}
		return ctx
	}
	hs.Start()
	defer hs.Close()
	conn, err := net.Dial("tcp", hs.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if err := conn.(*net.TCPConn).SetReadBuffer(4096); err != nil {
		t.Fatal(err)
	}
	body := `{"input_ids":[299],"sampling_params":{"max_new_tokens":150000}}`
	fmt.Fprintf(conn, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	<-returned
	if whole, err := io.ReadAll(conn); err == nil && bytes.HasSuffix(whole, []byte("}")) {
		t.Errorf("all %d bytes fitted into the sockets: nothing was tested", len(whole))
	}
}

// TestStreamsArriveAlone reads each event before the engine may make the next.
func TestStreamsArriveAlone(t *testing.T) {
	next := make(chan struct{})
	e := echo.New(echo.Config{})
	engine := &script{Engine: e}
	engine.say = func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		return e.Generate(ctx, r, func(ev infer.Event) error {
			<-next
			return emit(ev)
		})
	}
	hs := serve(t, Config{}, engine, nil).wire()
	go func() { next <- struct{}{} }()
	resp := ask(t, hs.Client(), hs.URL+"/v1/completions", `{"prompt":"abc","stream":true,"max_tokens":3}`)
	defer resp.Body.Close()
	r := bufio.NewReader(resp.Body)
	for i := range 3 {
		line, err := r.ReadString('\n')
		if want := `"text":"` + "abc"[i:i+1] + `"`; err != nil || !strings.HasPrefix(line, "data: {") || !strings.Contains(line, want) {
			t.Fatalf("event %d: %q, %v", i, line, err)
		}
		if empty, err := r.ReadString('\n'); err != nil || empty != "\n" {
			t.Fatalf("after event %d: %q, %v", i, empty, err)
		}
		if i < 2 {
			next <- struct{}{}
		}
	}
	if rest, err := io.ReadAll(r); err != nil || string(rest) != "data: [DONE]\n\n" {
		t.Errorf("end: %q, %v", rest, err)
	}
}

// TestQueueFull fills a bounded engine over real sockets and sees 503 with Retry-After, then room again.
func TestQueueFull(t *testing.T) {
	e := echo.New(echo.Config{MaxRunning: 1, MaxQueued: -1})
	entered, release := make(chan struct{}), make(chan struct{})
	engine := &script{Engine: e}
	engine.say = func(ctx context.Context, r *infer.Request, emit func(infer.Event) error) (infer.Usage, error) {
		return e.Generate(ctx, r, func(ev infer.Event) error {
			if len(r.Tokens) == 2 {
				entered <- struct{}{}
				<-release
			}
			return emit(ev)
		})
	}
	f := serve(t, Config{}, engine, nil)
	hs := f.wire()
	first := make(chan int, 1)
	go func() {
		resp := ask(t, hs.Client(), hs.URL+"/generate", `{"text":"ab","sampling_params":{"max_new_tokens":1}}`)
		readAll(t, resp.Body)
		first <- resp.StatusCode
	}()
	<-entered
	for _, stream := range []string{"false", "true"} {
		resp := ask(t, hs.Client(), hs.URL+"/v1/completions", `{"prompt":"a","stream":`+stream+`}`)
		if got := readAll(t, resp.Body); resp.StatusCode != 503 || resp.Header.Get("Retry-After") != "1" || !strings.Contains(got, "The request queue is full.") {
			t.Errorf("full: %d %v %s", resp.StatusCode, resp.Header, got)
		}
	}
	close(release)
	if code := <-first; code != 200 {
		t.Errorf("the first request: %d", code)
	}
	f.post("/generate", `{"text":"a","sampling_params":{"max_new_tokens":1}}`, 200)
}

// TestLargeBodyOverSocket sends 100 MB that nobody wants, announced and chunked, and reads while it writes.
func TestLargeBodyOverSocket(t *testing.T) {
	hs := serve(t, Config{}, echoing(), nil).wire()
	chunk := "100000\r\n" + strings.Repeat(" ", 1<<20) + "\r\n"
	for head, piece := range map[string]string{
		"Content-Length: 104857600":  chunk[8 : 8+1<<20],
		"Transfer-Encoding: chunked": chunk,
	} {
		conn, err := net.Dial("tcp", hs.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		written := make(chan struct{})
		go func() {
			defer close(written)
			_, err := fmt.Fprintf(conn, "POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n%s\r\n\r\n", head)
			for i := 0; i < 100 && err == nil; i++ {
				_, err = io.WriteString(conn, piece)
			}
		}()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("%s: %v", head, err)
		}
		if got := readAll(t, resp.Body); resp.StatusCode != 413 || !strings.Contains(got, "larger than 33554432 bytes") {
			t.Errorf("%s: %d %s", head, resp.StatusCode, got)
		}
		conn.Close()
		<-written
	}
}

// TestLargeBodyWrittenFirst: a client that reads nothing before it has written all still sees the answer.
func TestLargeBodyWrittenFirst(t *testing.T) {
	hs := serve(t, Config{MaxBodyBytes: 8 << 20}, echoing(), nil).wire()
	for _, announced := range []bool{true, false} {
		var size int64 = 48 << 20
		var body io.Reader = io.LimitReader(blanks{}, size)
		if announced {
			body = io.MultiReader(strings.NewReader(fmt.Sprintf("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n", size)), body)
		} else {
			body = io.MultiReader(strings.NewReader(fmt.Sprintf("POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n", size)), body, strings.NewReader("\r\n0\r\n\r\n"))
		}
		conn, err := net.Dial("tcp", hs.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(conn, body); err != nil {
			t.Fatalf("announced %v: writing: %v", announced, err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatalf("announced %v: %v", announced, err)
		}
		if got := readAll(t, resp.Body); resp.StatusCode != 413 {
			t.Errorf("announced %v: %d %s", announced, resp.StatusCode, got)
		}
		conn.Close()
	}
}

// blanks never ends.
type blanks struct{}

func (blanks) Read(p []byte) (int, error) {
	for i := range p {
		p[i] = ' '
	}
	return len(p), nil
}
