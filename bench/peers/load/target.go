package main

import (
	"context"
	"fmt"
)

// Turn says whose write it is: clients that rotate over the nodes take node Turn.Node(3).
type Turn struct {
	Caller  int
	Number  int
	Attempt int
}

// Node returns which of n nodes has its turn.
func (t Turn) Node(n int) int {
	return (t.Caller + t.Number + t.Attempt) % n
}

// Standing is what a cluster says of itself: the index of the leading node, and how many nodes keep up with it.
type Standing struct {
	Leader int `json:"leader"`
	InSync int `json:"in_sync"`
}

// Target is one system under load.
type Target interface {
	// Write returns nil once the write is acknowledged. The same key again must not write twice, where the system
	// can promise that at all.
	Write(ctx context.Context, turn Turn, key string, value []byte) error
	// Standing asks the cluster.
	Standing(ctx context.Context) (Standing, error)
	// Stored tells every key with the prefix that a reader finds, and how many copies of it.
	Stored(ctx context.Context, prefix string, found func(key string, copies int)) error
	Close()
}

// Publisher is a target with a window of its own: one caller, many writes under way.
type Publisher interface {
	Publish(ctx context.Context, number int, key string, value []byte, done func(error))
}

func open(o Options) (Target, error) {
	switch o.Target {
	case "etcd":
		return openEtcd(o)
	case "nats":
		return openNats(o)
	case "zookeeper":
		return openZooKeeper(o)
	case "kafka":
		return openKafka(o)
	case "restate", "oncegate":
		return openWeb(o)
	}
	return nil, fmt.Errorf("no such target")
}
