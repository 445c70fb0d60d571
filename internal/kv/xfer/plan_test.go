package xfer

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"larder/internal/kv"
)

// describe is a plan as text: one word a piece, with how many blocks it has.
func describe(pieces []piece) string {
	s := ""
	for _, p := range pieces {
		s += fmt.Sprintf("%v>%v:%d>%d*%d ", p.from, p.to, p.src, p.dst, len(p.moves))
	}
	return s
}

func TestPlan(t *testing.T) {
	load := func(pairs ...kv.BlockID) (moves []kv.Move) {
		for i := 0; i < len(pairs); i += 2 {
			moves = append(moves, kv.Move{ID: kv.MoveID(i), From: kv.Host, To: kv.Device, Src: pairs[i], Dst: pairs[i+1]})
		}
		return moves
	}
	store := func(pairs ...kv.BlockID) []kv.Move {
		moves := load(pairs...)
		for i := range moves {
			moves[i].From, moves[i].To = kv.Device, kv.Host
		}
		return moves
	}
	for name, c := range map[string]struct {
		moves []kv.Move
		max   int
		want  string
	}{
		"nothing":                {nil, 8, ""},
		"a run":                  {load(3, 10, 4, 11, 5, 12), 8, "host>device:3>10*3 "},
		"a run backwards":        {load(5, 12, 4, 11, 3, 10), 8, "host>device:3>10*3 "},
		"a run cut":              {load(3, 10, 4, 11, 5, 12), 2, "host>device:3>10*2 host>device:5>12*1 "},
		"neighbours on one side": {load(3, 10, 4, 20, 5, 30), 8, "host>device:3>10*1 host>device:4>20*1 host>device:5>30*1 "},
		"crossing":               {load(3, 11, 4, 10), 8, "host>device:3>11*1 host>device:4>10*1 "},
		"both ways":              {append(load(3, 10, 4, 11), store(4, 11, 5, 12)...), 8, "host>device:3>10*2 device>host:4>11*2 "},
		"first ordered first":    {load(9, 9, 1, 1, 10, 10, 2, 2), 8, "host>device:9>9*2 host>device:1>1*2 "},
		"one source twice":       {load(1, 1, 1, 5, 2, 2, 2, 6), 8, "host>device:1>1*2 host>device:1>5*2 "},
	} {
		if got := describe(plan(c.moves, c.max)); got != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

// TestPlanAgainstModel: a plan holds every move once, in pieces of neighbours, and no two pieces could be one.
func TestPlanAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		blocks := rapid.Permutation([]kv.BlockID{0, 1, 2, 3, 4, 5, 6, 7, 8, 9})
		src, dst := blocks.Draw(t, "src"), blocks.Draw(t, "dst")
		if rapid.Bool().Draw(t, "aligned") {
			for i := range dst {
				dst[i] = src[i] + 3
			}
		}
		most := rapid.IntRange(1, 6).Draw(t, "most")
		var moves []kv.Move
		for i := range rapid.IntRange(0, 10).Draw(t, "n") {
			to := kv.Tier(rapid.IntRange(0, 1).Draw(t, "to"))
			moves = append(moves, kv.Move{ID: kv.MoveID(i), From: 1 - to, To: to, Src: src[i], Dst: dst[i]})
		}
		pieces := plan(moves, most)
		var all []kv.Move
		for i, p := range pieces {
			if len(p.moves) == 0 || len(p.moves) > most {
				t.Fatalf("piece %d has %d moves", i, len(p.moves))
			}
			first := len(moves)
			for j, m := range p.moves {
				if m.From != p.from || m.To != p.to || m.Src != p.src+kv.BlockID(j) || m.Dst != p.dst+kv.BlockID(j) {
					t.Fatalf("move %+v is not number %d of %s", m, j, describe([]piece{p}))
				}
				first = min(first, int(m.ID))
			}
			if first != p.first || i > 0 && pieces[i-1].first > first {
				t.Fatalf("piece %d, with move %d, is not where that was ordered: %s", i, first, describe(pieces))
			}
			all = append(all, p.moves...)
			for _, q := range pieces {
				end := kv.BlockID(len(p.moves))
				if q.to == p.to && q.src == p.src+end && q.dst == p.dst+end && len(p.moves) < most {
					t.Fatalf("two pieces could be one: %s", describe(pieces))
				}
			}
		}
		slices.SortFunc(all, func(a, b kv.Move) int { return int(a.ID) - int(b.ID) })
		if !slices.Equal(all, moves) {
			t.Fatalf("moves %v became %v", moves, all)
		}
	})
}

// BenchmarkPlan plans 9,216 moves, as 64 requests of 144 blocks have.
func BenchmarkPlan(b *testing.B) {
	for _, run := range []int{144, 1} {
		moves := make([]kv.Move, 9216)
		for i := range moves {
			gap := kv.BlockID(i / run * 2)
			moves[i] = kv.Move{ID: kv.MoveID(i), From: kv.Host, To: kv.Device, Src: kv.BlockID(i), Dst: kv.BlockID(i) + gap}
		}
		b.Run(fmt.Sprintf("run=%d", run), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				plan(moves, 1000)
			}
		})
	}
}
