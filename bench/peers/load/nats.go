package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
)

const (
	natsStream     = "WRITES"
	natsSubject    = "writes"
	natsRemembers  = 2 * time.Minute
	natsReconnect  = 50 * time.Millisecond
	natsStreamIn   = 30 * time.Second
	natsNodePrefix = "n"
)

// jetStream publishes with a message id, over a connection to each node. Modes: sync; async, one publisher with a window.
type jetStream struct {
	connections []*nats.Conn
	nodes       []jetstream.JetStream
	patience    time.Duration
}

func openNats(o Options) (Target, error) {
	target := &jetStream{patience: o.Patience}
	for at := range o.Addresses {
		// Its own node first, the others when that one is gone.
		urls := append(append([]string{}, o.Addresses[at:]...), o.Addresses[:at]...)
		connection, err := nats.Connect(strings.Join(urls, ","), nats.DontRandomize(),
			nats.MaxReconnects(-1), nats.ReconnectWait(natsReconnect), nats.ReconnectJitter(0, 0))
		if err != nil {
			return nil, err
		}
		node, err := jetstream.New(connection, jetstream.WithPublishAsyncMaxPending(o.Callers))
		if err != nil {
			return nil, err
		}
		target.connections = append(target.connections, connection)
		target.nodes = append(target.nodes, node)
	}
	if o.Mode == "standing" {
		return target, nil
	}
	config := jetstream.StreamConfig{
		Name: natsStream, Subjects: []string{natsSubject}, Storage: jetstream.FileStorage,
		Replicas: len(o.Addresses), Duplicates: natsRemembers,
	}
	var err error
	for until := time.Now().Add(natsStreamIn); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		ctx, stop := context.WithTimeout(context.Background(), 2*time.Second)
		_, err = target.nodes[0].CreateOrUpdateStream(ctx, config) // refused until JetStream has a leader of its own
		stop()
		if err == nil {
			return target, nil
		}
	}
	return nil, fmt.Errorf("no stream: %w", err)
}

func (j *jetStream) message(key string, value []byte) *nats.Msg {
	message := nats.NewMsg(natsSubject)
	message.Data = value
	message.Header.Set(jetstream.MsgIDHeader, key)
	return message
}

func (j *jetStream) Write(ctx context.Context, turn Turn, key string, value []byte) error {
	node := j.nodes[turn.Node(len(j.nodes))]
	_, err := node.PublishMsg(ctx, j.message(key, value), jetstream.WithRetryAttempts(0))
	return err
}

func (j *jetStream) Publish(ctx context.Context, number int, key string, value []byte, done func(error)) {
	future, err := j.nodes[number%len(j.nodes)].PublishMsgAsync(j.message(key, value))
	if err != nil {
		done(err)
		return
	}
	go func() {
		select {
		case <-future.Ok():
			done(nil)
		case err := <-future.Err():
			done(err)
		case <-ctx.Done():
			done(ctx.Err())
		}
	}()
}

func (j *jetStream) Standing(ctx context.Context) (Standing, error) {
	failure := errors.New("the stream has no leader")
	for _, node := range j.nodes {
		one, stop := context.WithTimeout(ctx, time.Second)
		stream, err := node.Stream(one, natsStream)
		stop()
		if err != nil {
			failure = err
			continue
		}
		cluster := stream.CachedInfo().Cluster
		var leader int
		if _, err := fmt.Sscanf(cluster.Leader, natsNodePrefix+"%d", &leader); err != nil {
			continue
		}
		found := Standing{Leader: leader - 1, InSync: 1}
		for _, replica := range cluster.Replicas {
			if replica.Current && !replica.Offline {
				found.InSync++
			}
		}
		return found, nil
	}
	return Standing{Leader: -1}, failure
}

func (j *jetStream) Stored(ctx context.Context, _ string, found func(string, int)) error {
	stream, err := j.nodes[0].Stream(ctx, natsStream)
	if err != nil {
		return err
	}
	left := stream.CachedInfo().State.Msgs
	consumer, err := stream.OrderedConsumer(ctx, jetstream.OrderedConsumerConfig{HeadersOnly: true})
	if err != nil {
		return err
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessages(4_096))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for ; left > 0; left-- {
		message, err := messages.Next(jetstream.NextContext(ctx))
		if err != nil {
			return fmt.Errorf("%d messages left: %w", left, err)
		}
		found(message.Headers().Get(jetstream.MsgIDHeader), 1)
	}
	return nil
}

func (j *jetStream) Close() {
	for _, connection := range j.connections {
		connection.Close()
	}
}
