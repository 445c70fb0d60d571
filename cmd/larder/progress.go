package main

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/vbauerster/mpb/v8"
	"github.com/vbauerster/mpb/v8/decor"
)

// progress shows how far one job is: a bar on a terminal, a plain line every few seconds elsewhere. Safe for
// concurrent use.
type progress struct {
	mu    sync.Mutex
	w     io.Writer
	name  string
	text  string
	shown time.Time
	pool  *mpb.Progress // nil: plain lines
	bar   *mpb.Bar
}

const (
	barSteps   = 1000
	plainEvery = 5 * time.Second
)

func newProgress(w io.Writer, name string) *progress {
	p := &progress{w: w, name: name, shown: time.Now()}
	if !isTerminal(w) {
		return p
	}
	p.pool = mpb.New(mpb.WithOutput(w), mpb.WithWidth(40))
	p.bar = p.pool.AddBar(barSteps,
		mpb.PrependDecorators(decor.Name(name+" ")),
		mpb.AppendDecorators(decor.Percentage(), decor.Any(func(decor.Statistics) string {
			p.mu.Lock()
			defer p.mu.Unlock()
			return "  " + p.text
		})),
		mpb.BarRemoveOnComplete(),
	)
	return p
}

// update says how much is done, from 0 to 1, and a few words about it.
func (p *progress) update(fraction float64, text string) {
	p.mu.Lock()
	p.text = text
	plain := p.bar == nil && time.Since(p.shown) >= plainEvery
	if plain {
		p.shown = time.Now()
	}
	p.mu.Unlock()
	switch {
	case p.bar != nil:
		p.bar.SetCurrent(int64(min(fraction, 0.999) * barSteps))
	case plain:
		fmt.Fprintf(p.w, "%s: %3.0f %%  %s\n", p.name, 100*fraction, strings.TrimSpace(text))
	}
}

// done takes the bar away.
func (p *progress) done() {
	if p.bar != nil {
		p.bar.SetCurrent(barSteps)
		p.pool.Wait()
	}
}

// isTerminal says whether w is a terminal, or another character device, where a bar does no harm.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}
