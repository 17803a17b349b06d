package consensus

import (
	"sync"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
)

// proposed finds transactions by the memory address of their encoded bytes, not by their content. Raft hands a leader
// the very bytes that it was given; what a follower receives, or what is read from disk, is elsewhere and is decoded.
// Its zero value is empty.
type proposed struct {
	mu      sync.Mutex
	byStart map[*byte][]*statev1.Transaction
}

func (p *proposed) add(data []byte, proposals []Proposal) {
	all := make([]*statev1.Transaction, len(proposals))
	for i, one := range proposals {
		all[i] = transactionOf(one)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byStart == nil {
		p.byStart = map[*byte][]*statev1.Transaction{}
	}
	p.byStart[&data[0]] = all
}

// decode returns the transactions of an entry, and whether they were proposed here. Those are valid, and are returned
// only once, because the state owns them from then on.
func (p *proposed) decode(data []byte) (all []*statev1.Transaction, here bool, err error) {
	if proposed := p.take(data); proposed != nil {
		return proposed, true, nil
	}
	first := &statev1.Transaction{}
	if err := first.UnmarshalVT(data); err != nil {
		return nil, false, err
	}
	others := first.Others
	first.Others = nil
	return append([]*statev1.Transaction{first}, others...), false, nil
}

func (p *proposed) take(data []byte) []*statev1.Transaction {
	if len(data) == 0 {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	taken := p.byStart[&data[0]]
	delete(p.byStart, &data[0])
	return taken
}
