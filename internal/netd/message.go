package netd

import "github.com/cloudless/cloudless/internal/mesh"

// version is that of the messages between agent and process. A process of another version is replaced.
const version = 1

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
	Status uint64       `json:",omitempty"` // a number that the answer repeats
	Stop   bool         `json:",omitempty"`
}

// response is one message of the process.
type response struct {
	Version int `json:",omitempty"`
	// Program is the path of the running program, in the first message.
	Program   string             `json:",omitempty"`
	Failed    string             `json:",omitempty"`
	Announced *mesh.Announcement `json:",omitempty"`
	Number    uint64             `json:",omitempty"`
	Status    *mesh.Status       `json:",omitempty"`
}
