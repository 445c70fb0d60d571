package kvbench

import (
	"bufio"
	"fmt"
	"io"
)

// Row is one measurement of several, and its name.
type Row struct {
	Name   string  `json:"name"`
	Result *Result `json:"result"`
}

// Published is one row of the host arm of the document whose metrics these are. It moved a different amount per request
// in each row: bandwidth x makespan gives 216, 864, 864 and 432 MiB each way, as 4, 1, 1 and 2 shards of 9,216 tokens over 48
// layers would be. Its link, its layout and its requests in flight are not stated.
type Published struct {
	Requests   int
	Shards     int     // that make its bytes of 864 MiB
	MakespanMS float64 // batch_makespan
	DuplexGiBs float64 // batch_duplex_bw
}

// SeedTokens and SeedLayers are what a request of the document moves.
const (
	SeedTokens = 9216
	SeedLayers = 48
)

// PublishedRows are the document's.
func PublishedRows() []Published {
	return []Published{{64, 4, 233.1, 115.83}, {32, 1, 215.4, 250.72}, {16, 1, 109.5, 246.56}, {8, 2, 81.7, 82.65}}
}

// SameName and OwnName name the rows of the preset: the same bytes in each, and the document's.
func (p *Published) SameName() string {
	return fmt.Sprintf("%d requests, 864 MiB each way", p.Requests)
}

// OwnName: see SameName. Where the bytes are the same, so is the row.
func (p *Published) OwnName() string {
	return fmt.Sprintf("%d requests, %d MiB each way", p.Requests, 864/p.Shards)
}

// SeedText writes the document's rows beside ours: those with the same bytes in each, and those with its bytes.
func SeedText(w io.Writer, rows []Row) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "\n%-9s %28s   %28s   %28s\n", "requests", "864 MiB each way, here", "the document's bytes, here", "the document (link unknown)")
	find := func(name string) string {
		for _, r := range rows {
			if r.Name == name && r.Result != nil && len(r.Result.Phases) == 3 {
				return duplexText(&r.Result.Phases[2])
			}
		}
		return "not measured"
	}
	for _, p := range PublishedRows() {
		doc := fmt.Sprintf("%d MiB %.1f ms %.1f GiB/s", 864/p.Shards, p.MakespanMS, p.DuplexGiBs)
		fmt.Fprintf(out, "%-9d %28s   %28s   %28s\n", p.Requests, find(p.SameName()), find(p.OwnName()), doc)
	}
	return out.Flush()
}

func duplexText(p *Phase) string {
	span, _ := p.Find(makespanName)
	rate, _ := p.Find(batchRateName(Duplex))
	a, okA := span.Mean().Get()
	b, okB := rate.Mean().Get()
	if !okA || !okB {
		return "not measured"
	}
	return fmt.Sprintf("%.1f ms %.1f GiB/s", a, b)
}
