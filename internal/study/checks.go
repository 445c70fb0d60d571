package study

import (
	"fmt"
	"slices"
	"strings"

	"larder/internal/record"
)

// Names of the checks, in the order of the report.
const (
	checkSucceeded  = "every request succeeded"
	checkPlaced     = "prefixes placed where the arm says, read back"
	checkProven     = "cached tokens came from the arm's tier, request by request"
	checkSums       = "cached + computed = prompt"
	checkPrompts    = "prompts as long as asked, by the server's count"
	checkOutputs    = "answers as long as asked"
	checkTokens     = "same tokens in all arms"
	checkBytes      = "bytes loaded = cached host tokens x bytes per token"
	checkStored     = "new KV of the host arm is in host memory too"
	checkITL        = "mean ITL x tokens/s = 1"
	checkLimits     = "no row beats its limit"
	checkKV         = "bytes = bandwidth x time in the KV benchmark"
	checkEmpty      = "nothing left behind after the last flush"
	checkInvariants = "the engine's invariants hold"
)

var checkOrder = []string{checkSucceeded, checkPlaced, checkProven, checkSums, checkPrompts, checkOutputs, checkTokens,
	checkBytes, checkStored, checkITL, checkLimits, checkKV, checkEmpty, checkInvariants}

// mustRun are the checks without which a complete study proves nothing: none of them may have looked at nothing.
var mustRun = []string{checkSucceeded, checkPlaced, checkProven, checkSums, checkPrompts, checkOutputs, checkEmpty}

// checks gathers what was looked at and what did not hold.
type checks struct {
	looked map[string]int
	wrong  map[string][]string
}

func newChecks() *checks { return &checks{looked: map[string]int{}, wrong: map[string][]string{}} }

// note says that a check looked at n things, and what was wrong with some of them.
func (c *checks) note(name string, n int, wrong []string) {
	c.looked[name] += n
	c.wrong[name] = append(c.wrong[name], wrong...)
}

// expect is note for one thing.
func (c *checks) expect(name string, ok bool, format string, args ...any) {
	if ok {
		c.note(name, 1, nil)
		return
	}
	c.note(name, 1, []string{fmt.Sprintf(format, args...)})
}

// shownFaults bounds how many faults a check spells out.
const shownFaults = 5

func (c *checks) list(complete bool) []record.Check {
	var out []record.Check
	for _, name := range checkOrder {
		n, wrong := c.looked[name], c.wrong[name]
		if n == 0 {
			if complete && slices.Contains(mustRun, name) {
				out = append(out, record.Check{Name: name, Detail: "nothing was looked at"})
			}
			continue
		}
		k := record.Check{Name: name, OK: len(wrong) == 0, Detail: fmt.Sprintf("%d of %d hold", n-len(wrong), n)}
		if !k.OK {
			k.Detail += ": " + strings.Join(wrong[:min(len(wrong), shownFaults)], "; ")
			if more := len(wrong) - shownFaults; more > 0 {
				k.Detail += fmt.Sprintf("; and %d more", more)
			}
		}
		out = append(out, k)
	}
	return out
}
