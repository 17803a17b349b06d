package main

import "fmt"

// target is what a figure should reach. It is compared with unrounded numbers: 0.596 is less than 0.6, although a table
// with two digits shows the same.
type target struct {
	text string
	met  func(value, floor float64) bool
}

var noTarget = target{text: "none"}

func under(limit float64) target {
	return target{fmt.Sprintf("under %g", limit), func(value, _ float64) bool { return value < limit }}
}

func atMost(limit float64) target {
	return target{fmt.Sprintf("at most %g", limit), func(value, _ float64) bool { return value <= limit }}
}

func exactly(want float64) target {
	return target{fmt.Sprintf("%g", want), func(value, _ float64) bool { return value == want }}
}

func ratioAtMost(limit float64) target {
	return target{fmt.Sprintf("ratio at most %g", limit), func(value, floor float64) bool { return value <= limit*floor }}
}

func ratioAtLeast(limit float64) target {
	return target{fmt.Sprintf("ratio at least %g", limit), func(value, floor float64) bool { return floor > 0 && value >= limit*floor }}
}

func atMostFloorPlus(more float64) target {
	return target{fmt.Sprintf("at most floor + %g", more), func(value, floor float64) bool { return value <= floor+more }}
}

func underFloorPlus(more float64) target {
	return target{fmt.Sprintf("under floor + %g", more), func(value, floor float64) bool { return value < floor+more }}
}
