package main

import (
	"context"
	"errors"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

const (
	etcdPage      = 5_000
	etcdLagMax    = 2_000
	etcdRecord    = "done/"
	etcdValue     = "value/"
	etcdConnectIn = 10 * time.Second
)

// etcd has a client for each node. Modes: put, not duplicate-safe; txn, a transaction that writes the value and a
// record of the key if there is no such record.
type etcd struct {
	nodes []*clientv3.Client
	txn   bool
	urls  []string
}

func openEtcd(o Options) (Target, error) {
	target := &etcd{txn: o.Mode == "txn", urls: o.Addresses}
	for _, url := range o.Addresses {
		node, err := clientv3.New(clientv3.Config{
			Endpoints: []string{url}, DialTimeout: etcdConnectIn, Logger: zap.NewNop(),
		})
		if err != nil {
			return nil, err
		}
		target.nodes = append(target.nodes, node)
	}
	return target, nil
}

func (e *etcd) Write(ctx context.Context, turn Turn, key string, value []byte) error {
	node := e.nodes[turn.Node(len(e.nodes))]
	if !e.txn {
		_, err := node.Put(ctx, etcdValue+key, string(value))
		return err
	}
	// If the record is there, an earlier attempt has done both.
	unseen := clientv3.Compare(clientv3.CreateRevision(etcdRecord+key), "=", 0)
	_, err := node.Txn(ctx).If(unseen).
		Then(clientv3.OpPut(etcdRecord+key, ""), clientv3.OpPut(etcdValue+key, string(value))).Commit()
	return err
}

func (e *etcd) Standing(ctx context.Context) (Standing, error) {
	found := Standing{Leader: -1}
	var applied []uint64
	var newest uint64
	for at, node := range e.nodes {
		one, stop := context.WithTimeout(ctx, time.Second)
		status, err := node.Status(one, e.urls[at])
		stop()
		if err != nil {
			continue
		}
		if status.Leader == status.Header.MemberId {
			found.Leader = at
		}
		applied = append(applied, status.RaftAppliedIndex)
		newest = max(newest, status.RaftIndex)
	}
	for _, index := range applied {
		if index+etcdLagMax >= newest {
			found.InSync++
		}
	}
	if found.Leader < 0 {
		return found, errors.New("no node leads")
	}
	return found, nil
}

func (e *etcd) Stored(ctx context.Context, prefix string, found func(string, int)) error {
	from, end := etcdValue+prefix, clientv3.GetPrefixRangeEnd(etcdValue+prefix)
	for {
		page, err := e.nodes[0].Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(etcdPage), clientv3.WithKeysOnly())
		if err != nil {
			return err
		}
		for _, pair := range page.Kvs {
			found(strings.TrimPrefix(string(pair.Key), etcdValue), int(pair.Version)) // a version for each write
		}
		if !page.More {
			return nil
		}
		from = string(page.Kvs[len(page.Kvs)-1].Key) + "\x00"
	}
}

func (e *etcd) Close() {
	for _, node := range e.nodes {
		node.Close()
	}
}
