package consensus

import (
	"sync"

	"google.golang.org/protobuf/proto"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// proposed knows transactions by the bytes that they were encoded to: not by what the bytes say but by where they
// are in memory. Raft hands a leader the very bytes that it was given; what a follower gets, or what is read from
// the disk, is somewhere else and is decoded. Its zero value is empty.
type proposed struct {
	mu      sync.Mutex
	byStart map[*byte]*statev1.Transaction
}

func (p *proposed) add(group []proposal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byStart == nil {
		p.byStart = map[*byte]*statev1.Transaction{}
	}
	for _, one := range group {
		p.byStart[&one.data[0]] = one.tx
	}
}

func (p *proposed) remove(group []proposal) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, one := range group {
		delete(p.byStart, &one.data[0])
	}
}

// decode returns the transaction of an entry. One that was proposed here is given away once, because the state owns
// it from then on.
func (p *proposed) decode(data []byte) (*statev1.Transaction, error) {
	if tx := p.take(data); tx != nil {
		return tx, nil
	}
	tx := &statev1.Transaction{}
	return tx, proto.Unmarshal(data, tx)
}

func (p *proposed) take(data []byte) *statev1.Transaction {
	if len(data) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	tx := p.byStart[&data[0]]
	delete(p.byStart, &data[0])
	return tx
}
