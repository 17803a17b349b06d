// Package checkup is what cloudless doctor runs: it collects what packages datadir, enroll, peering and nodenet know
// about this machine, and lets package doctor judge it.
//
// It changes nothing. It must not know how the parts of a process run.
package checkup
