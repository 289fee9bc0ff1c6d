// Command etcdbench is etcd, and a closed loop of puts against it, for bench.consensus --parts etcd.
//
//	etcdbench server FLAGS...               one etcd node, unmodified, with etcd's own flags
//	etcdbench load ENDPOINTS OUTSTANDING SECONDS SIZE
//
// The load rotates over all nodes, each put has a key of its own, and its answer is flushed on a majority, which is
// etcd's default. It prints one line of JSON: puts a second and latencies in milliseconds.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/etcdmain"
	"go.uber.org/zap"
)

const warmUp = time.Second

func main() {
	if len(os.Args) > 1 && os.Args[1] == "server" {
		etcdmain.Main(append([]string{"etcd"}, os.Args[2:]...))
		return
	}
	if len(os.Args) != 6 || os.Args[1] != "load" {
		fmt.Fprintln(os.Stderr, "usage: etcdbench server FLAGS... | load ENDPOINTS OUTSTANDING SECONDS SIZE")
		os.Exit(2)
	}
	if err := load(strings.Split(os.Args[2], ","), os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func load(endpoints []string, arguments []string) error {
	outstanding, err := strconv.Atoi(arguments[0])
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseFloat(arguments[1], 64)
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(arguments[2])
	if err != nil {
		return err
	}
	var clients []*clientv3.Client
	for _, endpoint := range endpoints {
		client, err := clientv3.New(clientv3.Config{
			Endpoints: []string{endpoint}, DialTimeout: 10 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			return err
		}
		defer client.Close()
		clients = append(clients, client)
	}
	value := strings.Repeat("v", size)
	prefix := strconv.FormatInt(time.Now().UnixNano(), 36)
	from := time.Now().Add(warmUp)
	until := from.Add(time.Duration(seconds * float64(time.Second)))
	var mutex sync.Mutex
	var all []time.Duration
	var failure error
	var workers sync.WaitGroup
	for worker := range outstanding {
		workers.Add(1)
		go func() {
			defer workers.Done()
			var mine []time.Duration
			var err error
			for number := 0; err == nil; number++ {
				began := time.Now()
				if began.After(until) {
					break
				}
				key := fmt.Sprintf("%s/%d/%d", prefix, worker, number)
				_, err = clients[(worker+number)%len(clients)].Put(context.Background(), key, value)
				if ended := time.Now(); err == nil && began.After(from) && ended.Before(until) {
					mine = append(mine, ended.Sub(began))
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			all = append(all, mine...)
			if err != nil {
				failure = err
			}
		}()
	}
	workers.Wait()
	if failure != nil {
		return failure
	}
	if len(all) == 0 {
		return fmt.Errorf("no put was answered in time")
	}
	slices.Sort(all)
	ms := func(at int) float64 { return float64(all[at].Microseconds()) / 1000 }
	return json.NewEncoder(os.Stdout).Encode(map[string]any{
		"samples": len(all), "per_second": float64(len(all)) / seconds,
		"p50_ms": ms(len(all) / 2), "p99_ms": ms(len(all) * 99 / 100), "max_ms": ms(len(all) - 1),
	})
}
