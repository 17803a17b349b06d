package netd

import (
	"encoding/json"
	"net/netip"

	"github.com/cloudless/cloudless/internal/mesh"
)

// version is that of the messages between agent and process. A process of another version is replaced.
const version = 1

// Setup is what a node's network cannot change while it runs: a process with another setup starts anew.
type Setup struct {
	// ID is the identity of this node to relays.
	ID string
	// Credentials is the file that proves it.
	Credentials string
	Interface   string
	MTU         int
	Port        uint16
	Addresses   []netip.Prefix
	Routes      []netip.Prefix
}

func (s Setup) equal(t Setup) bool {
	a, _ := json.Marshal(s) // cannot fail: there are only texts and numbers in it
	b, _ := json.Marshal(t)
	return string(a) == string(b)
}

// request is one message of the agent. Its parts are handled in this order.
type request struct {
	Version int    `json:",omitempty"`
	Key     []byte `json:",omitempty"`
	Setup   *Setup `json:",omitempty"`
	// Full says that Changed are all peers there are.
	Full    bool        `json:",omitempty"`
	Changed []mesh.Peer `json:",omitempty"`
	Removed []string    `json:",omitempty"`
	Relays  *Relays     `json:",omitempty"`
	Status  uint64      `json:",omitempty"` // a number that the answer repeats
	Stop    bool        `json:",omitempty"`
}

// Relays are the servers that pass packets on, and those that tell nodes their public addresses.
type Relays struct {
	Relays []mesh.Relay
	STUN   []netip.AddrPort
}

// response is one message of the process.
type response struct {
	Version   int                `json:",omitempty"`
	Failed    string             `json:",omitempty"`
	Announced *mesh.Announcement `json:",omitempty"`
	Number    uint64             `json:",omitempty"`
	Status    *mesh.Status       `json:",omitempty"`
}
