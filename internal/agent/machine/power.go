package machine

import "path"

// onBattery reports whether the machine runs on battery: one discharges, and there is no
// other power supply. Without information from the kernel it is false.
func onBattery(root root) bool {
	discharging := false
	for _, name := range root.list("sys/class/power_supply") {
		read := func(file string) string {
			text, err := root.line(path.Join("sys/class/power_supply", name, file))
			if err != nil { // it has none, or is being taken out
				return ""
			}
			return text
		}
		switch read("type") {
		case "Battery", "UPS":
			// Batteries of mice and headsets have the scope Device.
			if read("scope") != "Device" && read("status") == "Discharging" {
				discharging = true
			}
		default: // mains, USB, wireless
			if online := read("online"); online != "" && online != "0" && read("scope") != "Device" {
				return false
			}
		}
	}
	return discharging
}
