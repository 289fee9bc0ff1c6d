package main

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

func TestEveryDurationFallsIntoTheStepThatHoldsIt(t *testing.T) {
	for range 100_000 {
		ns := rand.Uint64() >> (1 + rand.IntN(62))
		at := slot(ns)
		if floor(at) > ns || ns >= floor(at+1) {
			t.Fatalf("%d is in step %d of %d..%d", ns, at, floor(at), floor(at+1))
		}
	}
}

func TestQuantilesAreWithinOnePercentOfTheSortedSamples(t *testing.T) {
	var h, other Histogram
	var all []time.Duration
	for number := range 50_000 {
		d := time.Duration(rand.ExpFloat64() * 5e6)
		all = append(all, d)
		if number%2 == 0 {
			h.Note(d)
		} else {
			other.Note(d)
		}
	}
	h.Add(&other)
	slices.Sort(all)
	for _, q := range []float64{0.5, 0.99, 0.999, 1} {
		exact := float64(all[min(len(all)-1, int(q*float64(len(all))))]) / 1e6
		if got := h.Quantile(q); got < exact*0.99 || got > exact*1.01 {
			t.Errorf("quantile %v is %v, by sorting %v", q, got, exact)
		}
	}
}
