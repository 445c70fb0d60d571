package loadgen

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"mime"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"net/url"
	"sync"
	"time"
)

// newTransport keeps one open connection for each request that can be in flight, speaks HTTP/1.1, and asks no proxy
// for a server on this machine. Nothing is compressed, since the bytes are timed.
func newTransport(base string, conns int, connect time.Duration) *http.Transport {
	dialer := &net.Dialer{Timeout: connect, KeepAlive: 30 * time.Second}
	t := &http.Transport{
		DialContext:         dialer.DialContext,
		TLSHandshakeTimeout: connect,
		MaxIdleConns:        0,
		MaxIdleConnsPerHost: max(conns, 2),
		IdleConnTimeout:     5 * time.Minute,
		DisableCompression:  true,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		WriteBufferSize:     64 << 10,
		ReadBufferSize:      16 << 10,
	}
	if !isLoopback(base) {
		t.Proxy = http.ProxyFromEnvironment
	}
	return t
}

func isLoopback(base string) bool {
	u, err := url.Parse(base)
	if err != nil {
		return false
	}
	if u.Hostname() == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err == nil && (a.IsLoopback() || a.IsUnspecified())
}

// readSize is one read's buffer: larger than any usual burst of events, small enough for thousands of streams.
const readSize = 16 << 10

// flight is one request on its way.
type flight struct {
	r      *run
	o      *Outcome
	ctx    context.Context
	cancel context.CancelCauseFunc
	limit  deadline
}

// errOverdue is the cause when the watchdog ends a request.
var errOverdue = errors.New("overdue")

// send makes the request and records all that happens to it. It never fails: failures are outcomes.
func (f *flight) send(body []byte) {
	defer f.cancel(nil)
	o, r := f.o, f.r
	o.Sent = r.now()
	o.Done = o.Sent
	f.limit.set(o.Sent, r.limits.First)
	w := &wire{now: r.now}
	defer w.copyTo(o)
	resp, err := r.client.Do(f.request(body, w))
	if err != nil {
		o.Done = r.now()
		f.noAnswer(err)
		return
	}
	defer resp.Body.Close()
	o.Status = resp.StatusCode
	o.Done = r.now()
	switch kind, _, _ := mime.ParseMediaType(resp.Header.Get("Content-Type")); {
	case resp.StatusCode != http.StatusOK:
		f.refused(resp)
	case kind == "text/html":
		f.refuse(resp, ClassStream, "the server sent a web page, not an answer; is the URL right?")
	case r.cfg.Stream && kind != "application/json":
		f.read(resp.Body)
	default:
		f.readWhole(resp.Body)
	}
}

func (f *flight) request(body []byte, w *wire) *http.Request {
	ctx := httptrace.WithClientTrace(f.ctx, w.trace())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, f.r.url, bytes.NewReader(body))
	if err != nil {
		panic("loadgen: the URL was checked before: " + err.Error())
	}
	req.Header = f.r.cfg.header(f.o.Item)
	req.GetBody = func() (io.ReadCloser, error) {
		f.o.Replays++
		return io.NopCloser(bytes.NewReader(body)), nil
	}
	return req
}

// wire holds the connection and wire times of a request. The HTTP client calls the hooks on goroutines of its own, and
// those of a dial that lost its use even after the request; so they write here under a lock, and copy takes what there
// is when the request has ended.
type wire struct {
	now                            func() time.Duration
	mu                             sync.Mutex
	asked, connected, wrote, first time.Duration // guarded by mu
}

func (w *wire) trace() *httptrace.ClientTrace {
	note := func(to *time.Duration) {
		at := w.now()
		w.mu.Lock()
		defer w.mu.Unlock()
		*to = at
	}
	return &httptrace.ClientTrace{
		GetConn: func(string) { note(&w.asked) },
		GotConn: func(i httptrace.GotConnInfo) {
			if !i.Reused {
				note(&w.connected)
			}
		},
		WroteRequest:         func(httptrace.WroteRequestInfo) { note(&w.wrote) },
		GotFirstResponseByte: func() { note(&w.first) },
	}
}

func (w *wire) copyTo(o *Outcome) {
	w.mu.Lock()
	defer w.mu.Unlock()
	o.Wrote, o.FirstByte = w.wrote, w.first
	if w.connected > 0 {
		o.Connect = w.connected - w.asked
	}
}

// noAnswer classes an error that came before the headers.
func (f *flight) noAnswer(err error) {
	var op *net.OpError
	var record tls.RecordHeaderError
	var cert *tls.CertificateVerificationError
	var alert tls.AlertError
	var ue *url.Error
	if errors.As(err, &ue) {
		err = ue.Err
	}
	switch {
	case f.stopped(err):
	case errors.As(err, &op) && op.Op == "dial" && op.Timeout():
		f.fail(ClassTimeoutConnect, err)
	case errors.As(err, &op) && op.Op == "dial":
		f.fail(ClassConnect, err)
	case errors.As(err, &record), errors.As(err, &cert), errors.As(err, &alert):
		f.fail(ClassTLS, err)
	default:
		f.fail(ClassHTTP, fmt.Errorf("no HTTP answer: %w", err))
	}
}

// stopped classes the error of a request that we ended ourselves, and reports whether it was one.
func (f *flight) stopped(err error) bool {
	cause := context.Cause(f.ctx)
	if cause == nil {
		return false
	}
	o := f.o
	switch l := f.r.limits; {
	case !errors.Is(cause, errOverdue):
		f.fail(ClassCanceled, cause)
	case l.Total > 0 && o.Done-o.Sent >= l.Total || l.Total > 0 && f.r.now()-o.Sent >= l.Total:
		f.fail(ClassTimeoutTotal, fmt.Errorf("not done after %v", l.Total))
	case o.First > 0:
		f.fail(ClassTimeoutGap, fmt.Errorf("no new output for %v after %d chunks", l.Gap, len(o.Chunks)))
	default:
		f.fail(ClassTimeoutFirst, fmt.Errorf("no output after %v", l.First))
	}
	return true
}

func (f *flight) fail(class string, err error) {
	if f.o.Class == "" {
		f.o.Class, f.o.Err = class, err
	}
}

// refused records a status that is not 200, with what the server said.
func (f *flight) refused(resp *http.Response) { f.refuse(resp, ClassHTTP, resp.Status) }

func (f *flight) refuse(resp *http.Response, class, what string) {
	text, _ := io.ReadAll(io.LimitReader(resp.Body, 64<<10)) // whatever can be read is shown
	f.o.Done = f.r.now()
	f.fail(class, fmt.Errorf("%s: %s", what, excerpt(text)))
}

// read reads an event stream to its end.
func (f *flight) read(body io.Reader) {
	buf := f.r.buffers.Get().(*[readSize]byte)
	defer f.r.buffers.Put(buf)
	s := newStream(f.o, f.r.proto)
	chunks := len(f.o.Chunks)
	for {
		n, err := body.Read(buf[:])
		at := f.r.now()
		s.feed(at, buf[:n])
		if len(f.o.Chunks) != chunks {
			chunks = len(f.o.Chunks)
			f.limit.set(at, f.r.limits.Gap)
		}
		if err == nil {
			continue
		}
		if err == io.EOF {
			s.flush(at)
		} else if !s.done && !f.stopped(err) {
			f.fail(ClassStream, fmt.Errorf("the stream broke: %w", err))
		}
		s.finish()
		return
	}
}

// readWhole reads an answer that is one JSON object: its end is its first output.
func (f *flight) readWhole(body io.Reader) {
	b, err := io.ReadAll(io.LimitReader(body, maxLine))
	f.o.Done = f.r.now()
	if err != nil {
		if !f.stopped(err) {
			f.fail(ClassStream, fmt.Errorf("the answer broke: %w", err))
		}
		return
	}
	s := newStream(f.o, f.r.proto)
	s.object(f.o.Done, b)
	s.done = true
	s.finish()
}
