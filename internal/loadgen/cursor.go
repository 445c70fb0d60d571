package loadgen

import "bytes"

// cursor walks one JSON text without allocating and without checking more than it needs: what it skips is only
// balanced, not validated. Whatever it does not expect sets bad, and the caller then asks encoding/json.
type cursor struct {
	b   []byte
	i   int
	bad bool
}

// peek skips white space and shows the next byte; 0 at the end or after a fault.
func (c *cursor) peek() byte {
	for c.i < len(c.b) {
		switch ch := c.b[c.i]; ch {
		case ' ', '\t', '\n', '\r':
			c.i++
		default:
			if c.bad {
				return 0
			}
			return ch
		}
	}
	return 0
}

// eat takes ch if it is next.
func (c *cursor) eat(ch byte) bool {
	if c.peek() != ch {
		return false
	}
	c.i++
	return true
}

func (c *cursor) fail() { c.bad = true }

// end faults unless the text is used up.
func (c *cursor) end() {
	if c.peek() != 0 || c.i < len(c.b) {
		c.fail()
	}
}

// field steps to the next key of an object whose brace was taken; first says that no key was read yet. Without ok
// the object has ended.
func (c *cursor) field(first bool) (key []byte, ok bool) {
	if !c.more('}', first) {
		return nil, false
	}
	key = c.str()
	if !c.eat(':') {
		c.fail()
	}
	return key, !c.bad
}

// more steps to the next member of an object or array that ends with closer.
func (c *cursor) more(closer byte, first bool) bool {
	if c.eat(closer) {
		return false
	}
	if !first && !c.eat(',') || c.bad {
		c.fail()
		return false
	}
	return true
}

// str takes a string and returns what is between its quotes, escapes as they are.
func (c *cursor) str() []byte {
	if !c.eat('"') {
		c.fail()
		return nil
	}
	start := c.i
	for {
		q := bytes.IndexByte(c.b[c.i:], '"')
		if q < 0 {
			c.fail()
			return nil
		}
		c.i += q + 1
		slashes := 0
		for p := c.i - 2; p >= start && c.b[p] == '\\'; p-- {
			slashes++
		}
		if slashes%2 == 0 {
			return c.b[start : c.i-1]
		}
	}
}

// strOrNull takes a string, or null as nil.
func (c *cursor) strOrNull() []byte {
	if c.null() {
		return nil
	}
	return c.str()
}

// null takes a null if it is next.
func (c *cursor) null() bool {
	if c.peek() != 'n' {
		return false
	}
	if !bytes.HasPrefix(c.b[c.i:], []byte("null")) {
		c.fail()
		return false
	}
	c.i += 4
	return true
}

// count takes a whole number of at most 15 digits, or null as -1.
func (c *cursor) count() int {
	if c.null() {
		return -1
	}
	c.peek()
	n, digits := 0, 0
	for c.i < len(c.b) && c.b[c.i]-'0' < 10 {
		n = n*10 + int(c.b[c.i]-'0')
		digits++
		c.i++
	}
	if digits == 0 || digits > 15 || c.i < len(c.b) && bytes.IndexByte([]byte(".eE+-"), c.b[c.i]) >= 0 {
		c.fail()
	}
	return n
}

// skip takes any value and returns its bytes.
func (c *cursor) skip() []byte {
	ch := c.peek()
	start := c.i
	switch ch {
	case '"':
		c.str()
	case '{', '[':
		c.skipNested()
	case 0, ',', ':', '}', ']':
		c.fail()
	default:
		for c.i < len(c.b) && bytes.IndexByte([]byte(",:}] \t\r\n\"{["), c.b[c.i]) < 0 {
			c.i++
		}
	}
	return c.b[start:c.i]
}

func (c *cursor) skipNested() {
	depth := 0
	for c.i < len(c.b) && !c.bad {
		switch c.b[c.i] {
		case '"':
			c.str()
			continue
		case '{', '[':
			depth++
		case '}', ']':
			depth--
		}
		c.i++
		if depth == 0 {
			return
		}
	}
	c.fail()
}
