package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	progressEvery = 50 * time.Millisecond
	retryPause    = 5 * time.Millisecond
	gapsKept      = 200
	readBack      = 2 * time.Minute
	readPause     = time.Second
	lastAnswers   = 30 * time.Second
)

// Gap is a time in which no write was acknowledged.
type Gap struct {
	FromNs  int64 `json:"from_ns"`
	UntilNs int64 `json:"until_ns"`
}

// Endured is what a load reached that went on through faults.
type Endured struct {
	Acknowledged int   `json:"acknowledged"`
	Retries      int64 `json:"retries"`
	// Lost were acknowledged and are not there; Unknown are there and were never acknowledged.
	Lost    int `json:"lost"`
	Twice   int `json:"twice"`
	Unknown int `json:"unknown"`
	// Gaps are the longest ones, the longest first.
	Gaps []Gap `json:"gaps"`
}

// runSteady writes until standard input closes, each write again until it is acknowledged, then reads all back.
func runSteady(o Options, target Target) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var closing atomic.Bool
	var acknowledged, retries atomic.Int64
	answered := make([][]int64, o.Callers)
	var callers sync.WaitGroup
	for caller := range o.Callers {
		callers.Go(func() {
			value := newValue(o.Bytes, caller)
			for number := 0; !closing.Load(); number++ {
				key, text := o.key(caller, number), value.next()
				for attempt := 0; ; attempt++ {
					one, stop := context.WithTimeout(ctx, o.Patience)
					err := target.Write(one, Turn{Caller: caller, Number: number, Attempt: attempt}, key, text)
					stop()
					if err == nil {
						break
					}
					if ctx.Err() != nil {
						return
					}
					retries.Add(1)
					time.Sleep(retryPause)
				}
				answered[caller] = append(answered[caller], time.Now().UnixNano())
				acknowledged.Add(1)
			}
		})
	}
	ended := make(chan struct{})
	go func() {
		io.Copy(io.Discard, os.Stdin)
		closing.Store(true)
		time.AfterFunc(lastAnswers, cancel)
		callers.Wait()
		close(ended)
	}()
	tick := time.NewTicker(progressEvery)
	defer tick.Stop()
	for going := true; going; {
		select {
		case <-tick.C:
			err := say("progress", map[string]int64{"at_ns": time.Now().UnixNano(), "acknowledged": acknowledged.Load()})
			if err != nil {
				return err
			}
		case <-ended:
			going = false
		}
	}
	return judge(o, target, answered, retries.Load())
}

func judge(o Options, target Target, answered [][]int64, retries int64) error {
	found := Endured{Retries: retries, Gaps: gaps(slices.Concat(answered...))}
	missing := map[string]bool{}
	for caller, times := range answered {
		found.Acknowledged += len(times)
		for number := range times {
			missing[o.key(caller, number)] = true
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), readBack)
	defer cancel()
	seen, err := readAll(ctx, o.Prefix, target)
	if err != nil {
		return err
	}
	for key, copies := range seen {
		if !missing[key] {
			found.Unknown++
		}
		if copies > 1 {
			found.Twice++
		}
		delete(missing, key)
	}
	found.Lost = len(missing)
	return say("result", found)
}

// readAll returns how often each key is there. Nodes may still be coming back: what fails is read again from the start.
func readAll(ctx context.Context, prefix string, target Target) (map[string]int, error) {
	for {
		seen := map[string]int{}
		err := target.Stored(ctx, prefix, func(key string, copies int) {
			if strings.HasPrefix(key, prefix+"-") {
				seen[key] += copies
			}
		})
		if err == nil {
			return seen, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("nothing can be read back: %w", err)
		case <-time.After(readPause):
		}
	}
}

// gaps returns the longest times between two answers.
func gaps(times []int64) []Gap {
	slices.Sort(times)
	var all []Gap
	for at := 1; at < len(times); at++ {
		if times[at]-times[at-1] > int64(time.Millisecond) {
			all = append(all, Gap{times[at-1], times[at]})
		}
	}
	slices.SortFunc(all, func(a, b Gap) int { return cmp.Compare(b.UntilNs-b.FromNs, a.UntilNs-a.FromNs) })
	return all[:min(len(all), gapsKept)]
}
