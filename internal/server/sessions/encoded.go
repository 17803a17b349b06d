package sessions

import (
	"sync"

	"google.golang.org/protobuf/proto"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// maxEncoded is how many encoded revisions are kept, far more than roll out at once.
const maxEncoded = 4096

// encodedRevisions caches the encoding of revisions. Many nodes get the same revision, and
// encoding it is most of the cost of an assignment.
type encodedRevisions struct {
	mu       sync.Mutex
	byStored map[*v1.Revision]*v1.Revision
}

func newEncodedRevisions() *encodedRevisions {
	return &encodedRevisions{byStored: map[*v1.Revision]*v1.Revision{}}
}

// of returns a message that is encoded to the same bytes as a stored revision. The message
// can only be sent: its fields are empty.
func (e *encodedRevisions) of(stored *v1.Revision) *v1.Revision {
	if stored == nil {
		return nil
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if encoded := e.byStored[stored]; encoded != nil {
		return encoded
	}
	data, err := proto.Marshal(stored)
	if err != nil {
		return stored // sending it reports the error
	}
	encoded := &v1.Revision{}
	encoded.ProtoReflect().SetUnknown(data)
	if len(e.byStored) >= maxEncoded {
		clear(e.byStored) // revisions that are in use come back soon
	}
	e.byStored[stored] = encoded
	return encoded
}
