package names

import (
	"google.golang.org/protobuf/proto"

	objectv1 "github.com/cloudless/cloudless/api/gen/cloudless/object/v1"
	"github.com/cloudless/cloudless/internal/consensus"
	"github.com/cloudless/cloudless/internal/object/names"
)

// What one entry of the log may hold beside its first proposal: each entry costs more than the operations in it, and a
// large one delays those behind it.
const (
	maxShared     = 256
	maxSharedSize = 256 << 10
)

// machine applies the log of the group to the names. The value of a proposal is the number of its operations.
type machine struct{ *names.Names }

var _ consensus.DiskMachine = machine{}

// Apply implements consensus.Machine.
func (m machine) Apply(entries []consensus.Entry) ([]any, error) {
	logged := make([]names.Entry, len(entries))
	for i, e := range entries {
		logged[i] = names.Entry{Index: e.Index, Data: e.Data}
	}
	results, err := m.Names.Apply(logged)
	responses := make([]any, len(results))
	for i, r := range results {
		responses[i] = r
	}
	return responses, err
}

// Join implements consensus.Machine. Encoded entries one behind the other are the encoded entry of all their operations.
func (m machine) Join(proposals []consensus.Proposal) (data []byte, taken int) {
	n, size := 1, len(proposals[0].Data)
	for n < min(len(proposals), maxShared) && size+len(proposals[n].Data) <= maxSharedSize {
		size += len(proposals[n].Data)
		n++
	}
	if n == 1 {
		return proposals[0].Data, 1
	}
	data = make([]byte, 0, size)
	for _, p := range proposals[:n] {
		data = append(data, p.Data...)
	}
	return data, n
}

// Split implements consensus.Machine.
func (m machine) Split(proposals []consensus.Proposal, response any) []consensus.Outcome {
	all, ok := response.(*objectv1.Results)
	if !ok || all == nil {
		return nil
	}
	outcomes := make([]consensus.Outcome, 0, len(proposals))
	rest := all.GetResults()
	for _, p := range proposals {
		n := p.Value.(int)
		if n > len(rest) {
			return nil
		}
		outcomes = append(outcomes, consensus.Outcome{Response: &objectv1.Results{Index: all.GetIndex(), Results: rest[:n:n]}})
		rest = rest[n:]
	}
	return outcomes
}

// proposalOf encodes an entry.
func proposalOf(entry *objectv1.Entry) (consensus.Proposal, error) {
	data, err := proto.Marshal(entry)
	return consensus.Proposal{Data: data, Value: len(entry.GetOperations())}, err
}
