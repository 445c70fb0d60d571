//go:build !race

package devicetest

const watched = false
