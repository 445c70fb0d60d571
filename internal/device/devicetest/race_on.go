//go:build race

package devicetest

// watched says that the race detector looks on, which makes sums many times slower and finds nothing in them.
const watched = true
