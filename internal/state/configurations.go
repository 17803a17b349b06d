package state

import (
	"encoding/binary"
	"iter"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Configuration returns a version of the configuration by its number.
func (s *Snapshot) Configuration(number uint64) *v1.Configuration {
	for c := range listByPrefix[*v1.Configuration](s, KindConfiguration, indexNumber, binary.BigEndian.AppendUint64(nil, number)) {
		return c
	}
	return nil
}

// Configurations lists the versions of the configuration that are kept, newest first. They begin before the one with
// the number before if that is not 0, be it still there or not.
func (s *Snapshot) Configurations(before uint64) iter.Seq[*v1.Configuration] {
	return func(yield func(*v1.Configuration) bool) {
		var last *string
		if before != 0 {
			// A uid follows the number in each key, so this is below all with that number.
			last = new(string(binary.BigEndian.AppendUint64(nil, before)))
		}
		ordinal := ordinals[KindConfiguration]
		s.rows[ordinal].tree(ordinal, indexNumber).before(last, func(_ string, o Object) bool { return yield(o.(*v1.Configuration)) })
	}
}

// OldestConfigurations lists them from the oldest to the newest.
func (s *Snapshot) OldestConfigurations() iter.Seq[*v1.Configuration] {
	return listByPrefix[*v1.Configuration](s, KindConfiguration, indexNumber, nil)
}
