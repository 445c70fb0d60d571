package prefix

import "larder/internal/kv"

// standing is what the index counts of one entry. It follows from the entry's places and pins and from its kin, and
// settle keeps it true.
type standing struct {
	in    [kv.NumTiers]bool // the tier has it, or a move brings it
	idle  [kv.NumTiers]bool // the tier has it and nobody uses it
	stays [kv.NumTiers]bool // the tier has it and cannot give it up now
	busy  bool              // it or something that continues it is used in some tier
}

// kin counts the kids of an entry by their standing.
type kin struct {
	in, stays [kv.NumTiers]int32
	busy      int32
}

// stand works out e's standing. A block stays in a tier when it is used, when a block that continues it stays there,
// when it is not saved yet, and when it is the last copy and something that continues it is used in another tier.
func (ix *Index) stand(e *Entry) standing {
	s := standing{busy: e.kin.busy > 0}
	copies := 0
	for t := range kv.NumTiers {
		s.in[t] = e.At[t].State != Absent
		s.idle[t] = e.At[t].State == Here && e.pins[t] == 0
		s.busy = s.busy || s.in[t] && !s.idle[t]
		recount(&copies, false, s.in[t])
	}
	for t := range kv.NumTiers {
		s.stays[t] = s.in[t] && (!s.idle[t] || e.kin.stays[t] > 0 || copies == 1 && s.busy)
	}
	if ix.saveFirst && s.in[kv.Device] && e.At[kv.Host].State != Here && !e.unsaved {
		s.stays[kv.Device] = true
	}
	return s
}

// settle makes the counts true after a change of e: its own, the tiers', and those of its ancestors as far up as the
// change is felt.
func (ix *Index) settle(e *Entry) {
	for ; e != nil; e = e.Parent {
		was, is := e.now, ix.stand(e)
		e.now = is
		for i := range ix.queues {
			ix.queues[i].want(e, ix.queued(e, i))
		}
		if was == is {
			return
		}
		for t := range kv.NumTiers {
			recount(&ix.spare[t], was.spare(t), is.spare(t))
		}
		if p := e.Parent; p != nil {
			for t := range kv.NumTiers {
				recount(&p.kin.in[t], was.in[t], is.in[t])
				recount(&p.kin.stays[t], was.stays[t], is.stays[t])
			}
			recount(&p.kin.busy, was.busy, is.busy)
		}
	}
}

// spare says whether tier t could give the entry up now, after those that continue it.
func (s *standing) spare(t kv.Tier) bool { return s.in[t] && !s.stays[t] }

func recount[N int | int32](n *N, was, is bool) {
	if is && !was {
		*n++
	} else if was && !is {
		*n--
	}
}

// queued says whether e belongs into queue i: it can go, and nothing in the tier continues it; or it could go if it were
// saved, and what continues it can go.
func (ix *Index) queued(e *Entry, i int) bool {
	if i == toSave {
		return ix.saveFirst && e.now.idle[kv.Device] && e.At[kv.Host].State == Absent && !e.unsaved && e.kin.stays[kv.Device] == 0
	}
	t := kv.Tier(i)
	return e.now.spare(t) && e.kin.in[t] == 0
}

// Victim is the entry that tier t gives up next; nil when it can give up none.
func (ix *Index) Victim(t kv.Tier) *Entry { return ix.queues[t].first() }

// Unsaved is the entry that must be saved next before the device can give it up; nil when there is none.
func (ix *Index) Unsaved() *Entry { return ix.queues[toSave].first() }

// Spare counts the blocks that tier t could give up now, one Victim after another, without waiting for anything.
func (ix *Index) Spare(t kv.Tier) int { return ix.spare[t] }
