package tokenizer

import "strings"

// addedTokens finds added tokens in a text: the leftmost, and of those that start there the longest. It is a trie.
type addedTokens struct {
	nodes []addedNode // the first is the root
	first string      // the bytes that a token can start with
}

type addedNode struct {
	next map[byte]int32 // node by byte
	id   int32          // the token that ends here, or -1
}

func (a *addedTokens) add(token string, id int32) {
	if len(a.nodes) == 0 {
		a.nodes = append(a.nodes, addedNode{next: map[byte]int32{}, id: -1})
	}
	if strings.IndexByte(a.first, token[0]) < 0 {
		a.first += token[:1]
	}
	at := int32(0)
	for i := range len(token) {
		next, ok := a.nodes[at].next[token[i]]
		if !ok {
			next = int32(len(a.nodes))
			a.nodes = append(a.nodes, addedNode{next: map[byte]int32{}, id: -1})
			a.nodes[at].next[token[i]] = next
		}
		at = next
	}
	a.nodes[at].id = id
}

// find is where the first added token of s starts and ends, and its id; len(s), len(s) when there is none.
func (a *addedTokens) find(s string) (start, end int, id int32) {
	for a.first != "" {
		at := a.candidate(s[start:])
		if at < 0 {
			break
		}
		start += at
		if n, id := a.match(s[start:]); n > 0 {
			return start, start + n, id
		}
		start++
	}
	return len(s), len(s), -1
}

// candidate is the offset of the first byte of s that can start a token, or -1.
func (a *addedTokens) candidate(s string) int {
	if len(a.first) == 1 {
		return strings.IndexByte(s, a.first[0])
	}
	for i := range len(s) {
		if strings.IndexByte(a.first, s[i]) >= 0 {
			return i
		}
	}
	return -1
}

// match is the length and id of the longest token that s starts with; 0 when there is none.
func (a *addedTokens) match(s string) (n int, id int32) {
	node := &a.nodes[0]
	for i := range len(s) {
		next, ok := node.next[s[i]]
		if !ok {
			break
		}
		node = &a.nodes[next]
		if node.id >= 0 {
			n, id = i+1, node.id
		}
	}
	return n, id
}
