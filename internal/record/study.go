// Package record is the file format of a study, larder.study/1: plain data, an encoder, and a decoder that refuses
// what it does not know. It measures nothing and draws nothing; package study fills it, package report renders it.
// docs/format/study.md documents every field.
//
// Start at Study; Number says how an absent number is written.
package record

import "time"

// Schema is the name and version that a file of this package starts with.
const Schema = "larder.study/1"

// The arms of a study: where the KV of the shared prefix comes from.
const (
	Recompute = "recompute" // nowhere: every token goes through the model
	HostArm   = "host"      // host memory: loaded into the device
	HBMArm    = "hbm"       // already resident in device memory
)

// Study is a whole study.
type Study struct {
	Schema   string    `json:"schema"`
	Tool     string    `json:"tool"` // program and version
	Started  time.Time `json:"started"`
	WallS    float64   `json:"wall_s"`
	Complete bool      `json:"complete"`
	Stopped  string    `json:"stopped,omitempty"` // why it is not complete

	Host     Host      `json:"host"`
	Model    Model     `json:"model"`
	Workload Workload  `json:"workload"`
	Ceilings []Ceiling `json:"ceilings"`

	Rows        []Row        `json:"rows"`
	Decode      []Row        `json:"decode"`
	HeldOut     []Row        `json:"held_out"`
	KV          []KVRow      `json:"kv"`
	KVReason    string       `json:"kv_reason,omitempty"` // why KV is empty
	Comparisons []Comparison `json:"comparisons"`
	BreakEven   BreakEven    `json:"break_even"`
	Published   Published    `json:"published"`
	Checks      []Check      `json:"checks"`
	Notes       []string     `json:"notes"`
	LeftOut     []LeftOut    `json:"left_out,omitempty"` // arms that could not be proven, on a server that is not ours
}

// Host is the machine.
type Host struct {
	OS          string `json:"os"`
	Arch        string `json:"arch"`
	CPU         string `json:"cpu"`
	Cores       int    `json:"cores"`
	MemoryBytes int64  `json:"memory_bytes"`
	Device      string `json:"device"`      // "cpu" or "cuda"
	DeviceName  string `json:"device_name"` // the processor's own name
	Units       int    `json:"units"`       // worker threads, or SMs
	Kernels     string `json:"kernels"`     // kernel family
	TierNote    string `json:"tier_note,omitempty"`
	GoVersion   string `json:"go_version"`
}

// Model is what was served.
type Model struct {
	Name        string `json:"name"`
	Layers      int    `json:"layers"`
	LayersFull  int    `json:"layers_full"` // as published, before any cut
	Weights     string `json:"weights"`     // "dummy" or where they came from
	DType       string `json:"dtype"`
	WeightBytes int64  `json:"weight_bytes"`
	BlockTokens int    `json:"block_tokens"`
	TokenBytes  int64  `json:"kv_bytes_per_token"` // over all layers served
}

// Workload is what was asked of the server.
type Workload struct {
	Preset      string      `json:"preset"`
	InputLen    int         `json:"input_len"`
	SharedLen   int         `json:"shared_len"` // tokens of the prefix: whole blocks
	HitRate     float64     `json:"hit_rate"`   // shared_len / input_len
	OutputLen   int         `json:"output_len"`
	BatchSizes  []int       `json:"batch_sizes"`
	Repeats     int         `json:"repeats"`
	Arms        []string    `json:"arms"`
	Interleave  string      `json:"interleave"` // the arms take turns each "repeat", or at each "batch" size of a repeat
	Order       [][]string  `json:"order"`      // the arms of each turn, in the order in which they ran
	Prefixes    string      `json:"prefixes"`
	Seed        uint64      `json:"seed"`
	Salt        uint32      `json:"salt"` // with the seed, all of the prompts
	WritePolicy string      `json:"write_policy"`
	Decode      []DecodeRun `json:"decode"`
	Transport   string      `json:"transport"` // how the requests travelled
}

// DecodeRun asks for one run of longer answers with the prefix in the device tier.
type DecodeRun struct {
	Requests    int `json:"requests"`
	Concurrency int `json:"concurrency"` // 0: all at once
	OutputLen   int `json:"output_len"`
}

// Ceiling is a limit of the machine, measured in the same run.
type Ceiling struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	How   string  `json:"how,omitempty"`
}

// Tokens counts prompt tokens served from the cache, by tier.
type Tokens struct {
	Device int `json:"device"`
	Host   int `json:"host"`
}

// Row is one burst of requests in one arm.
type Row struct {
	Arm         string `json:"arm"`
	Batch       int    `json:"batch"`
	Repeat      int    `json:"repeat"`
	Position    int    `json:"position"`    // which place the arm had in its turn, from 0
	Concurrency int    `json:"concurrency"` // most requests in flight; 0: all at once
	SharedLen   int    `json:"shared_len"`

	Requests     int    `json:"requests"`
	Failed       int    `json:"failed"`
	Unproven     int    `json:"unproven"` // requests whose cached tokens were not where they had to be
	InputTokens  int    `json:"input_tokens"`
	OutputTokens int    `json:"output_tokens"`
	Computed     int    `json:"computed_tokens"` // prompt tokens that went through the model, as the engine counts
	Cached       Tokens `json:"cached_tokens"`   // as the server reports over HTTP
	Expected     Tokens `json:"expected_cached_tokens"`

	DurationS    float64 `json:"duration_s"`
	InputPerS    Number  `json:"input_tok_per_s"`
	OutputPerS   Number  `json:"output_tok_per_s"`
	InFlightMean Number  `json:"mean_in_flight"` // sum of E2E / duration
	TTFT         Summary `json:"ttft_ms"`
	E2E          Summary `json:"e2e_ms"`
	TPOT         Summary `json:"tpot_ms"`
	ITL          Summary `json:"itl_ms"`
	SendLag      Summary `json:"send_lag_ms"` // sent later than due: the client's own delay

	Split       Split  `json:"time_split_ms"`
	LoadedBytes Number `json:"loaded_bytes"` // host to device during the burst, by the engine's counters
	StoredBytes Number `json:"stored_bytes"`

	LimitS  Number `json:"limit_s"`
	LimitBy string `json:"limit_by,omitempty"` // the ceiling that sets the limit
	Share   Number `json:"share_of_limit"`     // limit_s / duration_s

	Detail []Request         `json:"request_rows"`
	Why    map[string]string `json:"why,omitempty"`
}

// Split is where the mean time to first token went; the four parts sum to it.
type Split struct {
	Queue   Number `json:"queue"`   // waiting for admission, or loaded and waiting for a step
	Load    Number `json:"load"`    // waiting for its KV from a slower tier
	Compute Number `json:"compute"` // from the first step that held one of its rows to its first token
	Outside Number `json:"outside"` // client, HTTP and JSON: the rest
	Reason  string `json:"reason,omitempty"`
}

// Request is one request of a row. Times are milliseconds from the burst's start.
type Request struct {
	Index    int    `json:"i"`
	SentMS   Number `json:"sent"`
	Admitted Number `json:"admitted"`
	Loaded   Number `json:"loaded"`
	Started  Number `json:"computing"`
	FirstMS  Number `json:"first"`
	DoneMS   Number `json:"done"`
	Cached   Tokens `json:"cached"`
	Output   int    `json:"output_tokens"`
	Error    string `json:"error,omitempty"`
	Reason   string `json:"reason,omitempty"`
}

// Summary is a sample in a few numbers, in the unit that the field's name ends with.
type Summary struct {
	N      int    `json:"n"`
	Mean   Number `json:"mean"`
	Min    Number `json:"min"`
	P50    Number `json:"p50"`
	P90    Number `json:"p90"`
	P99    Number `json:"p99"`
	Max    Number `json:"max"`
	Reason string `json:"reason,omitempty"`
}

// KVRow is one run of the KV load and store benchmark.
type KVRow struct {
	Name           string  `json:"name"`
	Requests       int     `json:"requests"`
	InFlight       int     `json:"in_flight"`
	BytesPerWay    int64   `json:"bytes_per_way"` // per request and direction
	Pieces         int     `json:"pieces"`
	SubmitMS       Number  `json:"submit_ms"`
	LoadSpanMS     Summary `json:"load_span_ms"`
	StoreSpanMS    Summary `json:"store_span_ms"`
	E2EMS          Summary `json:"e2e_ms"`
	LoadActiveMS   Summary `json:"load_active_sum_ms"`
	StoreActiveMS  Summary `json:"store_active_sum_ms"`
	LoadGiBs       Summary `json:"load_bw_gib_s"`
	StoreGiBs      Summary `json:"store_bw_gib_s"`
	DuplexGiBs     Summary `json:"duplex_bw_gib_s"`
	MakespanMS     Summary `json:"batch_makespan_ms"`
	BatchGiBs      Summary `json:"batch_duplex_bw_gib_s"`
	LoadAloneGiBs  Number  `json:"load_alone_gib_s"`
	StoreAloneGiBs Number  `json:"store_alone_gib_s"`
	Share          Number  `json:"share_of_ceiling"`

	Why map[string]string `json:"why,omitempty"`
}

// Comparison is a paired comparison of two arms at one batch size, over the repeats.
type Comparison struct {
	Batch    int      `json:"batch"`
	A        string   `json:"a"`
	B        string   `json:"b"`
	Metric   string   `json:"metric"` // duration_s or ttft_mean_ms
	Speedup  Interval `json:"speedup"`
	DiffMS   Interval `json:"difference_ms"` // b - a: what a saves
	Verdict  string   `json:"verdict"`       // one of the Verdict… values
	Sentence string   `json:"sentence"`
}

// What a comparison may conclude. Only an interval that excludes "equal" makes a winner.
const (
	VerdictA    = "a is faster"
	VerdictB    = "b is faster"
	VerdictOpen = "not distinguishable"
	VerdictNone = "not enough repeats"
)

// Interval is a mean with its two-sided interval at Level.
type Interval struct {
	Mean  Number  `json:"mean"`
	Lo    Number  `json:"lo"`
	Hi    Number  `json:"hi"`
	N     int     `json:"n"`
	Level float64 `json:"level"`

	Reason string `json:"reason,omitempty"`
}

// Check is something that must hold for the numbers to be believed.
type Check struct {
	Name   string `json:"name"`
	OK     bool   `json:"ok"`
	Detail string `json:"detail"`
}

// LeftOut is an arm, or an arm at a batch size, that is in no number of the study because it could not be brought about
// or proven.
type LeftOut struct {
	Arm    string `json:"arm"`
	Batch  int    `json:"batch"`  // 0: at every size
	Bursts int    `json:"bursts"` // measured and thrown away; 0: it was not tried
	Reason string `json:"reason"`
}

// RemoteDevice is Host.Device of a study against a server whose machine is not known.
const RemoteDevice = "remote"

// Published are the rows of the document that the project reproduces.
type Published struct {
	Note string         `json:"note"`
	Rows []PublishedRow `json:"rows"`
}

// PublishedRow is one row of the document. The host arm there is a bare transfer: it has a duration and no tokens.
type PublishedRow struct {
	Arm        string `json:"arm"`
	Batch      int    `json:"batch"`
	OutputLen  int    `json:"output_len"`
	DurationS  Number `json:"duration_s"`
	InputPerS  Number `json:"input_tok_per_s"`
	OutputPerS Number `json:"output_tok_per_s"`
	TTFTMean   Number `json:"ttft_mean_ms"`
	TTFTP99    Number `json:"ttft_p99_ms"`
	TPOTMean   Number `json:"tpot_mean_ms"`
	InFlight   Number `json:"mean_in_flight"`

	Reason string `json:"reason,omitempty"`
}
