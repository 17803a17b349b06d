package machine

import (
	"bufio"
	"bytes"
	"cmp"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// GPU is a GPU that a replica can get.
type GPU struct {
	// ID is its place on the bus, such as "0000:01:00.0". It stays the same as long as the
	// card stays in its slot.
	ID string
	// Model is in the form of [spec.GPUModel].
	Model string
	// Devices are the files that its user needs, such as "/dev/nvidia0", including those
	// shared by all cards of a vendor.
	Devices []string
}

// GPUs lists this machine's GPUs that have device files, ordered by id. It reads them every
// time: drivers are loaded, and cards fail.
func (m *Machine) GPUs() []GPU {
	found := map[string]*GPU{}
	for _, id := range m.root.list("proc/driver/nvidia/gpus") {
		text, err := m.root.read(path.Join("proc/driver/nvidia/gpus", id, "information"))
		if err != nil {
			continue // it was just removed
		}
		if card, ok := parseNVIDIA(id, text); ok && m.root.exists(card.Devices[0]) {
			card.Devices = append(card.Devices, m.root.existing(nvidiaShared)...)
			found[card.ID] = &card
		}
	}
	for _, node := range m.root.list("sys/class/drm") {
		if !strings.HasPrefix(node, "renderD") || !m.root.exists("/dev/dri/"+node) {
			continue
		}
		text, err := m.root.read(path.Join("sys/class/drm", node, "device/uevent"))
		if err != nil {
			continue
		}
		card, ok := parseUevent(text)
		if !ok {
			continue
		}
		if known := found[card.ID]; known != nil {
			known.Devices = append(known.Devices, "/dev/dri/"+node)
			continue
		}
		card.Devices = []string{"/dev/dri/" + node}
		if strings.HasPrefix(card.Model, "amd-") {
			card.Devices = append(card.Devices, m.root.existing(amdShared)...)
		}
		found[card.ID] = &card
	}
	var all []GPU
	for _, card := range found {
		all = append(all, *card)
	}
	slices.SortFunc(all, func(a, b GPU) int { return cmp.Compare(a.ID, b.ID) })
	return all
}

// Device files shared by all cards of a vendor.
var (
	nvidiaShared = []string{"/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools", "/dev/nvidia-modeset"}
	amdShared    = []string{"/dev/kfd"}
)

// parseNVIDIA reads what NVIDIA's driver says about a card:
//
//	Model: 		 NVIDIA A100-SXM4-40GB
//	Bus Location: 	 0000:01:00.0
//	Device Minor: 	 0
//	GPU Excluded:	 No
func parseNVIDIA(id string, information []byte) (GPU, bool) {
	var model, excluded string
	minor := -1
	for key, value := range fields(information, ":") {
		switch key {
		case "Model":
			model = value
		case "Bus Location":
			id = value
		case "GPU Excluded":
			excluded = value
		case "Device Minor":
			if n, err := strconv.ParseUint(value, 10, 16); err == nil {
				minor = int(n)
			}
		}
	}
	if minor < 0 || excluded == "Yes" || id == "" {
		return GPU{}, false
	}
	name := strings.TrimPrefix(spec.GPUModel(model), "nvidia-")
	if name == "" {
		name = "nvidia"
	}
	return GPU{ID: strings.ToLower(id), Model: bounded(name), Devices: []string{"/dev/nvidia" + strconv.Itoa(minor)}}, true
}

// vendors maps PCI vendor ids of GPUs to names. Display adapters of other vendors, such as
// remote consoles and virtual machines, do not compute.
var vendors = map[string]string{"10de": "nvidia", "1002": "amd", "8086": "intel"}

// parseUevent reads what the kernel says about a PCI device:
//
//	DRIVER=amdgpu
//	PCI_ID=1002:744C
//	PCI_SLOT_NAME=0000:03:00.0
func parseUevent(uevent []byte) (GPU, bool) {
	var maker, number, id string
	for key, value := range fields(uevent, "=") {
		switch key {
		case "PCI_ID":
			maker, number, _ = strings.Cut(strings.ToLower(value), ":")
		case "PCI_SLOT_NAME":
			id = strings.ToLower(value)
		}
	}
	name := vendors[maker]
	if name == "" || number == "" || id == "" {
		return GPU{}, false
	}
	return GPU{ID: id, Model: bounded(spec.GPUModel(name + "-" + number))}, true
}

// bounded cuts a model name to the length that a workload may ask for.
func bounded(model string) string {
	const longest = 63
	return strings.Trim(model[:min(len(model), longest)], "-")
}

// fields yields the lines of a file that contain a separator.
func fields(file []byte, separator string) func(yield func(key, value string) bool) {
	return func(yield func(key, value string) bool) {
		lines := bufio.NewScanner(bytes.NewReader(file))
		for lines.Scan() {
			key, value, found := strings.Cut(lines.Text(), separator)
			if found && !yield(strings.TrimSpace(key), strings.TrimSpace(value)) {
				return
			}
		}
	}
}

// countGPUs adds GPUs to a status. The capacity has a model only if all are the same.
func countGPUs(status *v1.NodeStatus, gpus []GPU) {
	status.Capacity.Gpu = int64(len(gpus))
	for i, g := range gpus {
		status.Gpus = append(status.Gpus, &v1.NodeGpu{Id: g.ID, Model: g.Model})
		if i == 0 {
			status.Capacity.GpuModel = g.Model
		} else if status.Capacity.GpuModel != g.Model {
			status.Capacity.GpuModel = ""
		}
	}
}

// list names the entries of a folder, sorted. It is empty if the folder is missing.
func (r root) list(dir string) []string {
	entries, err := os.ReadDir(filepath.Join(string(r), dir))
	if err != nil {
		return nil
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

func (r root) exists(path string) bool {
	_, err := os.Stat(filepath.Join(string(r), path))
	return err == nil
}

// existing returns the files that exist.
func (r root) existing(paths []string) []string {
	return slices.DeleteFunc(slices.Clone(paths), func(p string) bool { return !r.exists(p) })
}
