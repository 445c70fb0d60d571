package tokenizer

import (
	"encoding/json"
	"errors"
	"fmt"
)

// scanner reads the two large parts of a tokenizer.json, the vocabulary and the merges, several times faster than
// encoding/json. Everything else goes to encoding/json by way of value.
type scanner struct {
	s string
	i int
}

var errTruncated = errors.New("ends too early")

// peek is the next byte that is not white space.
func (s *scanner) peek() (byte, error) {
	for ; s.i < len(s.s); s.i++ {
		switch c := s.s[s.i]; c {
		case ' ', '\n', '\t', '\r':
		default:
			return c, nil
		}
	}
	return 0, errTruncated
}

// expect reads c.
func (s *scanner) expect(c byte) error {
	got, err := s.peek()
	if err != nil {
		return err
	}
	if got != c {
		return fmt.Errorf("offset %d: %q instead of %q", s.i, got, c)
	}
	s.i++
	return nil
}

// items calls item at the start of each item between open and closing, until one fails.
func (s *scanner) items(open, closing byte, item func() error) error {
	if err := s.expect(open); err != nil {
		return err
	}
	if c, err := s.peek(); err != nil || c == closing {
		s.i++
		return err
	}
	for {
		if err := item(); err != nil {
			return err
		}
		c, err := s.peek()
		if err != nil {
			return err
		}
		s.i++
		if c == closing {
			return nil
		}
		if c != ',' {
			return fmt.Errorf("offset %d: %q instead of ',' or %q", s.i-1, c, closing)
		}
	}
}

// object calls field for each key, with the scanner before its value.
func (s *scanner) object(field func(key string) error) error {
	return s.items('{', '}', func() error {
		key, err := s.text()
		if err != nil {
			return err
		}
		if err := s.expect(':'); err != nil {
			return err
		}
		return field(key)
	})
}

// text reads a string. Without escapes it is a part of the input and nothing is copied.
func (s *scanner) text() (string, error) {
	if err := s.expect('"'); err != nil {
		return "", err
	}
	start, plain := s.i, true
	for ; s.i < len(s.s); s.i++ {
		switch c := s.s[s.i]; {
		case c == '"':
			s.i++
			if plain {
				return s.s[start : s.i-1], nil
			}
			var text string
			err := json.Unmarshal([]byte(s.s[start-1:s.i]), &text)
			return text, err
		case c == '\\':
			plain = false
			s.i++
		case c < ' ':
			return "", fmt.Errorf("offset %d: control character in a string", s.i)
		}
	}
	return "", errTruncated
}

// id reads a token id.
func (s *scanner) id() (int32, error) {
	if _, err := s.peek(); err != nil {
		return 0, err
	}
	start, n := s.i, 0
	for ; s.i < len(s.s) && s.s[s.i] >= '0' && s.s[s.i] <= '9'; s.i++ {
		if n = n*10 + int(s.s[s.i]-'0'); n >= maxIDs {
			return 0, fmt.Errorf("offset %d: ids from %d on are not supported", start, maxIDs)
		}
	}
	if s.i == start {
		return 0, fmt.Errorf("offset %d: no token id", start)
	}
	return int32(n), nil
}

// value reads any value and decodes it into to.
func (s *scanner) value(to any) error {
	if _, err := s.peek(); err != nil {
		return err
	}
	d := json.NewDecoder(&tail{s.s[s.i:]})
	if err := d.Decode(to); err != nil {
		return err
	}
	s.i += int(d.InputOffset())
	return nil
}

// tail reads a string in small steps, so that a decoder which wants one value does not take in all that follows.
type tail struct{ s string }

func (t *tail) Read(p []byte) (int, error) {
	if t.s == "" {
		return 0, errTruncated
	}
	n := copy(p, t.s[:min(512, len(t.s))])
	t.s = t.s[n:]
	return n, nil
}
