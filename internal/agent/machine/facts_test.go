package machine

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
	"github.com/cloudless/cloudless/internal/spec"
)

// What the kernel and NVIDIA's driver report about cards, cut down to the relevant lines
// and some others.
const (
	a100 = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 131\nGPU UUID: \t GPU-2b2a2b2c-0000-1111-2222-333344445555\n" +
		"Video BIOS: \t 92.00.19.00.01\nBus Type: \t PCIe\nDMA Size: \t 47 bits\nDMA Mask: \t 0x7fffffffffff\n" +
		"Bus Location: \t 0000:07:00.0\nDevice Minor: \t 0\nGPU Firmware: \t 535.54.03\nGPU Excluded:\t No\n"
	t4 = "Model: \t\t Tesla T4\nIRQ:   \t\t 45\nBus Type: \t PCIe\nBus Location: \t 0000:3B:00.0\nDevice Minor: \t 1\n"
	// With an in-kernel driver, only numbers are known.
	radeon = "DRIVER=amdgpu\nPCI_CLASS=30000\nPCI_ID=1002:744C\nPCI_SUBSYS_ID=1DA2:E471\nPCI_SLOT_NAME=0000:03:00.0\nMODALIAS=pci:v00001002d0000744C\n"
	iris   = "DRIVER=i915\nPCI_CLASS=30000\nPCI_ID=8086:9A49\nPCI_SLOT_NAME=0000:00:02.0\n"
	aspeed = "DRIVER=ast\nPCI_CLASS=30000\nPCI_ID=1A03:2000\nPCI_SLOT_NAME=0000:05:00.0\n"
	pi     = "DRIVER=v3d\nOF_NAME=v3d\nOF_COMPATIBLE_0=brcm,2711-v3d\n"
)

func TestNVIDIACards(t *testing.T) {
	m, dir := newMachine(t, map[string]string{
		"proc/driver/nvidia/gpus/0000:07:00.0/information": a100,
		"proc/driver/nvidia/gpus/0000:3b:00.0/information": t4,
		"dev/nvidia0": "", "dev/nvidia1": "", "dev/nvidiactl": "", "dev/nvidia-uvm": "",
		// The same card also has a render node.
		"sys/class/drm/renderD128/device/uevent": "DRIVER=nvidia\nPCI_ID=10DE:20B0\nPCI_SLOT_NAME=0000:07:00.0\n",
		"dev/dri/renderD128":                     "",
	})
	gpus := m.GPUs()
	if len(gpus) != 2 {
		t.Fatalf("found %+v", gpus)
	}
	if g := gpus[0]; g.ID != "0000:07:00.0" || g.Model != "a100-sxm4-40gb" ||
		!slices.Equal(g.Devices, []string{"/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/dri/renderD128"}) {
		t.Errorf("found %+v", g)
	}
	if g := gpus[1]; g.ID != "0000:3b:00.0" || g.Model != "tesla-t4" || g.Devices[0] != "/dev/nvidia1" {
		t.Errorf("found %+v", g)
	}
	if s := status(t, m); s.GetCapacity().GetGpu() != 2 || s.GetCapacity().GetGpuModel() != "" || len(s.GetGpus()) != 2 {
		t.Errorf("cards of two models are reported as %v, %v", s.GetCapacity(), s.GetGpus())
	}
	// A card without a device file is unavailable at once.
	if err := os.Remove(filepath.Join(dir, "dev/nvidia0")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(dir, "sys/class/drm")); err != nil {
		t.Fatal(err)
	}
	if c := status(t, m).GetCapacity(); c.GetGpu() != 1 || c.GetGpuModel() != "tesla-t4" {
		t.Errorf("the capacity is %v", c)
	}
}

func TestOtherCards(t *testing.T) {
	m, _ := newMachine(t, map[string]string{
		"sys/class/drm/version":                  "drm 1.1.0 20060810\n",
		"sys/class/drm/card0/device/uevent":      radeon,
		"sys/class/drm/renderD128/device/uevent": radeon, "dev/dri/renderD128": "", "dev/kfd": "",
		"sys/class/drm/renderD129/device/uevent": iris, "dev/dri/renderD129": "",
		"sys/class/drm/renderD130/device/uevent": aspeed, "dev/dri/renderD130": "",
		"sys/class/drm/renderD131/device/uevent": pi, "dev/dri/renderD131": "",
		"sys/class/drm/renderD132/device/uevent": iris, // without a file
	})
	gpus := m.GPUs()
	if len(gpus) != 2 || gpus[0].Model != "intel-9a49" || gpus[1].Model != "amd-744c" ||
		!slices.Equal(gpus[0].Devices, []string{"/dev/dri/renderD129"}) || !slices.Equal(gpus[1].Devices, []string{"/dev/dri/renderD128", "/dev/kfd"}) {
		t.Errorf("found %+v", gpus)
	}
	if plain, _ := newMachine(t); len(plain.GPUs()) != 0 || status(t, plain).GetCapacity().GetGpu() != 0 {
		t.Error("a machine without cards has some")
	}
}

// The battery is low below 15 %, and not any more from 25 % on or with a charger.
func TestLowBattery(t *testing.T) {
	laptop := func(online, charge string) map[string]string {
		return map[string]string{
			"sys/class/power_supply/AC/type": "Mains\n", "sys/class/power_supply/AC/online": online + "\n",
			"sys/class/power_supply/BAT0/type": "Battery\n", "sys/class/power_supply/BAT0/status": "Discharging\n",
			"sys/class/power_supply/BAT0/capacity": charge + "\n",
		}
	}
	m, dir := newMachine(t, laptop("0", "15"))
	for _, step := range []struct {
		online, charge string
		low            bool
	}{
		{"0", "15", false},
		{"0", "14", true},
		{"0", "24", true},
		{"0", "25", false},
		{"0", "16", false},
		{"0", "3", true},
		{"1", "3", false},
		{"1", "20", false},
		{"0", "14", true},
	} {
		write(t, dir, laptop(step.online, step.charge))
		i := slices.IndexFunc(status(t, m).GetConditions(), func(c *v1.Condition) bool { return c.GetType() == spec.LowBattery })
		if i < 0 {
			t.Fatal("there is no such condition")
		}
		if c := status(t, m).GetConditions()[i]; c.GetStatus() != step.low || step.low != (c.GetReason() != "") {
			t.Errorf("with %s %% and mains %s the condition is %v", step.charge, step.online, c)
		}
	}
	if c := status(t, m).GetConditions(); c[len(c)-1].GetReason() != "The battery has only 14 % left." {
		t.Errorf("the conditions are %v", c)
	}
	plain, _ := newMachine(t)
	if slices.ContainsFunc(status(t, plain).GetConditions(), func(c *v1.Condition) bool { return c.GetType() == spec.LowBattery }) {
		t.Error("a machine without a battery has the condition")
	}
}

func TestBattery(t *testing.T) {
	laptop := func(online, battery string) map[string]string {
		return map[string]string{
			"sys/class/power_supply/AC/type": "Mains\n", "sys/class/power_supply/AC/online": online + "\n",
			"sys/class/power_supply/BAT0/type": "Battery\n", "sys/class/power_supply/BAT0/status": battery + "\n",
		}
	}
	m, dir := newMachine(t, laptop("1", "Charging"))
	for _, step := range []struct {
		name  string
		files map[string]string
		want  bool
	}{
		{"charging", nil, false},
		{"the plug is pulled", laptop("0", "Discharging"), true},
		{"a weak charger does not keep up", laptop("1", "Discharging"), false},
		{"unknown", laptop("0", "Unknown"), false},
		{"again", laptop("0", "Discharging"), true},
		{"fed by USB", map[string]string{"sys/class/power_supply/usbc/type": "USB\n", "sys/class/power_supply/usbc/online": "1\n"}, false},
	} {
		write(t, dir, step.files)
		if got := status(t, m).GetInfo().GetBattery(); got != step.want {
			t.Errorf("%s: on battery is %v", step.name, got)
		}
	}
	desktop, _ := newMachine(t, map[string]string{
		"sys/class/power_supply/hidpp_battery_0/type": "Battery\n", "sys/class/power_supply/hidpp_battery_0/status": "Discharging\n",
		"sys/class/power_supply/hidpp_battery_0/scope": "Device\n",
	})
	if status(t, desktop).GetInfo().GetBattery() {
		t.Error("the battery of a mouse counts")
	}
}

const (
	routes = "Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT\n" +
		"wlan0\t00000000\t010200C0\t0003\t0\t0\t600\t00000000\t0\t0\t0\n" +
		"eth0\t00000000\t010200C0\t0003\t0\t0\t100\t00000000\t0\t0\t0\n" +
		"eth1\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0\n"
	routes6 = "00000000000000000000000000000000 00 00000000000000000000000000000000 00 fe800000000000000000000000000001 00000400 00000001 00000000 00000003     eth2\n" +
		"00000000000000000000000000000000 00 00000000000000000000000000000000 00 00000000000000000000000000000000 ffffffff 00000001 00000000 00200200       lo\n"
)

func TestLink(t *testing.T) {
	card := func(name, speed string) map[string]string {
		return map[string]string{"sys/class/net/" + name + "/device/uevent": "", "sys/class/net/" + name + "/speed": speed + "\n"}
	}
	for _, c := range []struct {
		name  string
		files []map[string]string
		want  string
	}{
		{"of the default route with the lowest metric", []map[string]string{{"proc/net/route": routes}, card("eth0", "2500"), card("wlan0", "100")}, "2500M"},
		{"of a machine with IPv6 only", []map[string]string{{"proc/net/route": "Iface\n", "proc/net/ipv6_route": routes6}, card("eth2", "10000")}, "10G"},
		{"that the kernel does not know", []map[string]string{{"proc/net/route": routes}, card("eth0", "-1")}, ""},
		{"that is within the machine", []map[string]string{{"proc/net/route": routes, "sys/class/net/eth0/speed": "10000\n"}}, ""},
		{"of several cards together", []map[string]string{{"proc/net/route": routes, "sys/class/net/eth0/speed": "2000\n", "sys/class/net/eth0/bonding/mode": "802.3ad 4\n"}}, "2G"},
		{"without a route", []map[string]string{card("eth0", "1000")}, ""},
	} {
		m, _ := newMachine(t, c.files...)
		if got := status(t, m).GetCapacity().GetBandwidth(); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	// A link that changes its speed is noticed without a restart.
	m, dir := newMachine(t, map[string]string{"proc/net/route": routes}, card("eth0", "1000"))
	write(t, dir, card("eth0", "100"))
	if got := status(t, m).GetCapacity().GetBandwidth(); got != "100M" {
		t.Errorf("the slower link is %q", got)
	}
}

func FuzzGPUFiles(f *testing.F) {
	for _, text := range []string{a100, t4, radeon, iris, aspeed, pi, "Model:\nDevice Minor: 0\n"} {
		f.Add("0000:01:00.0", text)
	}
	f.Fuzz(func(t *testing.T, id, text string) {
		for _, parse := range []func() (GPU, bool){
			func() (GPU, bool) { return parseNVIDIA(id, []byte(text)) },
			func() (GPU, bool) { return parseUevent([]byte(text)) },
		} {
			g, ok := parse()
			if !ok {
				continue
			}
			if g.ID == "" || g.Model == "" || len(g.Model) > 63 || strings.ContainsAny(g.Model, " /:=\n") {
				t.Errorf("read %+v", g)
			}
			for _, device := range g.Devices {
				if !strings.HasPrefix(device, "/dev/nvidia") || strings.Contains(device, "..") {
					t.Errorf("wants %q", device)
				}
			}
		}
	})
}

func FuzzRoutes(f *testing.F) {
	f.Add(routes, "1000")
	f.Add(routes6, "-1")
	f.Fuzz(func(t *testing.T, table, speed string) {
		for _, name := range []string{defaultRoute(table), defaultRoute6(table)} {
			if strings.ContainsAny(name, "/\x00") || name == ".." {
				t.Errorf("looks at %q", name)
			}
		}
		if parseSpeed(speed) < 0 {
			t.Errorf("%q is a negative speed", speed)
		}
	})
}
