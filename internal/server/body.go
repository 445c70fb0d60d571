package server

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"os"
	"strings"
	"time"
)

// keepBody is the largest buffer that is lent again; a larger one is left to the collector.
const keepBody = 1 << 20

// withBody reads the body and gives it to decode, which must not keep it.
func (s *Server) withBody(w http.ResponseWriter, r *http.Request, decode func([]byte) error) error {
	if err := checkType(r.Header.Get("Content-Type")); err != nil {
		return err
	}
	if r.ContentLength > s.cfg.MaxBodyBytes {
		w.Header().Set("Connection", "close")
		return &http.MaxBytesError{Limit: s.cfg.MaxBodyBytes}
	}
	buf := s.bodies.Get().(*bytes.Buffer)
	buf.Reset()
	defer func() {
		if buf.Cap() <= keepBody {
			s.bodies.Put(buf)
		}
	}()
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Now().Add(s.cfg.BodyTimeout)) // not supported by some writers: then there is none
	_, err := io.Copy(buf, http.MaxBytesReader(w, r.Body, s.cfg.MaxBodyBytes))
	_ = rc.SetReadDeadline(time.Time{})
	if err != nil {
		return bodyError(err)
	}
	return decode(buf.Bytes())
}

// bodyError says what went wrong while a body was read.
func bodyError(err error) error {
	var big *http.MaxBytesError
	switch {
	case errors.As(err, &big):
		return err
	case errors.Is(err, os.ErrDeadlineExceeded):
		return fail(http.StatusRequestTimeout, "the body did not arrive in time")
	}
	return fail(http.StatusBadRequest, "the body could not be read: %s", err)
}

// checkType wants JSON, as the peers do; it also keeps web pages of other origins from posting here unasked.
func checkType(header string) error {
	if header == "application/json" {
		return nil
	}
	kind, _, err := mime.ParseMediaType(header)
	if err == nil && (kind == "application/json" || strings.HasPrefix(kind, "application/") && strings.HasSuffix(kind, "+json")) {
		return nil
	}
	return fail(http.StatusBadRequest, "the content type is %q; only application/json is accepted", header)
}
