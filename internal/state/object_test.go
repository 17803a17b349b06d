package state

import (
	"bytes"
	"testing"

	"github.com/google/uuid"
	"pgregory.net/rapid"
)

// Different ids have different keys, and none is a prefix of another. Otherwise a node's list would contain the replicas
// of another node.
func TestKeysOfDifferentIDsAreNotPrefixes(t *testing.T) {
	id := rapid.OneOf(
		rapid.Custom(func(t *rapid.T) string {
			return uuid.UUID(rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "bytes")).String()
		}),
		rapid.StringMatching(`[0-9A-Fa-f-]{35,37}`),
		rapid.StringMatching(`[\x01-\x03]?[a-z\x01]{0,18}`),
		rapid.Just(""),
	)
	rapid.Check(t, func(t *rapid.T) {
		a, b := id.Draw(t, "one"), id.Draw(t, "other")
		if a != b && bytes.HasPrefix(appendID(nil, a), appendID(nil, b)) {
			t.Fatalf("the key of %q begins with that of %q", a, b)
		}
	})
}

func TestKeyOfUUIDIsShort(t *testing.T) {
	id := "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5b"
	if got := appendID(nil, id); len(got) != 17 || !bytes.Equal(got[1:], uuidBytes(id)) {
		t.Errorf("the key is %x", got)
	}
	for _, other := range []string{"0190A1B2-c3d4-7e5f-8a9b-0c1d2e3f4a5b", "0190a1b2-c3d4-7e5f-8a9b-0c1d2e3f4a5", "0190a1b2c3d4-7e5f-8a9b-0c1d2e3f4a5b-"} {
		if got := appendID(nil, other); string(got) != other+"\x00" {
			t.Errorf("the key of %s is %x", other, got)
		}
	}
}

func uuidBytes(id string) []byte {
	parsed := uuid.MustParse(id)
	return parsed[:]
}
