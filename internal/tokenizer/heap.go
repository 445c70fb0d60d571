package tokenizer

// longNode is a token in the linked list of a long word. Nodes are named by the offset where their token starts.
type longNode struct {
	id         int32
	rank       uint32 // of this token and the next one; noRank when they do not merge or there is none
	prev, next int32  // -1 at the ends
}

// candidate packs a rank and an offset so that the least is the pair to merge first.
type candidate uint64

func pairAt(rank uint32, at int32) candidate { return candidate(rank)<<32 | candidate(at) }

func (c candidate) rank() uint32 { return uint32(c >> 32) }
func (c candidate) at() int32    { return int32(uint32(c)) }

// mergeLong merges a word in n log n: a linked list of tokens and a heap of pairs, in which outdated pairs are left and
// skipped when they come up.
func (e *encoder) mergeLong(dst []int32, w string) []int32 {
	list := e.longList(w)
	heap := e.heap[:0]
	for i := range list {
		if list[i].rank != noRank {
			heap = append(heap, pairAt(list[i].rank, int32(i)))
		}
	}
	for i := len(heap)/2 - 1; i >= 0; i-- {
		siftDown(heap, i)
	}
	for len(heap) > 0 {
		c := heap[0]
		left := &list[c.at()]
		if left.rank != c.rank() {
			heap = popLeast(heap)
			continue
		}
		e.mergeNext(list, c.at())
		if left.rank != noRank { // the merged token's own pair takes the place of the one that is done
			heap[0] = pairAt(left.rank, c.at())
			siftDown(heap, 0)
		} else {
			heap = popLeast(heap)
		}
		if p := left.prev; p >= 0 && list[p].rank != noRank {
			heap = push(heap, pairAt(list[p].rank, p))
		}
	}
	for i := int32(0); i >= 0; i = list[i].next {
		dst = append(dst, list[i].id)
	}
	e.heap, e.list = heap[:0], list[:0]
	return dst
}

func (e *encoder) longList(w string) []longNode {
	list := e.list[:0]
	for i := range len(w) {
		list = append(list, longNode{id: e.merges.bytes[w[i]], rank: noRank, prev: int32(i - 1), next: int32(i + 1)})
	}
	last := len(list) - 1
	for i := range last {
		list[i].rank = e.merges.rank(list[i].id, list[i+1].id)
	}
	list[last].next = -1
	return list
}

// mergeNext joins the token at to the one after it and renews the ranks on both sides.
func (e *encoder) mergeNext(list []longNode, at int32) {
	left := &list[at]
	gone := &list[left.next]
	left.id, left.next = e.merges.merged[left.rank], gone.next
	gone.rank = noRank // pairs of it that are still in the heap are outdated
	left.rank = noRank
	if left.next >= 0 {
		list[left.next].prev = at
		left.rank = e.merges.rank(left.id, list[left.next].id)
	}
	if left.prev >= 0 {
		p := &list[left.prev]
		p.rank = e.merges.rank(p.id, left.id)
	}
}

func popLeast(h []candidate) []candidate {
	last := len(h) - 1
	h[0] = h[last]
	h = h[:last]
	siftDown(h, 0)
	return h
}

func push(h []candidate, c candidate) []candidate {
	h = append(h, c)
	i := len(h) - 1
	for i > 0 {
		parent := (i - 1) / 2
		if h[parent] <= c {
			break
		}
		h[i] = h[parent]
		i = parent
	}
	h[i] = c
	return h
}

func siftDown(h []candidate, i int) {
	if i >= len(h) {
		return
	}
	c := h[i]
	for {
		child := 2*i + 1
		if child >= len(h) {
			break
		}
		if child+1 < len(h) && h[child+1] < h[child] {
			child++
		}
		if h[child] >= c {
			break
		}
		h[i] = h[child]
		i = child
	}
	h[i] = c
}
