package chaos

import (
	"strings"
	"testing"
)

// A run in which hardly any call succeeded does not pass.
func TestIdleRunsProveNothing(t *testing.T) {
	const faults = 3
	busy := func() *diligence {
		d := &diligence{}
		d.expect(0, read, write, swap)
		d.expect(1, creation, deletion)
		d.expect(2, scaling)
		for range faults {
			for _, kind := range []verb{read, write, swap} {
				d.count(0, kind)
			}
			d.count(1, creation)
		}
		d.count(1, deletion)
		d.count(2, scaling)
		d.count(9, read) // of an unknown client
		return d
	}
	if err := busy().enough(faults); err != nil {
		t.Errorf("a busy run is refused: %v", err)
	}
	if err := busy().enough(faults + 1); err == nil || strings.Contains(err.Error(), "scaling") || !strings.Contains(err.Error(), "only 3 calls of kind write") {
		t.Errorf("with more faults: %v", err)
	}
	idle := busy()
	idle.expect(3, read)
	if err := idle.enough(faults); err == nil || !strings.Contains(err.Error(), "client 3 had only 0 calls answered") {
		t.Errorf("with a client that got nothing through: %v", err)
	}

	d := busy()
	before := d.soFar()
	if err := d.since(before); err == nil || strings.Count(err.Error(), "\n") != 5 {
		t.Errorf("no client has succeeded, and it is %v", err)
	}
	for client, counts := range before {
		for kind := range counts {
			d.count(client, kind)
		}
	}
	if err := d.since(before); err != nil {
		t.Errorf("all clients made progress, but the check says %v", err)
	}
}
