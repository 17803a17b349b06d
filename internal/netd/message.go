package netd

import (
	"net/netip"

	"github.com/cloudless/cloudless/internal/mesh"
	"github.com/cloudless/cloudless/internal/resolver"
)

// version is that of the messages between agent and process. An agent replaces a process of another version, which
// interrupts the network for a moment, and keeps any other. Raise it when the messages change, and for a fix that must
// reach processes that run already.
const version = 5

// request is one message of the agent. Its parts are handled in this order.
type request struct {
	Version int         `json:",omitempty"`
	Key     []byte      `json:",omitempty"`
	Setup   *mesh.Setup `json:",omitempty"`
	// Full says that Changed are all peers there are.
	Full    bool        `json:",omitempty"`
	Changed []mesh.Peer `json:",omitempty"`
	Removed []string    `json:",omitempty"`
	// Relays are all of them, unless it is nil.
	Relays []mesh.Relay `json:",omitempty"`
	// Names, Clients and Services are for the resolver.
	Names *Names `json:",omitempty"`
	// Clients are all replicas of this node, by their addresses, unless it is nil, and NameRules the rules for names that
	// they refer to.
	Clients   map[netip.Addr]resolver.Client `json:",omitempty"`
	NameRules map[string][]resolver.NameRule `json:",omitempty"`
	// Relearn says that the rules may have lost addresses that replicas have looked up.
	Relearn bool `json:",omitempty"`
	// AllServices says that Services are all services there are.
	AllServices     bool               `json:",omitempty"`
	Services        []resolver.Service `json:",omitempty"`
	RemovedServices []resolver.Name    `json:",omitempty"`
	// Fetched are namespaces whose services are all known now.
	Fetched []string `json:",omitempty"`
	// Will replaces the one before, unless it is nil.
	Will *Will `json:",omitempty"`
	// Done are numbers that the process repeats when everything above is done, and Asked what it answers then.
	Done  []uint64   `json:",omitempty"`
	Asked []question `json:",omitempty"`
	Stop  bool       `json:",omitempty"`
}

// question asks for the state of the mesh.
type question struct {
	Number uint64 // the answer repeats it
	// All includes idle peers.
	All bool `json:",omitempty"`
	// Probe is the id of a peer. If it is set, the answer is about the path to this peer only, which is looked for first.
	Probe string `json:",omitempty"`
}

// response is one message of the process.
type response struct {
	// Version is that of the process, in its first message.
	Version int `json:",omitempty"`
	// Failed says why this node is not in the mesh or, with a number, why there is no answer.
	Failed    string             `json:",omitempty"`
	Announced *mesh.Announcement `json:",omitempty"`
	// Resend says that the process knows no peers and relays: it joined the mesh later than it was asked to.
	Resend bool `json:",omitempty"`
	// Resolver says why the resolver does not work; it is empty if it does, and nil if nothing has changed.
	Resolver *string `json:",omitempty"`
	// Wanted is a namespace whose services a program of this machine looks up.
	Wanted string       `json:",omitempty"`
	Number uint64       `json:",omitempty"`
	Status *mesh.Status `json:",omitempty"`
}

// Names say where the resolver of a node listens, and which addresses are the cluster's.
type Names struct {
	Listen []netip.AddrPort
	Ranges []netip.Prefix
	// Table is the name of the table with the rules of the node, into which addresses of names are learned.
	Table string
}

// Events are what a client hears from the process. The functions must not block.
type Events struct {
	// Announced is called with how this node can be reached, whenever that changes.
	Announced func(mesh.Announcement)
	// Failed is called with the reason why this node is not in the mesh, in one sentence. It is called with nothing when
	// the node is in the mesh again.
	Failed func(why string)
	// Resolver is called with the reason why replicas cannot look up names, and with nothing when that is over.
	Resolver func(why string)
	// Wanted is called with a namespace whose services a program of this machine looks up. The client's Fetched answers.
	Wanted func(namespace string)
}
