// Package policy holds the rules that the source tree must obey, as data and as functions over parsed Go files. Its
// test applies them to the whole module, so a rule is a failing test and not a wish. It is imported by nothing.
package policy

// Imports is the import table: what each package below internal/ may import from this module. Nothing points up; a
// package that is missing here fails the test.
var Imports = map[string][]string{
	// Vocabulary.
	"arch":        {},
	"kv":          {"arch"},
	"sample":      {},
	"infer":       {"kv", "sample"},
	"device":      {"arch", "kv", "sample"},
	"safetensors": {"arch"},
	"tokenizer":   {},
	"api":         {},
	"stats":       {},
	"record":      {},
	"runlog":      {},
	"cost":        {"arch", "kv"},

	// Deciders: no device, file, socket, goroutine or clock.
	"kv/pool":   {"kv"},
	"kv/prefix": {"kv"},
	"kv/cache":  {"kv", "kv/pool", "kv/prefix"},
	"sched":     {"infer", "kv", "kv/cache", "sample"},

	// Doers.
	"device/cpu":          {"arch", "device", "device/cpu/...", "kv", "sample"},
	"device/cuda":         {"arch", "device", "kv", "sample"},
	"device/cuda/gencode": {"device/cuda"},
	"device/devicetest":   {"arch", "device", "kv", "sample"},
	"kv/xfer":             {"device", "kv"},
	"model":               {"arch", "device", "kv", "safetensors"},
	"model/modeltest":     {"arch", "device", "safetensors"},

	// The joiner.
	"engine": {"arch", "device", "infer", "kv", "kv/cache", "kv/xfer", "model", "sample", "sched"},

	// Edges.
	"infer/echo":         {"infer", "kv", "sample"},
	"server":             {"api", "infer", "kv", "sample", "tokenizer"},
	"workload":           {"stats"},
	"loadgen":            {"api", "stats", "workload"},
	"loadgen/mockserver": {},
	"loadgen/scrape":     {},
	"loadgen/serving":    {"loadgen", "loadgen/scrape", "runlog", "stats", "workload"},
	"kvbench":            {"device", "kv", "kv/xfer", "stats"},
	"study":              {"arch", "cost", "device", "infer", "kv", "loadgen", "record", "stats", "workload"},
	"study/remote":       {"loadgen", "loadgen/scrape", "record", "stats", "study", "workload"},
	"report":             {"record", "runlog", "stats"},
	"policy":             {},
}

// Deciders are the packages that must stay pure: no clock, no goroutine, no file, no socket.
var Deciders = []string{"kv/pool", "kv/prefix", "kv/cache", "sched", "cost", "sample"}

// Budgets that code must keep. Generated files are exempt.
const (
	MaxFileLines      = 600
	MaxFuncLines      = 80
	MaxInterfaceWidth = 8
)

// BadNames are package names that name no noun.
var BadNames = []string{"util", "utils", "common", "base", "helper", "helpers", "misc", "manager"}
