package loadgen

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"larder/internal/loadgen/mockserver"
)

// rawServer answers each connection with f and closes it then.
func rawServer(t *testing.T, f func(c net.Conn, r *bufio.Reader)) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				f(c, bufio.NewReader(c))
			}()
		}
	}()
	return l.Addr().String()
}

// readRequest takes one request and its body; false when the client is gone.
func readRequest(r *bufio.Reader) (*http.Request, bool) {
	req, err := http.ReadRequest(r)
	if err != nil {
		return nil, false
	}
	_, err = io.Copy(io.Discard, req.Body)
	return req, err == nil
}

const oneToken = `data: {"text":"a","meta_info":{"completion_tokens":1,"finish_reason":{"type":"length"}}}` + "\n\ndata: [DONE]\n\n"

// A server that keeps connections alive and then closes them all the same makes no failures, whenever we notice.
func TestServerClosesKeptConnections(t *testing.T) {
	addr := rawServer(t, func(c net.Conn, r *bufio.Reader) {
		if _, ok := readRequest(r); ok {
			fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\n\r\n%s", len(oneToken), oneToken)
		}
	})
	res := mustRun(t, t.Context(), Config{BaseURL: "http://" + addr, Backend: "sglang", Stream: true, MaxConcurrency: 1}, texts(30, 1))
	dials := res.Prepared
	for i, o := range res.Outcomes {
		if !o.OK() || o.Text != "a" {
			t.Errorf("item %d: %v", i, o.Err)
		}
		if o.Connect > 0 {
			dials++
		}
		if o.Resent && o.Connect == 0 {
			t.Errorf("item %d was sent again on the same connection", i)
		}
	}
	if dials != 30 {
		t.Errorf("%d connections for 30 requests to a server that closes each", dials)
	}
}

// A new connection that ends without an answer is a failure, and the request is not sent again.
func TestNoAnswerIsNotRetried(t *testing.T) {
	seen := make(chan struct{}, 10)
	addr := rawServer(t, func(_ net.Conn, r *bufio.Reader) {
		readRequest(r)
		seen <- struct{}{}
	})
	cfg := Config{BaseURL: "http://" + addr, Backend: "sglang", Stream: true}
	r, err := Run(t.Context(), cfg, texts(1, 1))
	if err != nil {
		t.Fatal(err)
	}
	if o := r.Outcomes[0]; o.Class != ClassHTTP || len(seen) > 2 {
		t.Errorf("class %q, %v, sent %d times", o.Class, o.Err, len(seen))
	}
}

// Informational answers are passed over, odd transfer codings and one-byte writes do not matter.
func TestOddAnswers(t *testing.T) {
	addr := rawServer(t, func(c net.Conn, r *bufio.Reader) {
		for {
			if _, ok := readRequest(r); !ok {
				return
			}
			answer := "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
			for _, part := range []string{oneToken[:7], oneToken[7:50], oneToken[50:]} {
				answer += fmt.Sprintf("%x\r\n%s\r\n", len(part), part)
			}
			answer += "0\r\n\r\n"
			for i := range len(answer) {
				if _, err := io.WriteString(c, answer[i:i+1]); err != nil {
					return
				}
			}
		}
	})
	for i, o := range mustRun(t, t.Context(), Config{BaseURL: "http://" + addr, Backend: "sglang", Stream: true, MaxConcurrency: 2}, texts(6, 1)).Outcomes {
		if !o.OK() || o.Text != "a" || o.Resent {
			t.Errorf("item %d: %+v", i, o)
		}
	}
	garbage := rawServer(t, func(c net.Conn, r *bufio.Reader) {
		readRequest(r)
		io.WriteString(c, "SSH-2.0-OpenSSH_9\r\n\r\n")
	})
	if o := mustRun(t, t.Context(), Config{BaseURL: "http://" + garbage, Backend: "sglang", Stream: true}, texts(1, 1)).Outcomes[0]; o.Class != ClassHTTP {
		t.Errorf("no HTTP: class %q, %v", o.Class, o.Err)
	}
}

// A proxy gets whole URLs, its password and tunnels; a server on this machine is never reached through one.
func TestProxy(t *testing.T) {
	mock := httptest.NewServer(&mockserver.Server{})
	defer mock.Close()
	var lines []string
	proxy := rawServer(t, func(c net.Conn, r *bufio.Reader) {
		req, ok := readRequest(r)
		if !ok {
			return
		}
		lines = append(lines, req.Method+" "+req.RequestURI+" "+req.Header.Get("Proxy-Authorization"))
		if req.Method == http.MethodConnect {
			io.WriteString(c, "HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
			return
		}
		fmt.Fprintf(c, "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(oneToken), oneToken)
	})
	via, err := url.Parse("http://user:pw@" + proxy)
	if err != nil {
		t.Fatal(err)
	}
	for base, want := range map[string]string{
		"http://model.invalid:8000/generate":  "POST http://model.invalid:8000/generate Basic dXNlcjpwdw==",
		"https://model.invalid:8443/generate": "CONNECT model.invalid:8443 Basic dXNlcjpwdw==",
	} {
		u, err := url.Parse(base)
		if err != nil {
			t.Fatal(err)
		}
		d, target, err := newDialer(u, 0, func(*http.Request) (*url.URL, error) { return via, nil })
		if err != nil {
			t.Fatal(err)
		}
		lines = nil
		r := &run{cfg: Config{Backend: "sglang", Stream: true}, dialer: d, method: &http.Request{Method: http.MethodPost}}
		r.buffers.New = func() any { return new([readSize]byte) }
		items := texts(1, 1)
		res, err := r.all(t.Context(), items, r.requests(items, [][]byte{[]byte("{}")}, u.Host, target))
		if err != nil || len(lines) == 0 || lines[0] != want {
			t.Errorf("%s: the proxy saw %q, want %q (%v)", base, lines, want, err)
		}
		if o := res.Outcomes[0]; strings.HasPrefix(base, "http:") != o.OK() {
			t.Errorf("%s: class %q, %v", base, o.Class, o.Err)
		}
	}
	for _, local := range []string{mock.URL, "http://localhost:1", "http://[::1]:1", "http://0.0.0.0:1"} {
		u, err := url.Parse(local)
		if err != nil {
			t.Fatal(err)
		}
		if d, _, err := newDialer(u, 0, func(*http.Request) (*url.URL, error) { return via, nil }); err != nil || d.proxy != nil {
			t.Errorf("%s would be reached through the proxy (%v)", local, err)
		}
	}
}
