package machine

import (
	"path"
	"strconv"
)

// power is what the kernel knows about the power of the machine.
type power struct {
	// battery is whether the machine runs on battery: one discharges, and there is no other
	// power supply.
	battery bool
	// charge is how full its batteries are on average, in per cent, if that is known.
	charge int
	known  bool
}

// powerOf reads how the machine is powered. Without information from the kernel it runs on
// mains.
func powerOf(root root) power {
	discharging, mains := false, false
	sum, batteries := 0, 0
	for _, name := range root.list("sys/class/power_supply") {
		read := func(file string) string {
			text, err := root.line(path.Join("sys/class/power_supply", name, file))
			if err != nil { // it has none, or is being taken out
				return ""
			}
			return text
		}
		if read("scope") == "Device" {
			continue // the battery or charger of a mouse or headset
		}
		switch read("type") {
		case "Battery", "UPS":
			discharging = discharging || read("status") == "Discharging"
			if percent, err := strconv.Atoi(read("capacity")); err == nil {
				sum, batteries = sum+percent, batteries+1
			}
		default: // mains, USB, wireless
			online := read("online")
			mains = mains || online != "" && online != "0"
		}
	}
	p := power{battery: discharging && !mains, known: batteries > 0}
	if p.known {
		p.charge = sum / batteries
	}
	return p
}
