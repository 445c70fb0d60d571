package loadgen

import (
	"bufio"
	"context"
	"crypto/tls"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"
)

// conn is one HTTP/1.1 connection. We write whole prepared requests and read answers ourselves, instead of through
// net/http's client, for three reasons: a burst of a thousand requests leaves in a few ms, since the connections are
// there before the clock starts and a request is one write; each time is taken where it happens; and nothing is
// sent twice behind our back.
type conn struct {
	net.Conn
	read *bufio.Reader
	raw  net.Conn // below TLS
	used bool     // it has carried a request
}

// dialer opens connections to one server and keeps the idle ones, as many as there ever were at once. Safe for
// concurrent use.
type dialer struct {
	addr    string      // of the server, or of the proxy
	server  string      // host:port of the server
	proxy   *url.URL    // nil: none
	tls     *tls.Config // nil: plain
	timeout time.Duration

	mu   sync.Mutex
	idle []*conn // guarded by mu
}

// newDialer also says what goes into the request line: the path, or with an HTTP proxy the whole URL. proxy says which
// proxy a request goes through; it is not asked about servers on this machine.
func newDialer(u *url.URL, timeout time.Duration, proxy func(*http.Request) (*url.URL, error)) (d *dialer, target string, err error) {
	d = &dialer{server: hostPort(u), timeout: timeout}
	d.addr, target = d.server, u.RequestURI()
	if u.Scheme == "https" {
		d.tls = &tls.Config{ServerName: u.Hostname(), NextProtos: []string{"http/1.1"}}
	}
	if isLoopback(u) {
		return d, target, nil
	}
	if d.proxy, err = proxy(&http.Request{URL: u}); err != nil {
		return nil, "", fmt.Errorf("proxy: %w", err)
	}
	if d.proxy != nil {
		if d.proxy.Scheme != "http" {
			return nil, "", fmt.Errorf("proxy %s: only http:// proxies are supported", d.proxy.Redacted())
		}
		d.addr = hostPort(d.proxy)
		if d.tls == nil {
			target = u.String()
		}
	}
	return d, target, nil
}

func hostPort(u *url.URL) string {
	port := u.Port()
	if port == "" {
		port = map[string]string{"http": "80", "https": "443"}[u.Scheme]
	}
	return net.JoinHostPort(u.Hostname(), port)
}

func isLoopback(u *url.URL) bool {
	if u.Hostname() == "localhost" {
		return true
	}
	a, err := netip.ParseAddr(u.Hostname())
	return err == nil && (a.IsLoopback() || a.IsUnspecified())
}

// proxyAuth is the header line for the proxy's password, or "".
func (d *dialer) proxyAuth() string {
	if d.proxy == nil || d.proxy.User == nil {
		return ""
	}
	password, _ := d.proxy.User.Password()
	return "Proxy-Authorization: Basic " + base64.StdEncoding.EncodeToString([]byte(d.proxy.User.Username()+":"+password)) + "\r\n"
}

// errTLS marks a failure between TCP and HTTP.
var errTLS = errors.New("TLS")

// dial opens a connection.
func (d *dialer) dial(ctx context.Context) (*conn, error) {
	if d.timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d.timeout)
		defer cancel()
	}
	var nd net.Dialer
	raw, err := nd.DialContext(ctx, "tcp", d.addr)
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: raw, raw: raw}
	if d.tls != nil {
		if d.proxy != nil {
			if err := d.tunnel(raw); err != nil {
				return nil, errors.Join(err, raw.Close())
			}
		}
		secure := tls.Client(raw, d.tls)
		if err := secure.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, fmt.Errorf("%w: %w", errTLS, err)
		}
		c.Conn = secure
	}
	c.read = bufio.NewReaderSize(c.Conn, readSize)
	return c, nil
}

// tunnel asks the proxy for a way through to the server.
func (d *dialer) tunnel(raw net.Conn) error {
	if d.timeout > 0 {
		if err := raw.SetDeadline(time.Now().Add(d.timeout)); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(raw, "CONNECT %s HTTP/1.1\r\nHost: %s\r\n%s\r\n", d.server, d.server, d.proxyAuth()); err != nil {
		return err
	}
	resp, err := http.ReadResponse(bufio.NewReader(raw), &http.Request{Method: http.MethodConnect})
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("the proxy refused: %s", resp.Status)
	}
	return raw.SetDeadline(time.Time{})
}

// get is an idle connection that is still open, or a new one; dialled says how long that took.
func (d *dialer) get(ctx context.Context, now func() time.Duration) (c *conn, dialled time.Duration, err error) {
	for c = d.pop(); c != nil; c = d.pop() {
		if c.open() {
			return c, 0, nil
		}
		c.Close()
	}
	start := now()
	c, err = d.dial(ctx)
	return c, max(now()-start, 1), err
}

func (d *dialer) pop() *conn {
	d.mu.Lock()
	defer d.mu.Unlock()
	n := len(d.idle)
	if n == 0 {
		return nil
	}
	c := d.idle[n-1]
	d.idle = d.idle[:n-1]
	return c
}

// put gives a connection back whose answer was read to its end.
func (d *dialer) put(c *conn) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.idle = append(d.idle, c)
}

// prepare opens n connections before the clock starts, several at a time, and returns how many it has. A server that
// can not be reached is no error here: the requests will find out and say so.
func (d *dialer) prepare(ctx context.Context, n int) int {
	const atOnce = 32
	var wg sync.WaitGroup
	for w := range min(atOnce, n) {
		wg.Go(func() {
			for i := w; i < n; i += atOnce {
				c, err := d.dial(ctx)
				if err != nil {
					return
				}
				d.put(c)
			}
		})
	}
	wg.Wait()
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.idle)
}

// close closes the idle connections.
func (d *dialer) close() {
	for c := d.pop(); c != nil; c = d.pop() {
		c.Close()
	}
}
