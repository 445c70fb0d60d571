package server

import "bytes"

// reasoning parts a growing answer into what stands between <think> and </think> and what follows. Only a <think> at
// the very start counts, spaces aside; white space around the marks belongs to neither part.
type reasoning struct {
	state   splitState
	started bool   // a visible part of the thought was seen
	held    []byte // could still be part of a mark, or white space that may be dropped
}

type splitState uint8

const (
	beforeThink splitState = iota
	inThink
	afterThink // between </think> and the first visible character
	inContent
)

const (
	thinkOpen  = "<think>"
	thinkClose = "</think>"
)

// push takes new text and returns what of it is certain, by part. end says that nothing follows.
func (p *reasoning) push(text []byte, end bool) (thought, content []byte) {
	p.held = append(p.held, text...)
	if p.state == beforeThink && !p.start(end) {
		return nil, nil
	}
	if p.state == inThink {
		thought = p.think(end)
	}
	if p.state == afterThink {
		p.held = bytes.TrimLeft(p.held, " \r\n\t")
		if len(p.held) > 0 {
			p.state = inContent
		}
	}
	if p.state == inContent {
		content, p.held = p.held, nil
	}
	return thought, content
}

// start decides whether the answer begins with <think>; false means that it cannot be told yet.
func (p *reasoning) start(end bool) bool {
	rest := bytes.TrimLeft(p.held, " \r\n\t")
	switch {
	case bytes.HasPrefix(rest, []byte(thinkOpen)):
		p.state = inThink
		p.held = rest[len(thinkOpen):]
	case !end && bytes.HasPrefix([]byte(thinkOpen), rest):
		return false
	default:
		p.state = inContent
	}
	return true
}

// think returns the certain part of the thought, and ends it at </think>.
func (p *reasoning) think(end bool) []byte {
	if !p.started {
		p.held = bytes.TrimLeft(p.held, "\r\n")
		p.started = len(p.held) > 0
	}
	if i := bytes.Index(p.held, []byte(thinkClose)); i >= 0 {
		thought := bytes.TrimRight(p.held[:i], " \r\n\t")
		p.held = p.held[i+len(thinkClose):]
		p.state = afterThink
		return thought
	}
	certain := len(p.held)
	if !end {
		certain = len(bytes.TrimRight(p.held[:len(p.held)-overlap(p.held, thinkClose)], " \r\n\t"))
	}
	thought := p.held[:certain]
	p.held = append([]byte(nil), p.held[certain:]...)
	return thought
}

// overlap is the length of the longest end of b that mark starts with.
func overlap(b []byte, mark string) int {
	for n := min(len(mark)-1, len(b)); n > 0; n-- {
		if string(b[len(b)-n:]) == mark[:n] {
			return n
		}
	}
	return 0
}
