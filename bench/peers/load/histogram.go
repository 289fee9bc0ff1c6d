package main

import (
	"math/bits"
	"time"
)

const subBits = 7 // 128 steps for each power of two: a quantile is off by less than 0.8 %

// Histogram counts durations in steps that grow with them; the greatest is kept as it is.
type Histogram struct {
	counts [(64 - subBits + 1) << subBits]uint64
	total  uint64
	most   time.Duration
}

// slot returns the step of a number of nanoseconds: exact below 2^subBits, then 2^subBits steps for each power of two.
func slot(ns uint64) int {
	over := bits.Len64(ns) - subBits - 1
	if over <= 0 {
		return int(ns)
	}
	return over<<subBits + int(ns>>over)
}

// floor returns the smallest number of nanoseconds of a step.
func floor(at int) uint64 {
	over := at>>subBits - 1
	if over <= 0 {
		return uint64(at)
	}
	return uint64(at-over<<subBits) << over
}

// Note counts one duration.
func (h *Histogram) Note(d time.Duration) {
	h.counts[slot(uint64(max(d, 0)))]++
	h.total++
	h.most = max(h.most, d)
}

// Add counts all that the other one has counted.
func (h *Histogram) Add(other *Histogram) {
	for at, count := range other.counts {
		h.counts[at] += count
	}
	h.total += other.total
	h.most = max(h.most, other.most)
}

// Quantile returns the step of the q-th share in milliseconds, its greatest number; 0 if nothing was counted.
func (h *Histogram) Quantile(q float64) float64 {
	rank, seen := uint64(q*float64(h.total)), uint64(0)
	for at, count := range h.counts {
		if seen += count; seen > rank {
			return min(float64(floor(at+1)-1), float64(h.most)) / 1e6
		}
	}
	return float64(h.most) / 1e6
}
