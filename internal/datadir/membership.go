package datadir

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"

	"github.com/cloudless/cloudless/internal/atomicfile"
)

// Membership is what a node keeps about its cluster besides its certificate.
type Membership struct {
	Servers []string `json:"servers"`
	// Via is the address by which the machine joined.
	Via  string `json:"via,omitempty"`
	Node string `json:"node"`
	// Removed says that the cluster has removed the node.
	Removed bool `json:"removed,omitempty"`
	// Requested is what the machine asked for when it joined; nil if that is not known.
	Requested *NodeRequest `json:"wished,omitempty"`
}

// NodeRequest is what a machine may ask for when it becomes a node.
type NodeRequest struct {
	Name   string            `json:"name,omitempty"`
	Labels map[string]string `json:"labels,omitempty"`
}

// CheckSameNode refuses another name or other labels for a node that exists: they are changed in the cluster. A
// repeated command asks for the same. A removed node makes way for a new one, which may ask for others.
func (f *Folder) CheckSameNode(r NodeRequest) error {
	if r.Name == "" && len(r.Labels) == 0 {
		return nil
	}
	m, err := f.ReadMembership()
	if err != nil || m.Requested == nil || m.Removed {
		return nil // there is no node, or the code that needs it will say what is wrong with it
	}
	switch {
	case r.Name != "" && r.Name != m.Node && r.Name != m.Requested.Name:
		return fmt.Errorf("this machine is node %s already, which --name cannot change: leave it out", m.Node)
	case len(r.Labels) > 0 && !maps.Equal(r.Labels, m.Requested.Labels):
		return fmt.Errorf("this machine is node %s already, which --label cannot change: leave it out, and change the node with: cloudless node label %s KEY=VALUE", m.Node, m.Node)
	}
	return nil
}

// CredentialsPath is where the node's key and certificate are.
func (f *Folder) CredentialsPath() string { return f.Path("agent", "identity.pem") }

// JoiningKeyPath is the key of a node that is joining.
func (f *Folder) JoiningKeyPath() string { return f.Path("agent", "joining.pem") }

func (f *Folder) membershipPath() string { return f.Path("agent", "membership.json") }

// ReadMembership reads what the node keeps about its cluster; fs.ErrNotExist if the machine is no node.
func (f *Folder) ReadMembership() (Membership, error) {
	var m Membership
	data, err := os.ReadFile(f.membershipPath())
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return m, fmt.Errorf("%s is missing: restore it, or delete %s to make this machine another node: %w",
			f.membershipPath(), f.CredentialsPath(), fs.ErrNotExist)
	case err != nil:
		return m, fmt.Errorf("read membership: %w", err)
	}
	if err := json.Unmarshal(data, &m); err != nil || len(m.Servers) == 0 {
		return m, fmt.Errorf("%s is damaged: restore it, or delete %s to make this machine another node", f.membershipPath(), f.CredentialsPath())
	}
	return m, nil
}

// MarkNodeRemoved tells later processes that the cluster has removed the node.
func (f *Folder) MarkNodeRemoved() error {
	m, err := f.ReadMembership()
	if err != nil {
		return err
	}
	m.Removed = true
	return f.WriteMembership(m)
}

// WriteMembership keeps what the node knows about its cluster.
func (f *Folder) WriteMembership(m Membership) error {
	data, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Replace(f.membershipPath(), data)
}
