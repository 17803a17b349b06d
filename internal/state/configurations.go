package state

import (
	"encoding/binary"
	"iter"

	v1 "github.com/cloudless/cloudless/api/gen/cloudless/v1"
)

// Configuration returns the version of the configuration with a number.
func (s *Snapshot) Configuration(number uint64) *v1.Configuration {
	for c := range listByPrefix[*v1.Configuration](s, KindConfiguration, indexNumber, binary.BigEndian.AppendUint64(nil, number)) {
		return c
	}
	return nil
}

// Configurations lists the stored versions of the configuration, newest first. It lists only those with a smaller number
// than before, unless that is 0.
func (s *Snapshot) Configurations(before uint64) iter.Seq[*v1.Configuration] {
	return func(yield func(*v1.Configuration) bool) {
		var limit *string
		if before != 0 {
			// A uid follows the number in each key, so this limit is smaller than all keys with that number.
			limit = new(string(binary.BigEndian.AppendUint64(nil, before)))
		}
		ordinal := ordinals[KindConfiguration]
		s.rows[ordinal].tree(ordinal, indexNumber).descend(limit, func(_ string, o Object) bool { return yield(o.(*v1.Configuration)) })
	}
}

// OldestConfigurations lists the stored versions of the configuration, oldest first.
func (s *Snapshot) OldestConfigurations() iter.Seq[*v1.Configuration] {
	return listByPrefix[*v1.Configuration](s, KindConfiguration, indexNumber, nil)
}
