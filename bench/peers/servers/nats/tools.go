//go:build tools

// Package nats pins the server of NATS, which is built as it is: go build github.com/nats-io/nats-server/v2.
package nats

import _ "github.com/nats-io/nats-server/v2"
