package app

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/cli/local"
)

// membership is what a node keeps of its cluster besides its certificate.
type membership struct {
	Servers []string `json:"servers"`
	// Via is the address by which the machine joined.
	Via  string `json:"via,omitempty"`
	Node string `json:"node"`
	// Removed is whether the cluster has removed the node.
	Removed bool `json:"removed,omitempty"`
	// Wished is what was said of the node when it joined; nil if that is not known.
	Wished *wishes `json:"wished,omitempty"`
}

// wishes are what a machine may say of the node that it becomes.
type wishes struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// sameNode refuses wishes for a node that there is already: what a node is called
// and which labels it has is changed in the cluster. Who repeats a command says
// nothing new. A node that was removed makes way for a new one, with new wishes.
func (f *folder) sameNode(m local.Machine) error {
	if m.Name == "" && len(m.Labels) == 0 {
		return nil
	}
	about, err := f.readMembership()
	if err != nil || about.Wished == nil || about.Removed {
		return nil // there is none any more, or whoever needs it will say what is wrong with it
	}
	switch said := about.Wished; {
	case m.Name != "" && m.Name != about.Node && m.Name != said.Name:
		return fmt.Errorf("this machine is node %s already, which --name cannot change: leave it out", about.Node)
	case len(m.Labels) > 0 && !maps.Equal(m.Labels, said.Labels):
		return fmt.Errorf("this machine is node %s already, which --label cannot change: leave it out, and change the node with: cloudless node label %s KEY=VALUE", about.Node, about.Node)
	}
	return nil
}

func (f *folder) credentialsPath() string { return f.sub("agent", "identity.pem") }
func (f *folder) joiningKeyPath() string  { return f.sub("agent", "joining.pem") }
func (f *folder) membershipPath() string  { return f.sub("agent", "membership.json") }

func (f *folder) readMembership() (membership, error) {
	var m membership
	data, err := os.ReadFile(f.membershipPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("%s is missing: restore it, or delete %s to make this machine another node: %w",
			f.membershipPath(), f.credentialsPath(), fs.ErrNotExist)
	case err != nil:
		return m, fmt.Errorf("read membership: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil || len(m.Servers) == 0 {
		return m, fmt.Errorf("%s is damaged: restore it, or delete %s to make this machine another node", f.membershipPath(), f.credentialsPath())
	}
	return m, nil
}

// noteRemoved keeps for later processes that the cluster has removed the node.
func (f *folder) noteRemoved() error {
	about, err := f.readMembership()
	if err != nil {
		return err
	}
	about.Removed = true
	return f.writeMembership(about)
}

func (f *folder) writeMembership(m membership) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(f.membershipPath(), data)
}
