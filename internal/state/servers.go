package state

import (
	"iter"

	statev1 "github.com/cloudless/cloudless/api/gen/cloudless/state/v1"
	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Server returns a server by its uid.
func (s *Snapshot) Server(uid string) *v1.Server { return byUID[*v1.Server](s, KindServer, uid) }

// ServerByName returns a server by its name.
func (s *Snapshot) ServerByName(name string) *v1.Server {
	return byName[*v1.Server](s, KindServer, "", name)
}

// Servers lists the servers by name.
func (s *Snapshot) Servers(after string) iter.Seq[*v1.Server] {
	return listByName[*v1.Server](s, KindServer, "", after)
}

// Revocation returns the note that the member with this uid was removed.
func (s *Snapshot) Revocation(uid string) *statev1.Revocation {
	return byUID[*statev1.Revocation](s, KindRevocation, uid)
}

// Revocations lists the notes that members were removed, by uid.
func (s *Snapshot) Revocations() iter.Seq[*statev1.Revocation] {
	return listByPrefix[*statev1.Revocation](s, KindRevocation, indexUID, nil)
}
