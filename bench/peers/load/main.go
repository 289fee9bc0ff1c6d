// Command load writes to one system in a closed loop: N callers, each waits for its answer before its next write.
//
// Every key is new, every value has its own bytes. It prints events, one line of JSON each:
//
//	window   from_ns, until_ns   wall clock of the measured window, printed when the load begins
//	progress at_ns, acknowledged (-steady) every 50 ms
//	result   what was reached; the last line
//	standing leader, in_sync     (-standing) how the cluster stands now
//
// An operation counts if it ended in the window; the load goes on before it and after it. bench.peers starts it; `load -h` lists the flags.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

// Options are what the command line says.
type Options struct {
	Target    string
	Mode      string
	Addresses []string
	Callers   int
	Warm      time.Duration
	Measured  time.Duration
	Bytes     int
	Linger    time.Duration
	Patience  time.Duration
	Prefix    string
	Admin     string
}

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "load:", err)
		os.Exit(1)
	}
}

func run() error {
	var o Options
	var addresses string
	var steady, standing bool
	flag.StringVar(&o.Target, "target", "", "etcd, nats, zookeeper, kafka, restate or oncegate")
	flag.StringVar(&o.Mode, "mode", "", "of the target: see the file of its name")
	flag.StringVar(&addresses, "addresses", "", "of the nodes in their order, separated by commas")
	flag.IntVar(&o.Callers, "callers", 1, "writes outstanding")
	flag.DurationVar(&o.Warm, "warm", time.Second, "time before the window")
	flag.DurationVar(&o.Measured, "measured", 2*time.Second, "the window")
	flag.IntVar(&o.Bytes, "bytes", 200, "of a value")
	flag.DurationVar(&o.Linger, "linger", 0, "how long Kafka's producer waits for more")
	flag.DurationVar(&o.Patience, "patience", 10*time.Second, "with one attempt of one write")
	flag.StringVar(&o.Prefix, "prefix", "", "of every key; empty: from the clock")
	flag.StringVar(&o.Admin, "admin", "", "where Restate answers queries about its state")
	flag.BoolVar(&steady, "steady", false, "write until standard input closes, try again what failed, read everything back")
	flag.BoolVar(&standing, "standing", false, "print who leads and how many nodes keep up, and end")
	flag.Parse()
	if flag.NArg() > 0 || o.Callers < 1 || o.Bytes < 16 {
		return errors.New("bad arguments; see -h")
	}
	o.Addresses = strings.Split(addresses, ",")
	if o.Prefix == "" {
		o.Prefix = fmt.Sprintf("%x", time.Now().UnixNano())
	}
	if standing {
		return printStanding(o)
	}
	target, err := open(o)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Target, err)
	}
	defer target.Close()
	if steady {
		return runSteady(o, target)
	}
	return runWindow(o, target)
}

func printStanding(o Options) error {
	ctx, cancel := context.WithTimeout(context.Background(), o.Patience)
	defer cancel()
	o.Mode = "standing"
	target, err := open(o)
	if err != nil {
		return fmt.Errorf("%s: %w", o.Target, err)
	}
	defer target.Close()
	found, err := target.Standing(ctx)
	if err != nil {
		return err
	}
	return say("standing", found)
}

// say prints one event.
func say(event string, fields any) error {
	raw, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	_, err = fmt.Printf("{\"event\":%q,%s\n", event, raw[1:])
	return err
}
