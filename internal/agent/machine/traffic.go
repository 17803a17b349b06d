package machine

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/cloudless/cloudless/internal/nodenet"
)

// Traffic is how many bytes passed the machine's devices since it started.
type Traffic struct {
	Received, Sent uint64 // bytes of the network
	Read, Written  uint64 // bytes of disks
}

// Traffic counts the machine's hardware, so that traffic through a bridge or a logical
// volume is counted once. On a machine without network hardware, such as a container, all
// interfaces count.
func (m *Machine) Traffic() (Traffic, error) {
	network, err := m.root.read("proc/net/dev")
	if err != nil {
		return Traffic{}, fmt.Errorf("count the traffic of this machine: %w", err)
	}
	disks, err := m.root.read("proc/diskstats")
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // a kernel may have no disks
		return Traffic{}, fmt.Errorf("count the traffic of this machine: %w", err)
	}
	var t, all Traffic
	hardware := false
	for line := range strings.Lines(string(network)) {
		name, counters, found := strings.Cut(line, ":")
		name = strings.TrimSpace(name)
		fields := strings.Fields(counters)
		if !found || len(fields) < 9 || name == "lo" || nodenet.Own(name) {
			continue
		}
		received, sent := counter(fields[0]), counter(fields[8])
		all.Received, all.Sent = all.Received+received, all.Sent+sent
		if m.isHardware("class/net", name) {
			hardware = true
			t.Received, t.Sent = t.Received+received, t.Sent+sent
		}
	}
	if !hardware {
		t = all
	}
	for line := range strings.Lines(string(disks)) {
		fields := strings.Fields(line)
		if len(fields) < 10 || !m.isHardware("block", fields[2]) {
			continue
		}
		t.Read += counter(fields[5]) * sector
		t.Written += counter(fields[9]) * sector
	}
	return t, nil
}

// sector is the unit of the kernel's disk counters, whatever the disk's own is.
const sector = 512

func (m *Machine) isHardware(class, name string) bool {
	_, err := os.Stat(filepath.Join(string(m.root), "sys", class, name, "device"))
	return err == nil
}

// counter is 0 if text is not a number.
func counter(text string) uint64 {
	n, _ := strconv.ParseUint(text, 10, 64)
	return n
}
