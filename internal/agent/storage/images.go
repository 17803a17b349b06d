package storage

import (
	"cmp"
	"slices"
	"time"
)

// Disk is the part of the disk that the node may use, in bytes.
type Disk struct{ Total, Used int64 }

// Free is what is left.
func (d Disk) Free() int64 { return max(0, d.Total-d.Used) }

// Reserve is what the chunks of the object store leave free. They never fill the disk so far that images are removed, nor
// that the node has DiskPressure.
func (d Disk) Reserve(high int) int64 { return d.Total - d.Total*int64(high)/100 }

func (d Disk) above(percent int) bool { return d.Total > 0 && d.Used*100 > d.Total*int64(percent) }

const (
	// DefaultHighPercent is how full the disk must be for unused images to be removed. The node has DiskPressure a little
	// later, and then gets no new replicas.
	DefaultHighPercent = 80
	// lowBelow is how far below that images are removed then, in percent, so that this is rare.
	lowBelow = 10
	// restTime is how long an image was not used before it may be removed: what was just pulled is about to start.
	restTime = 2 * time.Minute
)

// Image is an image on the node.
type Image struct {
	Driver  string // that has it
	Ref     string
	Bytes   int64
	InUse   bool
	LastUse time.Time
}

// Unneeded returns the images to remove once the disk is fuller than the percentage, the longest unused ones first. Images
// share layers, so removing one may free less than its size: then the next look removes more.
func Unneeded(images []Image, disk Disk, high int, now time.Time) []Image {
	if !disk.above(high) {
		return nil
	}
	images = slices.Clone(images)
	slices.SortFunc(images, func(a, b Image) int { return cmp.Or(a.LastUse.Compare(b.LastUse), cmp.Compare(a.Ref, b.Ref)) })
	var unneeded []Image
	for _, one := range images {
		if one.InUse || now.Sub(one.LastUse) < restTime {
			continue
		}
		unneeded = append(unneeded, one)
		if disk.Used -= one.Bytes; !disk.above(max(1, high-lowBelow)) {
			break
		}
	}
	return unneeded
}
