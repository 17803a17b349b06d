package sessions

import (
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxEncoded is how many revisions are kept encoded: as many as are being rolled
// out at the same time, and far more.
const maxEncoded = 4096

// encodedRevisions are revisions that are sent to many nodes. Encoding one is most
// of what an assignment costs, so it is done once.
type encodedRevisions struct {
	mu   sync.Mutex
	made map[*v1.Revision]*v1.Revision
}

func newEncodedRevisions() *encodedRevisions {
	return &encodedRevisions{made: map[*v1.Revision]*v1.Revision{}}
}

// of returns a message that is encoded to the same bytes as a stored revision, and
// is good for nothing else.
func (e *encodedRevisions) of(stored *v1.Revision) *v1.Revision {
	if stored == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if made := e.made[stored]; made != nil {
		return made
	}
	data, err := proto.Marshal(stored)
	if err != nil {
		return stored // whoever sends it finds out why
	}
	made := &v1.Revision{}
	made.ProtoReflect().SetUnknown(data)
	if len(e.made) >= maxEncoded {
		clear(e.made) // those in use are soon back
	}
	e.made[stored] = made
	return made
}
