package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"
)

const (
	zkParents     = 256
	zkRoot        = "/writes"
	zkSession     = 10 * time.Second
	zkRoundPause  = 50 * time.Millisecond
	zkReadyIn     = 30 * time.Second
	zkAnswerBytes = 64 << 20
)

// zooKeeper creates a node for each key, over a session at each server. The name is what makes it duplicate-safe.
type zooKeeper struct {
	sessions []*zk.Conn
	servers  []string
}

// homeFirst tries a session's own server first, then the others in turn. The library waits a second after each round;
// this one waits 50 ms, so that a measured gap is the servers' and not the library's.
type homeFirst struct {
	servers []string
	home    int
	tried   int
}

func (h *homeFirst) Init(servers []string) error {
	h.servers = servers
	return nil
}

func (h *homeFirst) Len() int { return len(h.servers) }

func (h *homeFirst) Next() (string, bool) {
	if h.tried > 0 && h.tried%len(h.servers) == 0 {
		time.Sleep(zkRoundPause)
	}
	server := h.servers[(h.home+h.tried)%len(h.servers)]
	h.tried++
	return server, false
}

func (h *homeFirst) Connected() {
	h.home, h.tried = h.home+h.tried-1, 0
}

type silent struct{}

func (silent) Printf(string, ...any) {}

func openZooKeeper(o Options) (Target, error) {
	target := &zooKeeper{servers: o.Addresses}
	if o.Mode == "standing" {
		return target, nil
	}
	for at := range o.Addresses {
		session, _, err := zk.Connect(o.Addresses, zkSession, zk.WithHostProvider(&homeFirst{home: at}),
			zk.WithLogger(silent{}), zk.WithMaxBufferSize(zkAnswerBytes))
		if err != nil {
			return nil, err
		}
		target.sessions = append(target.sessions, session)
	}
	if err := target.parent(zkRoot); err != nil {
		return nil, err
	}
	for number := range zkParents {
		if err := target.parent(parentOf(number)); err != nil {
			return nil, err
		}
	}
	return target, nil
}

func parentOf(number int) string {
	return zkRoot + "/" + strconv.Itoa(number%zkParents)
}

func (z *zooKeeper) parent(path string) error {
	var err error
	for until := time.Now().Add(zkReadyIn); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		_, err = z.sessions[0].Create(path, nil, 0, zk.WorldACL(zk.PermAll))
		if err == nil || errors.Is(err, zk.ErrNodeExists) {
			return nil
		}
	}
	return fmt.Errorf("%s: %w", path, err)
}

func (z *zooKeeper) Write(_ context.Context, turn Turn, key string, value []byte) error {
	session := z.sessions[turn.Node(len(z.sessions))]
	path := parentOf(turn.Caller+turn.Number) + "/" + key
	_, err := session.Create(path, value, 0, zk.WorldACL(zk.PermAll))
	if errors.Is(err, zk.ErrNodeExists) {
		return nil // an earlier attempt has made it
	}
	return err
}

func (z *zooKeeper) Standing(ctx context.Context) (Standing, error) {
	found := Standing{Leader: -1}
	for at, server := range z.servers {
		answer := fourLetters(ctx, server)
		if strings.Contains(answer, "Mode: leader") {
			found.Leader = at
			found.InSync++
		} else if strings.Contains(answer, "Mode: follower") {
			found.InSync++
		}
	}
	if found.Leader < 0 {
		return found, errors.New("no server leads")
	}
	return found, nil
}

func fourLetters(ctx context.Context, server string) string {
	dialer := net.Dialer{Timeout: time.Second}
	connection, err := dialer.DialContext(ctx, "tcp", server)
	if err != nil {
		return ""
	}
	defer connection.Close()
	connection.SetDeadline(time.Now().Add(time.Second))
	io.WriteString(connection, "srvr")
	answer, _ := io.ReadAll(connection)
	return string(answer)
}

func (z *zooKeeper) Stored(_ context.Context, _ string, found func(string, int)) error {
	for number := range zkParents {
		names, _, err := z.sessions[0].Children(parentOf(number))
		if err != nil {
			return err
		}
		for _, name := range names {
			found(name, 1)
		}
	}
	return nil
}

func (z *zooKeeper) Close() {
	for _, session := range z.sessions {
		session.Close()
	}
}
