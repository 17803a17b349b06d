package simulated

import (
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// A simulated node needs only the uid and the desired state of each assigned replica. Decoding the rest, above all the
// whole revision, would be most of the work of a fleet that is assigned millions of replicas.

// desired is the desired state of one replica.
type desired struct {
	uid  uuid.UUID
	stop bool
}

// orders is the used part of [v1.Assignments].
type orders struct {
	epoch     uint64
	full      bool
	assigned  []desired
	remove    []uuid.UUID
	servers   []string
	heartbeat time.Duration // 0 if unset
}

func field(m proto.Message, name protoreflect.Name) protowire.Number {
	return m.ProtoReflect().Descriptor().Fields().ByName(name).Number()
}

// The numbers of the fields that are read.
var (
	downAssignments = field(&v1.SessionDown{}, "assignments")
	downPing        = field(&v1.SessionDown{}, "ping")
	downNetwork     = field(&v1.SessionDown{}, "network")
	downSecrets     = field(&v1.SessionDown{}, "secrets")
	upPong          = field(&v1.SessionUp{}, "pong")

	fieldEpoch     = field(&v1.Assignments{}, "epoch")
	fieldFull      = field(&v1.Assignments{}, "full")
	fieldAssign    = field(&v1.Assignments{}, "assign")
	fieldRemove    = field(&v1.Assignments{}, "remove")
	fieldServers   = field(&v1.Assignments{}, "servers")
	fieldHeartbeat = field(&v1.Assignments{}, "heartbeat")

	fieldReplica  = field(&v1.Assignment{}, "replica")
	fieldMetadata = field(&v1.Replica{}, "metadata")
	fieldSpec     = field(&v1.Replica{}, "spec")
	fieldUID      = field(&v1.Metadata{}, "uid")
	fieldDesired  = field(&v1.ReplicaSpec{}, "desired")
)

// heard is the used part of a server's message.
type heard struct {
	orders *orders // nil if it has none
	pong   []byte  // the encoded answer to a ping; nil if there was none
	// network is the encoded news of the network; nil if there was none.
	network []byte
	// secrets is the encoded news of secrets; nil if there was none.
	secrets []byte
}

// scan reads a SessionDown. A simulated node ignores everything else.
func scan(down []byte) (h heard, err error) {
	err = each(down, func(number protowire.Number, value []byte, _ uint64) error {
		switch number {
		case downAssignments:
			h.orders = &orders{}
			return h.orders.scan(value)
		case downNetwork:
			h.network = value
		case downSecrets:
			h.secrets = value
		case downPing:
			// An answer has the same fields as the question.
			h.pong = protowire.AppendBytes(protowire.AppendTag(nil, upPong, protowire.BytesType), value)
		}
		return nil
	})
	if err != nil {
		err = fmt.Errorf("read what a server says: %w", err)
	}
	return h, err
}

func (o *orders) scan(assignments []byte) error {
	return each(assignments, func(number protowire.Number, value []byte, n uint64) (err error) {
		switch number {
		case fieldEpoch:
			o.epoch = n
		case fieldFull:
			o.full = n != 0
		case fieldAssign:
			var w desired
			if w, err = scanDesired(value); err == nil {
				o.assigned = append(o.assigned, w)
			}
		case fieldRemove:
			var uid uuid.UUID
			if uid, err = uuid.ParseBytes(value); err == nil {
				o.remove = append(o.remove, uid)
			}
		case fieldServers:
			o.servers = append(o.servers, string(value))
		case fieldHeartbeat:
			o.heartbeat, err = spec.ParseDuration(string(value))
		}
		return err
	})
}

func scanDesired(assignment []byte) (w desired, err error) {
	known := false
	replica := func(number protowire.Number, value []byte, _ uint64) error {
		switch number {
		case fieldMetadata:
			return each(value, func(number protowire.Number, value []byte, _ uint64) (err error) {
				if number == fieldUID {
					known = true
					w.uid, err = uuid.ParseBytes(value)
				}
				return err
			})
		case fieldSpec:
			return each(value, func(number protowire.Number, value []byte, _ uint64) error {
				if number == fieldDesired {
					w.stop = string(value) == "stopped"
				}
				return nil
			})
		}
		return nil
	}
	err = each(assignment, func(number protowire.Number, value []byte, _ uint64) error {
		if number == fieldReplica {
			return each(value, replica)
		}
		return nil
	})
	if err == nil && !known {
		err = errors.New("an assignment names no replica")
	}
	return w, err
}

// each calls f for every field of an encoded message, with its bytes or its number.
func each(b []byte, f func(number protowire.Number, value []byte, n uint64) error) error {
	for len(b) > 0 {
		number, kind, size := protowire.ConsumeTag(b)
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		var value []byte
		var n uint64
		switch kind {
		case protowire.BytesType:
			value, size = protowire.ConsumeBytes(b)
		case protowire.VarintType:
			n, size = protowire.ConsumeVarint(b)
		default:
			size = protowire.ConsumeFieldValue(number, kind, b)
		}
		if size < 0 {
			return protowire.ParseError(size)
		}
		b = b[size:]
		if err := f(number, value, n); err != nil {
			return err
		}
	}
	return nil
}
