package doctor

import (
	"fmt"
	"time"
)

const (
	mebibyte = 1 << 20
	gibibyte = 1 << 30
)

func disk(v View) []Finding {
	d := v.Disk
	if d.Err != nil {
		return fail(fmt.Sprintf("the file system of %s cannot be read: %v", d.Path, d.Err), "choose another --data-dir")
	}
	free := fmt.Sprintf("%s of %s are free for %s", amount(d.Free), amount(d.Total), d.Path)
	makeRoom := "cloudless image prune, or make room below " + d.Path
	switch {
	case d.Free < 256*mebibyte:
		return fail("only "+free, makeRoom)
	case d.Inodes > 0 && d.FreeInodes < max(d.Inodes/100, 1000):
		return fail(fmt.Sprintf("only %d of %d inodes are free for %s: no new files can be made soon", d.FreeInodes, d.Inodes, d.Path), makeRoom)
	case d.Free < min(d.Total/10, 2*gibibyte):
		return warn("only "+free, makeRoom)
	case d.Inodes > 0 && d.FreeInodes < d.Inodes/20:
		return warn(fmt.Sprintf("only %d of %d inodes are free for %s", d.FreeInodes, d.Inodes, d.Path), makeRoom)
	}
	return ok(free)
}

func memory(v View) []Finding {
	available := fmt.Sprintf("%s of %s memory are available", amount(v.Memory.Available), amount(v.Memory.Total))
	if v.Memory.Available < 192*mebibyte {
		return warn("only "+available+": the process alone needs about 100 MiB", "stop something, or use a machine with more memory")
	}
	return ok(available)
}

// amount formats a number of bytes for people.
func amount(n uint64) string {
	if n < gibibyte {
		return fmt.Sprintf("%d MiB", n/mebibyte)
	}
	return fmt.Sprintf("%.1f GiB", float64(n)/gibibyte)
}

const (
	// skewTold is the smallest skew to report. The server's answer has a resolution of one second.
	skewTold = 3 * time.Second
	// skewHarmful is how far certificates are backdated: with more skew, new certificates are not valid yet.
	skewHarmful = 24 * time.Hour
)

// anyTimeBefore is before this program was written: an earlier clock is wrong.
var anyTimeBefore = time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)

func clock(v View) []Finding {
	const mend = "timedatectl set-ntp true, or install chrony"
	if v.Clock.Now.Before(anyTimeBefore) {
		return fail("the clock says "+v.Clock.Now.UTC().Format(time.DateTime)+", so that every certificate looks as if it came from the future", mend)
	}
	if v.Clock.Skew != nil {
		by := v.Clock.Skew.Abs().Round(time.Second)
		side := "behind"
		if *v.Clock.Skew < 0 {
			side = "ahead of"
		}
		switch {
		case by >= skewHarmful:
			return fail(fmt.Sprintf("the clock is %s %s the server's, so that certificates are refused", by, side), mend)
		case by >= time.Hour:
			return fail(fmt.Sprintf("the clock is %s %s the server's, so that tokens and certificates end too early or too late", by, side), mend)
		case by >= skewTold:
			return warn(fmt.Sprintf("the clock is %s %s the server's", by, side), mend)
		}
	}
	if !v.Clock.Synchronized {
		return warn("the clock follows no other one and will go wrong with time", mend)
	}
	if v.Clock.Skew != nil {
		return ok("the clock follows another one and agrees with the server's")
	}
	return ok("the clock follows another one")
}
