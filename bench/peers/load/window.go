package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Result is what one window reached.
type Result struct {
	Operations uint64  `json:"operations"`
	Seconds    float64 `json:"seconds"`
	P50        float64 `json:"p50_ms"`
	P99        float64 `json:"p99_ms"`
	P999       float64 `json:"p999_ms"`
	Max        float64 `json:"max_ms"`
	Errors     int     `json:"errors"`
	Failure    string  `json:"failure,omitempty"`
}

// tally is what one caller has seen.
type tally struct {
	took    Histogram
	errors  int
	failure error
}

func (t *tally) failed(err error) {
	t.errors++
	t.failure = err
}

// runWindow measures one window and prints its result.
func runWindow(o Options, target Target) error {
	began := time.Now()
	from, until := began.Add(o.Warm), began.Add(o.Warm+o.Measured)
	if err := say("window", map[string]int64{"from_ns": from.UnixNano(), "until_ns": until.UnixNano()}); err != nil {
		return err
	}
	// What hangs must not hang the bench.
	ctx, cancel := context.WithDeadline(context.Background(), until.Add(o.Patience))
	defer cancel()
	var tallies []*tally
	if publisher, ok := target.(Publisher); ok && o.Mode == "async" {
		tallies = []*tally{publish(ctx, o, publisher, from, until)}
	} else {
		tallies = call(ctx, o, target, from, until)
	}
	var all tally
	for _, one := range tallies {
		all.took.Add(&one.took)
		all.errors += one.errors
		if one.failure != nil {
			all.failure = one.failure
		}
	}
	result := Result{
		Operations: all.took.total, Seconds: o.Measured.Seconds(),
		P50: all.took.Quantile(0.5), P99: all.took.Quantile(0.99), P999: all.took.Quantile(0.999), Max: all.took.Quantile(1),
		Errors: all.errors,
	}
	if all.failure != nil {
		result.Failure = all.failure.Error()
	}
	return say("result", result)
}

// call runs the callers to the end of the window.
func call(ctx context.Context, o Options, target Target, from, until time.Time) []*tally {
	tallies := make([]*tally, o.Callers)
	var callers sync.WaitGroup
	for caller := range o.Callers {
		mine := &tally{}
		tallies[caller] = mine
		callers.Go(func() {
			value := newValue(o.Bytes, caller)
			for number := 0; ; number++ {
				sent := time.Now()
				if sent.After(until) || ctx.Err() != nil {
					return
				}
				attempt, stop := context.WithTimeout(ctx, o.Patience)
				err := target.Write(attempt, Turn{Caller: caller, Number: number}, o.key(caller, number), value.next())
				stop()
				if err != nil {
					mine.failed(err)
					time.Sleep(time.Millisecond) // a refusing server must not make a busy loop of this one
				} else if answered := time.Now(); answered.After(from) && answered.Before(until) {
					mine.took.Note(answered.Sub(sent))
				}
			}
		})
	}
	callers.Wait()
	return tallies
}

// publish keeps o.Callers writes of one publisher under way to the end of the window.
func publish(ctx context.Context, o Options, target Publisher, from, until time.Time) *tally {
	mine := &tally{}
	var lock sync.Mutex
	var underWay sync.WaitGroup
	room := make(chan struct{}, o.Callers)
	value := newValue(o.Bytes, 0)
	for number := 0; ; number++ {
		room <- struct{}{}
		sent := time.Now()
		if sent.After(until) || ctx.Err() != nil {
			break
		}
		underWay.Add(1)
		target.Publish(ctx, number, o.key(0, number), value.next(), func(err error) {
			answered := time.Now()
			lock.Lock()
			if err != nil {
				mine.failed(err)
			} else if answered.After(from) && answered.Before(until) {
				mine.took.Note(answered.Sub(sent))
			}
			lock.Unlock()
			<-room
			underWay.Done()
		})
	}
	underWay.Wait()
	return mine
}

func (o Options) key(caller, number int) string {
	return fmt.Sprintf("%s-%d-%d", o.Prefix, caller, number)
}
