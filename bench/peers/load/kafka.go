package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const (
	kafkaTopic    = "writes"
	kafkaTopicIn  = 30 * time.Second
	kafkaMetadata = 250 * time.Millisecond
)

// kafka produces to one partition, idempotent, acknowledged by all replicas in sync, not compressed. Modes: single, a
// producer for each caller, so that each record is a request; batch, one producer for all; async, the same with a window.
type kafka struct {
	producers []*kgo.Client
	admin     *kadm.Client
	brokers   []string
}

func kafkaClient(o Options, further ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append([]kgo.Opt{
		kgo.SeedBrokers(o.Addresses...), kgo.DefaultProduceTopic(kafkaTopic),
		kgo.RequiredAcks(kgo.AllISRAcks()), // a producer is idempotent unless it is told otherwise
		kgo.ProducerBatchCompression(kgo.NoCompression()), kgo.ProducerLinger(o.Linger),
		kgo.MaxBufferedRecords(1 << 16), kgo.MetadataMinAge(kafkaMetadata),
	}, further...)...)
}

func openKafka(o Options) (Target, error) {
	target := &kafka{brokers: o.Addresses}
	count := 1
	if o.Mode == "single" {
		count = o.Callers
	}
	for range count {
		producer, err := kafkaClient(o)
		if err != nil {
			return nil, err
		}
		target.producers = append(target.producers, producer)
	}
	target.admin = kadm.NewClient(target.producers[0])
	if o.Mode == "standing" {
		return target, nil
	}
	if err := target.createTopic(len(o.Addresses)); err != nil {
		return nil, err
	}
	return target, target.introduce()
}

// introduce lets every producer get its id before the load begins: five hundred of them take seconds.
func (k *kafka) introduce() error {
	ctx, stop := context.WithTimeout(context.Background(), kafkaTopicIn)
	defer stop()
	failures := make(chan error, len(k.producers))
	for at, producer := range k.producers {
		record := &kgo.Record{Key: []byte("introduced-" + strconv.Itoa(at)), Value: []byte{0}}
		producer.Produce(ctx, record, func(_ *kgo.Record, err error) { failures <- err })
	}
	var failure error
	for range k.producers {
		failure = errors.Join(failure, <-failures)
	}
	return failure
}

func (k *kafka) createTopic(replicas int) error {
	var err error
	for until := time.Now().Add(kafkaTopicIn); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		ctx, stop := context.WithTimeout(context.Background(), 5*time.Second)
		_, err = k.admin.CreateTopic(ctx, 1, int16(replicas), nil, kafkaTopic)
		if err == nil || errors.Is(err, kerr.TopicAlreadyExists) {
			_, err = k.Standing(ctx)
		}
		stop()
		if err == nil {
			return nil
		}
	}
	return fmt.Errorf("no topic: %w", err)
}

func (k *kafka) Write(ctx context.Context, turn Turn, key string, value []byte) error {
	producer := k.producers[turn.Caller%len(k.producers)]
	// The client itself sends again, under the number that the record has; giving up would lose that number.
	return producer.ProduceSync(context.WithoutCancel(ctx), &kgo.Record{Key: []byte(key), Value: value}).FirstErr()
}

func (k *kafka) Publish(ctx context.Context, _ int, key string, value []byte, done func(error)) {
	k.producers[0].Produce(ctx, &kgo.Record{Key: []byte(key), Value: value}, func(_ *kgo.Record, err error) { done(err) })
}

func (k *kafka) Standing(ctx context.Context) (Standing, error) {
	topics, err := k.admin.ListTopics(ctx, kafkaTopic)
	if err != nil {
		return Standing{Leader: -1}, err
	}
	partition, there := topics[kafkaTopic].Partitions[0]
	if !there || partition.Leader < 1 {
		return Standing{Leader: -1}, errors.New("the partition has no leader")
	}
	return Standing{Leader: int(partition.Leader) - 1, InSync: len(partition.ISR)}, nil
}

func (k *kafka) Stored(ctx context.Context, _ string, found func(string, int)) error {
	ends, err := k.admin.ListEndOffsets(ctx, kafkaTopic)
	if err != nil {
		return err
	}
	end, _ := ends.Lookup(kafkaTopic, 0)
	from := map[string]map[int32]kgo.Offset{kafkaTopic: {0: kgo.NewOffset().AtStart()}}
	reader, err := kafkaClient(Options{Addresses: k.brokers}, kgo.ConsumePartitions(from))
	if err != nil {
		return err
	}
	defer reader.Close()
	for next := int64(0); next < end.Offset; {
		fetched := reader.PollFetches(ctx)
		if ctx.Err() != nil {
			return fmt.Errorf("read to %d of %d: %w", next, end.Offset, ctx.Err())
		}
		fetched.EachRecord(func(record *kgo.Record) {
			found(string(record.Key), 1)
			next = record.Offset + 1
		})
	}
	return nil
}

func (k *kafka) Close() {
	for _, producer := range k.producers {
		producer.Close()
	}
}
