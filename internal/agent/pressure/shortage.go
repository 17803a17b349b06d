package pressure

import (
	"bytes"
	"fmt"

	"github.com/cloudless/cloudless/internal/spec"
)

// Room is an amount of memory and the part of it that is available, in bytes. The zero value is unknown.
type Room struct{ Total, Available int64 }

// Reading is the memory at one moment.
type Reading struct {
	// Machine is the memory of the whole machine, Pool what all replicas together may use.
	Machine, Pool Room
	// Stalled is the share of the last ten seconds in which no program could go on for lack of memory, in percent.
	Stalled float64
}

const mebibyte = 1 << 20

// Memory is short below its floor, and until a half more than the floor is available again.
const (
	floorShare   = 20 // one part in so many
	smallestPart = 10 // the floor of a small machine is at most one part in so many
	floorLeast   = 100 * mebibyte
	floorMost    = 512 * mebibyte
)

// Programs that stall make memory short earlier, if less than three times the floor is available. Otherwise, the replicas
// that stall have reached their own limits.
const (
	stallBegins = 20.0
	stallEnds   = 10.0
	stallFloors = 3
)

// floor is the available memory below which memory is short.
func (r Room) floor() int64 {
	return min(max(floorLeast, min(r.Total/floorShare, floorMost)), r.Total/smallestPart)
}

// Stalled reads the share of stalled time, in percent, from one of the kernel's files about memory pressure. It is 0 if
// the file does not say.
func Stalled(file []byte) float64 {
	for line := range bytes.Lines(file) {
		var share float64
		if n, _ := fmt.Sscanf(string(line), "full avg10=%g", &share); n == 1 {
			return share
		}
	}
	return 0
}

// Shortage says whether memory is short. Its zero value is ready to use.
type Shortage struct{ short bool }

// Update considers a reading, and returns whether memory is short.
func (s *Shortage) Update(r Reading) bool {
	machine, pool := r.Machine.floor(), r.Pool.floor()
	tight := r.Machine.Available < stallFloors*machine || r.Pool.Available < stallFloors*pool
	if s.short {
		s.short = r.Machine.Available < machine+machine/2 || r.Pool.Available < pool+pool/2 || tight && r.Stalled > stallEnds
	} else {
		s.short = r.Machine.Available < machine || r.Pool.Available < pool || tight && r.Stalled > stallBegins
	}
	return s.short
}

// near reports whether memory could be short soon.
func (r Reading) near() bool {
	return r.Machine.Available < stallFloors*r.Machine.floor() || r.Pool.Available < stallFloors*r.Pool.floor()
}

// String says what is short.
func (r Reading) String() string {
	if r.Pool.Total > 0 && r.Pool.Available-r.Pool.floor() < r.Machine.Available-r.Machine.floor() {
		return fmt.Sprintf("the replicas of the machine were short of memory (%s left of the %s that they share)",
			spec.HumanBytes(max(0, r.Pool.Available)), spec.HumanBytes(r.Pool.Total))
	}
	return fmt.Sprintf("the machine was short of memory (%s left)", spec.HumanBytes(max(0, r.Machine.Available)))
}

// The reserve of a machine: one part in so many, within bounds, and at most a quarter.
const (
	reserveShare = 20
	reserveLeast = 128 * mebibyte
	reserveMost  = 1024 * mebibyte
)

// Reserve is how much of a machine's memory is kept from replicas, for the system, the agent and a server.
func Reserve(total int64) int64 {
	return min(max(reserveLeast, min(total/reserveShare, reserveMost)), total/4)
}
