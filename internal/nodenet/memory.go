package nodenet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/cloudless/cloudless/internal/atomicfile"
	"github.com/cloudless/cloudless/internal/nodenet/nft"
)

// memory keeps what the servers have told of the cluster on disk: services, and the namespaces of other nodes' replicas.
// So a process that restarts writes the rules that it found, even if no server is reachable. It is written soon after a
// change, not before: the rules themselves survive the process, and the servers tell everything again.
type memory struct {
	path  string
	dirty chan struct{}
}

// memoryFile is the content of the file.
type memoryFile struct {
	Format   int                   `json:"format"`
	Services []Service             `json:"services,omitempty"`
	Replicas map[netip.Addr]string `json:"replicas,omitempty"`
}

// memoryFormat is raised when an older version could no longer read the file.
const memoryFormat = 1

// savePause is the least time between two writes.
const savePause = time.Second

func (m *memory) changed() {
	select {
	case m.dirty <- struct{}{}:
	default:
	}
}

// recall reads the file into the description of the rules. A file that cannot be read is no reason to stop: the servers
// tell everything again.
func (n *Network) recall() {
	data, err := os.ReadFile(n.memory.path)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	var f memoryFile
	if err == nil {
		err = json.Unmarshal(data, &f)
	}
	if err == nil && f.Format > memoryFormat {
		err = fmt.Errorf("it was written by a newer version (format %d, this version knows %d)", f.Format, memoryFormat)
	}
	if err == nil {
		err = errors.Join(n.ReplaceReplicas(f.Replicas), n.describeServices(f.Services))
	}
	if err != nil {
		n.log.Warn("services work once a server has told them", "file", n.memory.path, "error", err)
	}
}

// describeServices takes services over without claiming their published ports, which Run does.
func (n *Network) describeServices(all []Service) error {
	n.rules.mu.Lock()
	defer n.rules.mu.Unlock()
	parts := map[string]*nft.Part{}
	for _, s := range all {
		if err := s.validate(); err != nil {
			return err
		}
		n.services.byID[s.ID] = s
		n.setPublished(Service{}, s)
		parts[servicePrefix+s.ID] = n.servicePart(s)
	}
	return n.write(parts)
}

// adoptServices claims the published ports of services that were recalled.
func (n *Network) adoptServices() {
	n.services.update.Lock()
	defer n.services.update.Unlock()
	var refused []Service
	for _, s := range n.services.byID {
		if len(s.published()) == 0 {
			continue
		}
		if n.claimPorts(s); n.services.refused[s.ID] {
			refused = append(refused, s)
		}
	}
	if len(refused) == 0 {
		return
	}
	if err := n.updateServices(refused, nil); err != nil {
		n.log.Warn("the rules of services could not be written", "error", err)
	}
}

// save writes the file after changes, until ctx ends.
func (n *Network) save(ctx context.Context) {
	for ctx.Err() == nil {
		select {
		case <-ctx.Done():
		case <-n.memory.dirty:
			if !n.saveNow() {
				n.memory.changed()
			}
			sleep(ctx, savePause)
		}
	}
	select {
	case <-n.memory.dirty:
		n.saveNow()
	default:
	}
}

func (n *Network) saveNow() bool {
	n.services.update.Lock()
	f := memoryFile{Format: memoryFormat, Services: slices.Collect(maps.Values(n.services.byID))}
	n.services.update.Unlock()
	slices.SortFunc(f.Services, func(a, b Service) int { return strings.Compare(a.ID, b.ID) })
	n.rules.mu.Lock()
	f.Replicas = maps.Clone(n.rules.remote)
	n.rules.mu.Unlock()
	data, err := json.Marshal(f)
	if err == nil {
		err = atomicfile.Replace(n.memory.path, data)
	}
	if err != nil {
		n.log.Warn("services could not be stored; trying again", "file", n.memory.path, "error", err)
	}
	return err == nil
}

func (o *Options) memoryPath() string { return filepath.Join(o.DataDir, "memory.json") }
